#!/usr/bin/env python3
"""The rows of bench/cuda_op_bench.cpp with PyTorch, PEFT and Liger, in the same table: attention, linear layers with and without
LoRA, the head, elementwise ops.

    cuda_ops_peer.py
    cuda_ops_peer.py --filter "attention,head" --tokens 2048 --json rows.json

Attention is what torch has: cuDNN and FlashAttention-2, which takes windows too, and for head dimensions above 256 the
memory-efficient kernel. Linear layers with an adapter are PEFT's, its adapter in bf16, or in float32 under autocast as PEFT makes
it; the base alone is torch's product. The head is Liger's fused linear cross-entropy, or all logits at once. Backward times are of
torch.autograd.grad on a kept graph. "MiB" is what the allocator held above the data.
"""
import argparse
import contextlib
import json
import math
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class Bench:
    def __init__(self, args):
        self.args, self.rows = args, []
        self.wanted = [w for w in args.filter.split(",") if w]
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        print(f"{'op':<66} {'ms':>10} {'TFLOP/s':>9} {'GB/s':>9} {'MiB':>12}", flush=True)

    def wants(self, *names):
        return not self.wanted or any(w in name for w in self.wanted for name in names)

    def row(self, name, call, flop=0, size=0):
        if not self.wants(name):
            return
        try:
            self.measure(name, call, flop, size)
        except (RuntimeError, ImportError) as error:  # out of memory is one
            print(f"{name:<66} failed: {str(error).splitlines()[0]}", flush=True)
            self.rows.append({"op": name, "error": str(error).splitlines()[0]})

    def measure(self, name, call, flop, size):
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()  # compiles what is compiled
        once = self.timed(call, 1)
        for _ in range(self.args.warmups - 1 if once < 100 else 0):
            call()
        once = self.timed(call, 1) if once < 100 else once
        runs = 1 if once >= 1 else min(50, math.ceil(1 / max(once, 1e-3)))
        repeats = min(self.args.repeats, int(1000 * self.args.seconds / (once * runs)))
        ms = statistics.median(self.timed(call, runs) for _ in range(repeats)) if repeats > 0 else once
        extra = (torch.cuda.max_memory_allocated() - held) / 2**20
        tflops, gbs = flop / ms / 1e9, size / ms / 1e6
        number = lambda value: f"{value:.1f}" if value > 0 else "-"
        print(f"{name:<66} {ms:>10.4f} {number(tflops):>9} {number(gbs):>9} {extra:>12.1f}", flush=True)
        self.rows.append({"op": name, "ms": ms, "tflops": tflops, "gbs": gbs, "scratch_mib": extra})

    @staticmethod
    def timed(call, runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(runs):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / runs


def randn(*shape, scale=1.0, dtype=torch.bfloat16, grad=False):
    return (torch.randn(*shape, device="cuda", dtype=torch.float32) * scale).to(dtype).requires_grad_(grad)


def visible_pairs(tokens, window):
    if window == 0 or window >= tokens:
        return tokens * (tokens + 1) / 2
    return window * (window + 1) / 2 + (tokens - window) * window


def attention_rows(b):
    for heads, kv_heads, dim, window, tokens in [(32, 8, 128, 0, 32768), (32, 4, 512, 0, 8192), (32, 4, 512, 0, 32768),
                                                 (32, 16, 256, 1024, 8192), (32, 16, 256, 1024, 32768), (8, 2, 256, 512, 32768),
                                                 (16, 2, 128, 0, 8192), (32, 8, 128, 1024, 32768), (32, 8, 64, 0, 16384),
                                                 (32, 8, 64, 1024, 16384), (16, 4, 256, 0, 16384), (32, 8, 96, 0, 8192)]:
        about = f"{f'window {window}' if window else 'causal'} {heads}/{kv_heads} D {dim} N {tokens}"
        forward, backward = f"attention forward, {about}", f"attention backward, {about}"
        if not b.wants(forward, backward):
            continue
        flop = visible_pairs(tokens, window) * heads * dim
        if dim <= 256:
            flash(b, heads, kv_heads, dim, window, tokens, forward, backward, flop)
        if window == 0:
            for backend, label in ([(SDPBackend.CUDNN_ATTENTION, "cuDNN")] if dim <= 128 else [(SDPBackend.EFFICIENT_ATTENTION, "efficient")]):
                sdpa(b, backend, label, heads, kv_heads, dim, tokens, forward, backward, flop)
        torch.cuda.empty_cache()


def flash(b, heads, kv_heads, dim, window, tokens, forward, backward, flop):
    q = randn(1, tokens, heads, dim, grad=True)
    k, v = (randn(1, tokens, kv_heads, dim, grad=True) for _ in range(2))
    do = randn(1, tokens, heads, dim)
    left = {"window_size_left": window - 1, "window_size_right": 0} if window else {}
    run = lambda: torch.ops.aten._flash_attention_forward(q, k, v, None, None, tokens, tokens, 0.0, True, False, **left)[0]
    keep_graph(b, run, (q, k, v), do, forward + " flash", backward + " flash", flop)


def sdpa(b, backend, label, heads, kv_heads, dim, tokens, forward, backward, flop):
    q = randn(1, heads, tokens, dim, grad=True)
    grouped = backend == SDPBackend.CUDNN_ATTENTION  # the other kernels want the heads repeated
    k, v = (randn(1, kv_heads if grouped else heads, tokens, dim, grad=True) for _ in range(2))
    do = randn(1, heads, tokens, dim)

    def run():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

    keep_graph(b, run, (q, k, v), do, f"{forward} {label}", f"{backward} {label}", flop)


def keep_graph(b, run, inputs, do, forward, backward, flop):
    with torch.no_grad():
        b.row(forward, run, flop=4 * flop)
    try:
        o = run()
    except RuntimeError:
        return
    b.row(backward, lambda: torch.autograd.grad(o, inputs, do, retain_graph=True), flop=10 * flop)


def peft_layer(weight, rank, dtype):
    """PEFT's layer around a frozen weight, and its A and B."""
    from peft import LoraConfig, inject_adapter_in_model

    out, width = weight.shape
    base = torch.nn.Linear(width, out, bias=False, device="meta")
    base.weight = torch.nn.Parameter(weight, requires_grad=False)
    model = inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["proj"]), torch.nn.ModuleDict({"proj": base}))
    layer = model["proj"].train()
    lora_a, lora_b = layer.lora_A["default"].to(dtype), layer.lora_B["default"].to(dtype)
    with torch.no_grad():
        lora_b.weight.normal_(std=0.02)  # zero at first
    return layer, lora_a.weight, lora_b.weight


