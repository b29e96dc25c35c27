#!/usr/bin/env python3
"""A LoRA training step with Hugging Face transformers and PEFT on a CUDA device: the job of
train_step --device cuda --shape <model>.

Random bf16 weights made on the device, rank 16 on all seven linear layers, batch 1, loss on the last quarter of the tokens, AdamW.
One line of JSON: seconds a step (median after one to warm up), tokens/s, peak of torch's allocator, memory held on the device.

    cuda_step_peer.py --shape minicpm5-1b --tokens 8192
    cuda_step_peer.py --shape llama-3.1-8b --tokens 8192 --no-checkpointing
"""
import argparse
import json
import statistics
import time

SHAPES = {
    "minicpm5-1b": dict(hidden_size=1536, intermediate_size=4608, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=2,
                        head_dim=128, vocab_size=130560, rms_norm_eps=1e-6, theta=5e6),
    "llama-3.1-8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8,
                         head_dim=128, vocab_size=128256, rms_norm_eps=1e-5, theta=5e5),
}


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", choices=SHAPES, default="minicpm5-1b")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--no-checkpointing", action="store_true", help="keep all activations")
    p.add_argument("--adapter-dtype", choices=["bf16", "f32"], default="bf16", help="f32 is PEFT's default")
    p.add_argument("--attention", choices=["sdpa", "flash_attention_2"], default="sdpa")
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--steps", type=int, default=3, help="measured, after one to warm up")
    p.add_argument("--layers", type=int, default=0, help="fewer only to try the script")
    return p.parse_args()


def build(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(SHAPES[args.shape])
    theta = shape.pop("theta")
    if args.layers > 0:
        shape["num_hidden_layers"] = args.layers
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(
            **shape, max_position_embeddings=131072, tie_word_embeddings=False, use_cache=False,
            attn_implementation=args.attention, rope_parameters={"rope_type": "default", "rope_theta": theta}))
    torch.set_default_dtype(torch.float32)
    if not args.no_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(
        task_type="CAUSAL_LM", r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
        autocast_adapter_dtype=args.adapter_dtype == "f32")
    return model.train()


def main():
    args = parse()
    import torch
    model = build(args)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    vocabulary = SHAPES[args.shape]["vocab_size"]
    ids = torch.randint(0, vocabulary, (1, args.tokens), generator=torch.Generator().manual_seed(1)).cuda()
    labels = ids.clone()
    labels[:, : args.tokens * 3 // 4] = -100

    seconds, loss = [], None
    for step in range(args.steps + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.adapter_dtype == "f32"):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step > 0:
            seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds)
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({
        "peer": f"torch {torch.__version__} + peft", "model": args.shape, "tokens": args.tokens,
        "checkpointing": not args.no_checkpointing, "adapter_dtype": args.adapter_dtype, "attention": args.attention,
        "seconds_per_step": round(median, 4), "tokens_per_second": round(args.tokens / median, 1),
        "trainable": sum(p.numel() for p in parameters), "peak_bytes": torch.cuda.max_memory_allocated(),
        "device_bytes": total - free, "loss": round(loss.item(), 4)}))


if __name__ == "__main__":
    main()
