#!/usr/bin/env python3
"""A LoRA training step of a SmolLM2-135M-shaped model with PyTorch and PEFT on the CPU.

Random weights, rank 16 on all seven linear layers, batch 1, loss on the last quarter of the tokens, AdamW. One line of
JSON: tokens/s (median of the steps after the first), peak resident memory, loss.

    pytorch_lora_step.py --tokens 1024 --checkpointing --threads 2
"""
import argparse
import json
import resource
import statistics
import time


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--checkpointing", action="store_true", help="recompute activations layer by layer")
    p.add_argument("--dtype", choices=["bf16", "f32"], default="bf16", help="of the frozen weights; adapters are f32")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--steps", type=int, default=3, help="measured, after one to warm up")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--layers", type=int, default=30, help="fewer only to try the script")
    return p.parse_args()


def build(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[args.dtype]
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)  # weights are made in their dtype: no float32 copy in the peak
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=args.layers, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True, use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}))
    torch.set_default_dtype(torch.float32)
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(
        task_type="CAUSAL_LM", r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
    return model.train()


def main():
    args = parse()
    import torch
    torch.set_num_threads(args.threads)
    model = build(args)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    ids = torch.randint(0, 49152, (1, args.tokens), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, : args.tokens * 3 // 4] = -100

    seconds, loss = [], None
    for step in range(args.steps + 1):
        begin = time.perf_counter()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step > 0:
            seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    print(json.dumps({
        "peer": f"torch {torch.__version__} + peft", "tokens": args.tokens, "dtype": args.dtype,
        "checkpointing": args.checkpointing, "threads": args.threads, "seconds_per_step": round(median, 4),
        "tokens_per_second": round(args.tokens / median, 1), "trainable": sum(p.numel() for p in parameters),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "loss": round(loss.item(), 4)}))


if __name__ == "__main__":
    main()
