#!/usr/bin/env python3
"""Log-probabilities of llama.cpp with a GGUF adapter on a float32 base, against those of Sluice.

    build/bench/bench/adapter_logps --model DIR --adapter PEFT_DIR --write --ids 5,17,3 > sluice.json
    sluice convert PEFT_DIR --model DIR --to gguf --output adapter.gguf
    llama_cpp_compare.py --model DIR --adapter adapter.gguf sluice.json

DIR is a Hugging Face folder of the Llama architecture; it is written as a temporary GGUF file of float32, so that no rounding of the base stands
between the two. Fails when an element differs by more than --tolerance times the largest one.
"""
import argparse
import ctypes
import json
import pathlib
import sys
import tempfile


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, type=pathlib.Path)
    p.add_argument("--adapter", help="a GGUF adapter; without it the base alone")
    p.add_argument("sluice", help="a JSON file: ids, and logps [ids, vocabulary]")
    p.add_argument("--tolerance", type=float, default=2e-5, help="of the largest (float32, and a key cache of float32)")
    return p.parse_args()


def interleaved(weight, heads):
    """Rows of q and k as llama.cpp's converter lays them: the two halves of a head alternate."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(folder, path):
    import gguf
    import numpy as np
    from safetensors.torch import load_file

    c = json.loads((folder / "config.json").read_text())
    if c["model_type"] != "llama":
        sys.exit(f"{folder}: model_type {c['model_type']}; only llama is written here")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(c.get("rope_theta") or c["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c["num_hidden_layers"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        if name.endswith("q_proj.weight"):
            values = interleaved(values, c["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            values = interleaved(values, c["num_key_value_heads"])
        stem, ending = name.rsplit(".", 1)
        writer.add_tensor(f"{names.get_name(stem)}.{ending}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logps(path, adapter, ids, vocabulary):
    import llama_cpp
    import numpy as np

    model = llama_cpp.Llama(model_path=path, lora_path=adapter, n_ctx=64, n_threads=1, logits_all=True, verbose=False,
                            type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)
    model.eval(ids)
    pointer = ctypes.POINTER(ctypes.c_float)
    rows = [np.ctypeslib.as_array(ctypes.cast(llama_cpp.llama_get_logits_ith(model._ctx.ctx, t), pointer), (vocabulary,))
            for t in range(len(ids))]
    logits = np.array(rows, dtype=np.float64)
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def main():
    args = parse()
    import numpy as np

    sluice = json.loads(pathlib.Path(args.sluice).read_text())
    ours = np.array(sluice["logps"])
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/base.gguf"
        write_gguf(args.model, path)
        theirs = logps(path, args.adapter, sluice["ids"], ours.shape[1])
    scale = np.abs(theirs).max()
    worst = np.abs(ours - theirs).max() / scale
    print(f"{list(ours.shape)} log-probabilities: largest difference {worst:.2e} of the largest, {scale:.3f}; allowed {args.tolerance:.0e}")
    return 0 if worst <= args.tolerance else 1


if __name__ == "__main__":
    sys.exit(main())