def linear_rows(b):
    n = b.args.tokens
    for width, out in [(1536, 2048), (1536, 4608), (4608, 1536), (4096, 14336), (5376, 21504)]:
        about = f"bf16 {width} -> {out}, {n} rows"
        forward, backward = "linear forward, ", "linear backward, "
        if not b.wants(*(way + which + about for way in (forward, backward) for which in ("base alone, ", "adapted, "))):
            continue
        w, x, dy = randn(out, width, scale=0.02), randn(n, width, grad=True), randn(n, out)
        flop = 2 * n * width * out
        with torch.no_grad():
            b.row(forward + "base alone, " + about, lambda: F.linear(x, w), flop=flop)
            b.row(backward + "base alone, " + about, lambda: dy @ w, flop=flop)
        for label, dtype in (("bf16", torch.bfloat16), ("autocast", torch.float32)):
            peft_rows(b, w, x, dy, dtype, f"{forward}adapted, {about} PEFT {label}", f"{backward}adapted, {about} PEFT {label}", flop)
        torch.cuda.empty_cache()


def peft_rows(b, w, x, dy, dtype, forward, backward, flop):
    layer, lora_a, lora_b = peft_layer(w, b.args.rank, dtype)

    def run():
        with torch.autocast(w.device.type, dtype=torch.bfloat16) if dtype == torch.float32 else contextlib.nullcontext():
            return layer(x)

    b.row(forward, run, flop=flop)  # with the graph that the backward reads
    y = run()
    b.row(backward, lambda: torch.autograd.grad(y, (x, lora_a, lora_b), dy, retain_graph=True), flop=flop)


