#!/usr/bin/env python3
"""The rows of bench/cuda_op_bench.cpp with PyTorch, in the same table: attention, linear layers with and without LoRA, the head,
elementwise ops.

    cuda_ops_peer.py
    cuda_ops_peer.py --filter "attention,head" --tokens 2048 --json rows.json

Attention is what torch has: cuDNN and FlashAttention-2, which takes windows too, and for head dimensions above 256 the
memory-efficient kernel. Backward times are of torch.autograd.grad on a kept graph. "MiB" is what the allocator held above the data.
"""
import argparse
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
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            print(f"{name:<66} failed: {str(error).splitlines()[0]}", flush=True)
            self.rows.append({"op": name, "error": str(error).splitlines()[0]})

    def measure(self, name, call, flop, size):
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(self.args.warmups):
            call()
        once = self.timed(call, 1)
        runs = 1 if once >= 1 else min(50, math.ceil(1 / max(once, 1e-3)))
        ms = statistics.median(self.timed(call, runs) for _ in range(self.args.repeats))
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
                                                 (16, 2, 128, 0, 8192)]:
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


def linear_rows(b):
    n, rank = b.args.tokens, b.args.rank
    for width, out in [(1536, 2048), (1536, 4608), (4608, 1536), (4096, 14336), (5376, 21504)]:
        about = f"bf16 {width} -> {out}, {n} rows"
        names = [f"linear {which}, {about}" for which in ("forward, base alone", "forward, adapted", "backward, base alone", "backward, adapted")]
        if not b.wants(*names):
            continue
        w, x, dy = randn(out, width, scale=0.02), randn(n, width, grad=True), randn(n, out)
        lora_a, lora_b = randn(rank, width, scale=0.02, grad=True), randn(out, rank, scale=0.02, grad=True)
        flop = 2 * n * width * out
        adapted = lambda: F.linear(x, w) + F.linear(F.linear(x, lora_a), lora_b) * 2.0
        with torch.no_grad():
            b.row(names[0], lambda: F.linear(x, w), flop=flop)
            b.row(names[1], adapted, flop=flop)
            b.row(names[2], lambda: dy @ w, flop=flop)
        y = adapted()
        b.row(names[3], lambda: torch.autograd.grad(y, (x, lora_a, lora_b), dy, retain_graph=True), flop=flop)
        del y
        torch.cuda.empty_cache()


def head_rows(b):
    for width, vocabulary, softcap in [(1536, 130560, 0), (2560, 262144, 30), (4096, 128256, 0)]:
        for rows in (8192, 2048):
            about = f"bf16 {width} x {vocabulary}{' softcap' if softcap else ''}, {rows} rows"
            both, alone = f"head by rows, {about}", f"head by rows, logp alone, {about}"
            if not b.wants(both, alone):
                continue
            w, h = randn(vocabulary, width, scale=0.02), randn(rows, width, scale=8 / (0.02 * math.sqrt(width)))
            targets = torch.randint(0, vocabulary, (rows,), device="cuda")

            def chunks(backward):
                for begin in range(0, rows, b.args.head_rows):
                    part = h[begin:begin + b.args.head_rows].detach().requires_grad_(backward)
                    logits = F.linear(part, w)
                    if softcap:
                        logits = softcap * torch.tanh(logits / softcap)
                    loss = F.cross_entropy(logits.float(), targets[begin:begin + b.args.head_rows], reduction="sum")
                    if backward:
                        loss.backward()

            flop = 2 * rows * width * vocabulary
            b.row(both, lambda: chunks(True), flop=2 * flop)
            with torch.no_grad():
                b.row(alone, lambda: chunks(False), flop=flop)
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
    p.add_argument("--head-rows", type=int, default=2048, help="rows of the head at once")
    p.add_argument("--repeats", type=int, default=10)
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
