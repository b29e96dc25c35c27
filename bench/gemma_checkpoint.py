#!/usr/bin/env python3
"""Writes Gemma 4 checkpoints without weights worth reading: MLX 4-bit folders for planning and timing.

    gemma_checkpoint.py e4b out                   full width, 6 layers, random weights
    gemma_checkpoint.py 31b out
    gemma_checkpoint.py e4b out --header-only     all layers; the safetensors file ends after its header (sluice plan needs no more)

Shapes are those of the published configs. The six layers keep what matters to a trainer: windowed and full layers, and in e4b three
layers that share the keys and values of two donors. Needs numpy and ml_dtypes.
"""

import argparse
import json
import pathlib
import struct

import ml_dtypes
import numpy as np

VOCABULARY, GROUP, BITS = 262144, 64, 4
PREFIX = "language_model.model."

E4B = dict(hidden_size=2560, num_hidden_layers=42, intermediate_size=10240, num_attention_heads=8, num_key_value_heads=2,
           num_global_key_value_heads=None, attention_k_eq_v=False, sliding_window=512, num_kv_shared_layers=18,
           hidden_size_per_layer_input=256, max_position_embeddings=131072)
B31 = dict(hidden_size=5376, num_hidden_layers=60, intermediate_size=21504, num_attention_heads=32, num_key_value_heads=16,
           num_global_key_value_heads=4, attention_k_eq_v=True, sliding_window=1024, num_kv_shared_layers=0,
           hidden_size_per_layer_input=0, max_position_embeddings=262144)
COMMON = dict(model_type="gemma4_text", head_dim=256, global_head_dim=512, vocab_size=VOCABULARY, vocab_size_per_layer_input=VOCABULARY,
              rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", attention_bias=False,
              enable_moe_block=False, final_logit_softcapping=30.0, use_double_wide_mlp=False, bos_token_id=2, eos_token_id=1, pad_token_id=0,
              rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                               "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}})


def text_config(size, whole):
    config = dict(COMMON, **(E4B if size == "e4b" else B31))
    period = ["sliding_attention"] * 5 + ["full_attention"]
    if whole:
        config["layer_types"] = period * (config["num_hidden_layers"] // 6)
        return config
    config["num_hidden_layers"] = 6
    config["layer_types"] = period
    if size == "e4b":  # donors are layers 1 and 2, sharers 3, 4 and 5
        config["layer_types"] = (["sliding_attention"] * 2 + ["full_attention"]) * 2
        config["num_kv_shared_layers"] = 3
    return config


def modules(c):
    """(name, rows, columns) of every quantised matrix, and (name, length, value) of every vector."""
    hidden, layers, per_layer = c["hidden_size"], c["num_hidden_layers"], c["hidden_size_per_layer_input"]
    matrices = [("embed_tokens", VOCABULARY, hidden)]
    vectors = [("norm.weight", hidden, 1.0)]
    if per_layer:
        matrices += [("embed_tokens_per_layer", VOCABULARY, layers * per_layer), ("per_layer_model_projection", layers * per_layer, hidden)]
        vectors += [("per_layer_projection_norm.weight", per_layer, 1.0)]
    for layer in range(layers):
        at = f"layers.{layer}."
        full = c["layer_types"][layer] == "full_attention"
        head_dim = c["global_head_dim"] if full else c["head_dim"]
        kv_heads = c["num_key_value_heads"]
        if full and c["attention_k_eq_v"]:
            kv_heads = c["num_global_key_value_heads"]
        query, keys = c["num_attention_heads"] * head_dim, kv_heads * head_dim
        own = layer < layers - c["num_kv_shared_layers"]
        matrices += [(at + "self_attn.q_proj", query, hidden), (at + "self_attn.o_proj", hidden, query)]
        vectors += [(at + "self_attn.q_norm.weight", head_dim, 0.3)]  # scores are not scaled, so q and k are
        if own:
            matrices += [(at + "self_attn.k_proj", keys, hidden)]
            vectors += [(at + "self_attn.k_norm.weight", head_dim, 0.3)]
            if not (full and c["attention_k_eq_v"]):
                matrices += [(at + "self_attn.v_proj", keys, hidden)]
        wide = c["intermediate_size"]
        matrices += [(at + "mlp.gate_proj", wide, hidden), (at + "mlp.up_proj", wide, hidden), (at + "mlp.down_proj", hidden, wide)]
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            vectors += [(at + norm + ".weight", hidden, 1.0)]
        vectors += [(at + "layer_scalar", 1, 0.8)]
        if per_layer:
            matrices += [(at + "per_layer_input_gate", per_layer, hidden), (at + "per_layer_projection", hidden, per_layer)]
            vectors += [(at + "post_per_layer_input_norm.weight", hidden, 1.0)]
    return matrices, vectors


def bf16(values):
    return np.asarray(values, dtype=ml_dtypes.bfloat16)


def matrix_parts(name, rows, columns, random):
    """Codes of uniform bits and scales of one size: entries of mean 0 and standard deviation 1 / sqrt(columns)."""
    step = 1 / np.sqrt(columns) / np.sqrt((4 ** BITS - 1) / 12)
    yield name + ".weight", "U32", [rows, columns * BITS // 32], lambda: random.integers(0, 2 ** 32, rows * columns * BITS // 32, dtype=np.uint32)
    yield name + ".scales", "BF16", [rows, columns // GROUP], lambda: bf16(np.full(rows * columns // GROUP, step))
    yield name + ".biases", "BF16", [rows, columns // GROUP], lambda: bf16(np.full(rows * columns // GROUP, -step * (2 ** BITS - 1) / 2))


def tensors(config, seed):
    random = np.random.default_rng(seed)
    matrices, vectors = modules(config)
    for name, rows, columns in matrices:
        yield from matrix_parts(PREFIX + name, rows, columns, random)
    for name, length, value in vectors:
        yield PREFIX + name, "BF16", [length], lambda length=length, value=value: bf16(np.full(length, value))


def write_safetensors(path, listed, header_only):
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, dtype, shape, _ in listed:
        size = int(np.prod(shape)) * (4 if dtype == "U32" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if not header_only:
            for _, _, _, make in listed:
                file.write(make().tobytes())
    return at


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=["e4b", "31b"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--header-only", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = text_config(options.size, whole=options.header_only)
    options.folder.mkdir(parents=True, exist_ok=True)
    size = write_safetensors(options.folder / "model.safetensors", list(tensors(config, options.seed)), options.header_only)
    whole = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": config,
             "quantization": {"group_size": GROUP, "bits": BITS, "mode": "affine"}}
    (options.folder / "config.json").write_text(json.dumps(whole, indent=2) + "\n")
    print(f"{options.folder}: {config['num_hidden_layers']} layers, {size / 2**30:.3f} GiB of tensors" + (" (header only)" if options.header_only else ""))


if __name__ == "__main__":
    main()