def head_rows(b):
    for width, vocabulary, softcap in [(1536, 130560, None), (2560, 262144, 30.0), (4096, 128256, None)]:
        for rows in (8192, 2048):
            about = f"bf16 {width} x {vocabulary}{' softcap' if softcap else ''}, {rows} rows"
            both, alone = f"head by rows, {about}", f"head by rows, logp alone, {about}"
            if not b.wants(both, alone):
                continue
            w, h = randn(vocabulary, width, scale=0.02), randn(rows, width, scale=8 / (0.02 * math.sqrt(width)), grad=True)
            targets = torch.randint(0, vocabulary, (rows,), device="cuda")

            def full(h):
                logits = F.linear(h, w)
                if softcap:
                    logits = softcap * torch.tanh(logits / softcap)
                return F.cross_entropy(logits.float(), targets)

            def liger(h):
                from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

                return liger_fused_linear_cross_entropy(h, w, targets, softcap=softcap)

            flop = 2 * rows * width * vocabulary
            for label, loss in (("Liger", liger), ("full logits", full)):
                b.row(f"{both} {label}", lambda: torch.autograd.grad(loss(h), h), flop=2 * flop)
                torch.cuda.empty_cache()
                b.row(f"{alone} {label}", lambda: loss(h.detach()), flop=flop)
                torch.cuda.empty_cache()
            del w, h
            torch.cuda.empty_cache()


def elementwise_rows(b):
    n, width, inner = b.args.tokens, 4096, 14336
    rows = f", {n} rows"
    x, dy, weight = randn(n, width, grad=True), randn(n, width), randn(width)
    size = n * width * 2
    with torch.no_grad():
        b.row("rmsnorm forward, 4096" + rows, lambda: F.rms_norm(x, (width,), weight), size=2 * size)
    y = F.rms_norm(x, (width,), weight)
    b.row("rmsnorm backward, 4096" + rows, lambda: torch.autograd.grad(y, x, dy, retain_graph=True), size=3 * size)
    gate, up, dz = randn(n, inner, grad=True), randn(n, inner, grad=True), randn(n, inner)
    gated = lambda: F.silu(gate) * up
    with torch.no_grad():
        b.row("gated forward, 14336" + rows, gated, size=3 * n * inner * 2)
    z = gated()
    b.row("gated backward, 14336" + rows, lambda: torch.autograd.grad(z, (gate, up), dz, retain_graph=True), size=5 * n * inner * 2)
    whole = randn(n, width, dtype=torch.float32)
    b.row("scale into, f32 to bf16, 4096" + rows, lambda: (whole * 0.5).to(torch.bfloat16), size=3 * size)
    b.row("zero, 4096" + rows, lambda: dy.zero_(), size=size)
    parameter = torch.nn.Parameter(randn(42_000_000, dtype=torch.float32))
    parameter.grad = randn(42_000_000, dtype=torch.float32)
    optimizer = torch.optim.AdamW([parameter], lr=1e-4, fused=True)
    b.row("adamw, 42 M parameters", optimizer.step, size=7 * 42_000_000 * 4)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--filter", default="", help="parts of names, separated by commas")
    p.add_argument("--tokens", type=int, default=8192)
    p.add_argument("--rank", type=int, default=16)
    p.add_argument("--repeats", type=int, default=10)
    p.add_argument("--seconds", type=float, default=1, help="of a row's repeats at most")
    p.add_argument("--warmups", type=int, default=3)
    p.add_argument("--json")
    args = p.parse_args()
    torch.manual_seed(0)
    b = Bench(args)
    for group in (attention_rows, linear_rows, head_rows, elementwise_rows):
        group(b)
        torch.cuda.empty_cache()
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "rows": b.rows}, file, indent=1)


if __name__ == "__main__":
    main()
