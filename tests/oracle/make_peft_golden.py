#!/usr/bin/env python3
"""Writes tests/golden/peft_targets.json: which modules PEFT adapts for a config, and with what rank and alpha.

    pip install peft==0.21.2 torch transformers
    python3 tests/oracle/make_peft_golden.py
    python3 tests/oracle/make_peft_golden.py --check BASE ADAPTER    # PEFT loads a folder: every tensor has its place, and none is missing

The base is a Llama of 3 layers, given to PEFT on the meta device; a case is the LoraConfig as its file has it.
"""

import argparse
import json
import pathlib
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
QV = ["q_proj", "v_proj"]
CASES = [
    {"target_modules": QV},
    {"target_modules": QV, "layers_to_transform": 1},
    {"target_modules": QV, "layers_to_transform": [0, 2]},
    {"target_modules": QV, "layers_to_transform": []},
    {"target_modules": QV, "layers_to_transform": [1], "layers_pattern": "layers"},
    {"target_modules": QV, "layers_to_transform": [1], "layers_pattern": ["h", "layers"]},
    {"target_modules": QV, "layers_to_transform": 2, "layers_pattern": "la.ers"},
    {"target_modules": ["model.layers.0.self_attn.q_proj", "down_proj"], "layers_to_transform": [1]},
    {"target_modules": ["model.layers.0.self_attn.q_proj", "layers.2.mlp.down_proj", "1.self_attn.o_proj"]},
    {"target_modules": "all-linear"},
    {"target_modules": "ALL-linear", "exclude_modules": ["o_proj", "mlp.down_proj", "model.layers.1.mlp.up_proj"]},
    {"target_modules": "all-linear", "exclude_modules": ".*mlp.*"},
    {"target_modules": [*QV, "k_proj"], "exclude_modules": ["k_proj"]},
    {"target_modules": QV, "exclude_modules": r".*layers\.0\..*"},
    {"target_modules": r".*(?<!vision_)model\.layers\.\d+\.self_attn\.(q|v)_proj"},
    {"target_modules": r"model\.layers\.(?P<n>\d+)\.self_attn\.(q|v)_proj"},
    {"target_modules": r"model\.layers\.(?P<n>[0-9])\.(?:self_attn|mlp)\.(?!gate|up)[a-z]+_proj"},
    {"target_modules": r"(?i)MODEL\.Layers\.[01]{,2}\.self_attn\.k_proj"},
    {"target_modules": r"model\.layers\.\d\.mlp\.(gate|up)"},
    {"target_modules": QV, "rank_pattern": {"layers.1.self_attn.q_proj": 2, "v_proj": 3, r"self_attn\.[qv]_proj": 5}, "alpha_pattern": {"q_proj": 6.5}},
    {"target_modules": QV, "rank_pattern": {r"(?P<l>layers\.(?:0|2))\.self_attn\.q_proj": 7, "proj": 9, "nothing": 4}},
    {"target_modules": QV, "rank_pattern": {r".*layers\.[0-1]\..*": 2}, "alpha_pattern": {r"^model\.layers\.2\.self_attn\.v_proj": 1}},
]


def tiny_llama():
    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, vocab_size=64))


def adapted(case):
    try:
        model = get_peft_model(tiny_llama(), LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, **case))
    except ValueError as error:
        assert "not found in the base model" in str(error), error
        return {}
    layers = {name.removeprefix("base_model.model."): module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    return {name: [layer.r["default"], layer.lora_alpha["default"]] for name, layer in layers.items()}


def check(base, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # PEFT only warns of keys that are missing
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.float32), folder)
    own = {name: p for name, p in model.named_parameters() if "lora_" in name}
    saved = load_file(pathlib.Path(folder) / "adapter_model.safetensors")
    assert len(own) == len(saved), (len(own), len(saved))
    for name, tensor in saved.items():
        key = name.replace(".weight", ".default.weight") if name.endswith(".weight") else name + ".default.weight"
        assert torch.equal(own[key], tensor.to(own[key].dtype)), name
    print(f"{folder}: PEFT gives all {len(saved)} tensors their places")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs=2, metavar=("BASE", "ADAPTER"))
    options = parser.parse_args()
    if options.check:
        return check(*options.check)
    cases = [{"config": case, "adapted": adapted(case)} for case in CASES]
    (GOLDEN / "peft_targets.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


if __name__ == "__main__":
    main()
