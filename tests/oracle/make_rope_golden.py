#!/usr/bin/env python3
"""Writes tests/golden/rope.json: what transformers makes of a config's rotary settings.

    pip install torch transformers==5.24.0
    python3 tests/oracle/make_rope_golden.py

A case is a config.json of the fixtures with changes; its values are the buffers of the model's rotary embedding: inverse frequencies in float32
and the factor on cos and sin, for Gemma 3 and 4 by kind of layer.
"""

import copy
import json
import pathlib

from transformers import AutoConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
CLASSES = {"llama-gqa": LlamaRotaryEmbedding, "qwen3-like": Qwen3RotaryEmbedding, "gemma3-like": Gemma3RotaryEmbedding,
           "gemma4-e4b-like": Gemma4TextRotaryEmbedding}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
GEMMA3 = {"sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}, "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500000.0}}

# folder, changes (null takes a key out)
CASES = [
    ("llama-gqa", {}),
    ("llama-gqa", {"rope_theta": None}),
    ("llama-gqa", {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}}),
    ("llama-gqa", {"rope_theta": None, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
                   "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}}),
    ("llama-gqa", {"rope_scaling": {**YARN, "rope_theta": 30000.0}}),
    ("llama-gqa", {"rope_scaling": {}, "rope_parameters": {**YARN, "rope_theta": 7000}}),
    ("llama-gqa", {"rope_scaling": {"type": "yarn", **YARN, "rope_type": "linear"}}),
    ("llama-gqa", {"rope_scaling": {"type": "linear", "factor": 2.5}}),
    ("llama-gqa", {"rope_scaling": YARN}),
    ("llama-gqa", {"rope_scaling": {**YARN, "attention_factor": 1.5}}),
    ("llama-gqa", {"rope_scaling": {**YARN, "mscale": 1.0}}),
    ("llama-gqa", {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
    ("llama-gqa", {"rope_scaling": {**YARN, "mscale": 0.8, "mscale_all_dim": 1.3, "attention_factor": 1.1}}),
    ("llama-gqa", {"rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": 2}}),
    ("llama-gqa", {"rope_scaling": {**YARN, "beta_fast": None, "beta_slow": 0}}),
    ("llama-gqa", {"rope_scaling": {**YARN, "truncate": False}}),
    ("llama-gqa", {"rope_scaling": {**YARN, "factor": None}, "max_position_embeddings": 2048}),
    ("llama-gqa", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 512}),
    ("llama-gqa", {"rope_scaling": YARN, "original_max_position_embeddings": 1024}),
    ("llama-gqa", {"rope_scaling": {**YARN, "factor": 0.5}}),
    ("llama-gqa", {"rope_scaling": LLAMA3}),
    ("llama-gqa", {"rope_scaling": {k: v for k, v in LLAMA3.items() if "original" not in k}, "max_position_embeddings": 128}),
    ("llama-gqa", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 100}),
    ("qwen3-like", {"rope_scaling": YARN}),
    ("qwen3-like", {"rope_theta": None, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000000}}),
    ("gemma3-like", {}),
    ("gemma3-like", {"rope_scaling": None, "rope_theta": None, "rope_local_base_freq": None}),
    ("gemma3-like", {"rope_scaling": None, "rope_theta": None, "rope_local_base_freq": None, "rope_parameters": GEMMA3}),
    ("gemma3-like", {"rope_scaling": None, "rope_theta": 1234.0, "rope_parameters": GEMMA3}),
    ("gemma3-like", {"rope_scaling": {"rope_type": "linear", "factor": 5.0}, "rope_parameters": GEMMA3}),
    ("gemma3-like", {"rope_scaling": None, "rope_parameters": {**GEMMA3, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}}),
    ("gemma4-e4b-like", {}),
    ("gemma4-e4b-like", {"rope_parameters": None}),
    ("gemma4-e4b-like", {"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                                             "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.4, "rope_theta": 2e5, "factor": 2.0}}}),
]


def text_config(folder, changes):
    config = json.loads((GOLDEN / "fixtures" / folder / "config.json").read_text())
    text = config.get("text_config", config)
    for key, value in copy.deepcopy(changes).items():  # transformers writes into what it is given
        text.pop(key, None)
        if value is not None:
            text[key] = value
    kind = text.pop("model_type")
    return AutoConfig.for_model(kind, **text)


def values(folder, changes):
    embedding = CLASSES[folder](text_config(folder, changes))
    kinds = ["sliding_attention_", "full_attention_"] if folder.startswith("gemma") else [""]
    return [{"frequencies": getattr(embedding, kind + "inv_freq").tolist(), "factor": getattr(embedding, kind + "attention_scaling")} for kind in kinds]


def main():
    cases = [{"folder": folder, "changes": changes, "ropes": values(folder, changes)} for folder, changes in CASES]
    (GOLDEN / "rope.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main()
