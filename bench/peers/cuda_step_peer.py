#!/usr/bin/env python3
"""A LoRA training step with Hugging Face transformers, PEFT and Liger on a CUDA device: the job of
train_step --device cuda --shape <model>.

Random bf16 weights made on the device, rank 16 on every linear layer of the blocks, batch 1, loss on the last quarter of the tokens,
AdamW. One line of JSON for each variant: seconds a step (median after one to warm up), useful TFLOP/s as train_step counts them, peak of
torch's allocator, memory held on the device (of all processes). What does not fit says so and the next variant runs.

    cuda_step_peer.py --shape minicpm5-1b --tokens 8192
    cuda_step_peer.py --shape gemma-4-e4b --tokens 8192 --variants peft,liger,liger-kept

    peft         transformers + PEFT, gradient checkpointing
    liger        the same with Liger's kernels: RMSNorm, gated MLP, RoPE (not Gemma 4's), fused linear cross-entropy
    liger-kept   the same without checkpointing: all activations are kept
"""
import argparse
import contextlib
import gc
import importlib.metadata
import importlib.util
import json
import statistics
import time

import torch

DEVICE = "cuda"
BLOCK = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHAPES = {
    "minicpm5-1b": dict(hidden_size=1536, intermediate_size=4608, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=2,
                        head_dim=128, vocab_size=130560, rope_theta=5e6),
    "llama-3.1-8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=128, vocab_size=128256, rope_theta=5e5),
    "gemma-4-e4b": dict(hidden_size=2560, intermediate_size=10240, num_hidden_layers=42, num_attention_heads=8, num_key_value_heads=2,
                        sliding_window=512, num_kv_shared_layers=18, hidden_size_per_layer_input=256),
    "gemma-4-31b": dict(hidden_size=5376, intermediate_size=21504, num_hidden_layers=60, num_attention_heads=32, num_key_value_heads=16,
                        num_global_key_value_heads=4, sliding_window=1024, hidden_size_per_layer_input=0, attention_k_eq_v=True),
}
VARIANTS = ["peft", "liger", "liger-kept"]  # in this order: Liger replaces classes for the rest of the process


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", choices=SHAPES, default="minicpm5-1b")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--variants", default="peft", help="separated by commas")
    p.add_argument("--adapter-dtype", choices=["bf16", "f32"], default="bf16", help="f32 is PEFT's default and needs autocast")
    p.add_argument("--attention", choices=["sdpa", "cudnn", "flash_attention_2"], default="sdpa",
                   help="cudnn: torch's sdpa held to that kernel, for heads up to 128 wide and no window")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--steps", type=int, default=3, help="measured, after one to warm up")
    p.add_argument("--layers", type=int, default=0, help="fewer only to try the script")
    args = p.parse_args()
    args.variants = [v for v in VARIANTS if v in args.variants.split(",")] or p.error(f"--variants may be {', '.join(VARIANTS)}")
    return args


def config_of(args):
    """The config, and the class of its model."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig, LlamaConfig, LlamaForCausalLM

    shape = dict(SHAPES[args.shape])
    if args.layers > 0:
        shape["num_hidden_layers"] = args.layers
    common = dict(use_cache=False, rms_norm_eps=1e-6, max_position_embeddings=131072,
                  attn_implementation="sdpa" if args.attention == "cudnn" else args.attention)
    if "sliding_window" in shape:
        return Gemma4TextConfig(**shape, **common, final_logit_softcapping=30.0), Gemma4ForCausalLM
    rope = {"rope_type": "default", "rope_theta": shape.pop("rope_theta")}
    return LlamaConfig(**shape, **common, rope_parameters=rope, tie_word_embeddings=False), LlamaForCausalLM


def use_liger(config):
    from liger_kernel.transformers import apply_liger_kernel_to_gemma4_text, apply_liger_kernel_to_llama

    if config.model_type == "llama":
        apply_liger_kernel_to_llama()
    else:
        apply_liger_kernel_to_gemma4_text()


def build(args, variant):
    from peft import LoraConfig, get_peft_model

    config, model_class = config_of(args)
    if variant != "peft":
        use_liger(config)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = model_class(config)
        torch.set_default_dtype(torch.float32)
        targets = BLOCK + (["per_layer_input_gate", "per_layer_projection"] if "e4b" in args.shape else [])
        model = get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0, target_modules=targets),
            autocast_adapter_dtype=args.adapter_dtype == "f32")
    if variant != "liger-kept":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def useful_flop(model, tokens):
    """(4 N L + 4 N_head L/4 + 6 n_lora L + 3.5 A): N frozen weights of the blocks, A the forward's attention over visible pairs."""
    base = model.get_base_model()
    frozen = sum(p.numel() for p in base.model.layers.parameters() if not p.requires_grad and p.dim() == 2)
    lora = sum(p.numel() for p in model.parameters() if p.requires_grad)
    attention = 0
    for layer in base.model.layers:
        window = min(getattr(layer.self_attn, "sliding_window", None) or tokens, tokens)
        pairs = window * (window + 1) / 2 + (tokens - window) * window
        attention += 4 * pairs * layer.self_attn.q_proj.out_features
    return 4 * frozen * tokens + base.lm_head.weight.numel() * tokens + 6 * lora * tokens + 3.5 * attention


def attention_of(args):
    if args.attention != "cudnn":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)


def measure(args, variant):
    model = build(args, variant)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    ids = torch.randint(0, model.config.vocab_size, (1, args.tokens), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    labels = ids.clone()
    labels[:, : args.tokens * 3 // 4] = -100

    seconds, loss = [], None
    torch.cuda.reset_peak_memory_stats()
    for step in range(args.steps + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with attention_of(args):
            with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=args.adapter_dtype == "f32"):
                loss = model(input_ids=ids, labels=labels).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step > 0:
            seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    free, total = torch.cuda.mem_get_info()
    return {"seconds_per_step": round(median, 4), "tokens_per_second": round(args.tokens / median, 1),
            "useful_tflops": round(useful_flop(model, args.tokens) / median / 1e12, 1),
            "trainable": sum(p.numel() for p in parameters), "peak_bytes": torch.cuda.max_memory_allocated(),
            "device_bytes": total - free, "loss": round(loss.item(), 4)}


def versions():
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "peft", "liger-kernel")
                     if importlib.util.find_spec(name.replace("-", "_")))


def run(args):
    for variant in args.variants:
        row = {"peer": versions(), "model": args.shape, "tokens": args.tokens, "variant": variant,
               "adapter_dtype": args.adapter_dtype, "attention": args.attention}
        try:
            row |= measure(args, variant)
        except (RuntimeError, ImportError) as error:  # out of memory is one
            row["error"] = str(error).splitlines()[0]
        gc.collect()
        torch.cuda.empty_cache()
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    run(parse())
