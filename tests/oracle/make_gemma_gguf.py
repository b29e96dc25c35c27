#!/usr/bin/env python3
"""Writes tests/golden/gemma_gguf: the oracle's Gemma folders as GGUF, with the keys and tensor names of llama.cpp's converter.

    pip install gguf safetensors torch numpy
    python3 tests/oracle/make_gemma_gguf.py             # rewrites the files
    python3 tests/oracle/make_gemma_gguf.py --check     # and has llama.cpp (llama-cpp-python) compute the oracle's logits from them

Keys, their types and the tensors' names come from the gguf package. Matrices stay BF16 and norms are F32, as in a BF16 conversion. Two
things differ from what a converter does, because llama.cpp takes the score scale from the head dimension: where a fixture's
query_pre_attn_scalar is another number, the quotient is folded into q_norm (Gemma 3) or into W_q, as F32 (Gemma 2); the expected
values stay the same. There is no vocabulary: the tokenizer is "no_vocab". moe.gguf is the header of a mixture of experts.
"""

import argparse
import json
import pathlib
import re

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
FIXTURES, OUT = GOLDEN / "fixtures", GOLDEN / "gemma_gguf"
ARCH = {"gemma2": gguf.MODEL_ARCH.GEMMA2, "gemma3_text": gguf.MODEL_ARCH.GEMMA3, "gemma4_text": gguf.MODEL_ARCH.GEMMA4}
FOLDERS = ["gemma2-like", "gemma3-like", "gemma4-e2b-like", "gemma4-31b-like"]


def read(folder):
    config = json.loads((FIXTURES / folder / "config.json").read_text())
    config = config.get("text_config", config)
    tensors = {}
    for name, tensor in load_file(FIXTURES / folder / "model.safetensors").items():
        name = name.replace("model.language_model.", "model.")
        if not re.search("vision|audio", name):
            tensors[name] = tensor
    return config, tensors


def add_common(writer, c):
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_sliding_window(c["sliding_window"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    if c.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(c["final_logit_softcapping"])


def add_gemma2_or_3(writer, c):
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    if c["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        return
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_rope_freq_base_swa(c["rope_local_base_freq"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(c["rope_scaling"]["factor"])
    writer.add_sliding_window_pattern(c["sliding_window_pattern"])


def add_gemma4(writer, c):
    shared, layers = c["num_kv_shared_layers"], c["num_hidden_layers"]
    sliding = [kind == "sliding_attention" for kind in c["layer_types"]]
    wide = [c["intermediate_size"] * (2 if c["use_double_wide_mlp"] and layer >= layers - shared else 1) for layer in range(layers)]
    writer.add_feed_forward_length(wide if c["use_double_wide_mlp"] else c["intermediate_size"])
    full_heads = c["num_global_key_value_heads"]
    writer.add_head_count_kv([c["num_key_value_heads"] if s else full_heads for s in sliding] if full_heads else c["num_key_value_heads"])
    writer.add_rope_freq_base(c["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    writer.add_sliding_window_pattern(sliding)
    writer.add_key_length(c["global_head_dim"])
    writer.add_value_length(c["global_head_dim"])
    writer.add_key_length_swa(c["head_dim"])
    writer.add_value_length_swa(c["head_dim"])
    writer.add_rope_dimension_count(c["global_head_dim"])
    writer.add_rope_dimension_count_swa(c["head_dim"])
    pairs = c["global_head_dim"] // 2
    rotated = int(c["rope_parameters"]["full_attention"]["partial_rotary_factor"] * pairs)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * rotated + [1e30] * (pairs - rotated), dtype=np.float32))


def stored(name, tensor, c):
    """A tensor as the converter stores it: 1 + w in norms of Gemma 2 and 3, vectors in F32."""
    values = tensor.to(torch.float64)
    older = c["model_type"] != "gemma4_text"
    if older and name.endswith("norm.weight"):
        values = values + 1
    if older and name.endswith("self_attn.q_norm.weight" if c["model_type"] == "gemma3_text" else "self_attn.q_proj.weight"):
        values = values * (c["head_dim"] / c["query_pre_attn_scalar"]) ** 0.5
    elif tensor.dim() > 1:
        return tensor.view(torch.uint16).numpy(), gguf.GGMLQuantizationType.BF16
    return values.to(torch.float32).numpy(), None


def write(folder):
    c, tensors = read(folder)
    writer = gguf.GGUFWriter(OUT / f"{folder}.gguf", gguf.MODEL_ARCH_NAMES[ARCH[c["model_type"]]])
    add_common(writer, c)
    (add_gemma4 if c["model_type"] == "gemma4_text" else add_gemma2_or_3)(writer, c)
    names = gguf.get_tensor_name_map(ARCH[c["model_type"]], c["num_hidden_layers"])
    for name, tensor in tensors.items():
        to = names.get_name(name, try_suffixes=(".weight",)) or names.get_name(name)
        array, kind = stored(name, tensor, c)
        writer.add_tensor(to if to.endswith(".weight") else to + ".weight", array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_mixture():
    writer = gguf.GGUFWriter(OUT / "moe.gguf", "gemma4")
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_expert_count(128)
    writer.add_expert_used_count(8)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(folder):
    """Logits of the fixture's sample len48 by llama.cpp; BF16 weights meet F32 activations there, rounded to BF16."""
    import ctypes
    import llama_cpp

    expected = load_file(FIXTURES / folder / "expected.safetensors")["base/logp/len48"].numpy()
    ids = json.loads((FIXTURES / folder / "meta.json").read_text())["samples"]["len48"]["ids"]
    model = llama_cpp.Llama(model_path=str(OUT / f"{folder}.gguf"), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    model.eval(ids)
    rows = [np.ctypeslib.as_array(ctypes.cast(llama_cpp.llama_get_logits_ith(model._ctx.ctx, t), ctypes.POINTER(ctypes.c_float)), (320,))
            for t in range(len(ids))]
    logp = [row[ids[t + 1]] - np.logaddexp.reduce(row.astype(np.float64)) for t, row in enumerate(rows[:-1])]
    print(f"{folder}: llama.cpp {llama_cpp.__version__}: mean distance from the oracle's log-probabilities {np.abs(logp - expected).mean():.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    for folder in FOLDERS:
        write(folder)
        if options.check:
            check(folder)
    write_mixture()


if __name__ == "__main__":
    main()
