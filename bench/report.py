#!/usr/bin/env python3
"""Tables in Markdown from the JSON lines that bench/train_step.sh gathers, with commands, hardware and date."""
import datetime
import json
import platform
import re
import subprocess
import sys


def hardware():
    text = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout

    def field(name):
        found = re.search(rf"^{name}:\s*(.*)$", text, re.M)
        return found.group(1) if found else "?"

    flags = field("Flags").split()
    extensions = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]
    with open("/proc/meminfo") as f:
        gib = int(f.readline().split()[1]) / 2**20
    cores = field(r"CPU\(s\)")
    return f"{field('Model name')}, {cores} cores, {gib:.0f} GiB, {' '.join(extensions)}; {platform.system()} {platform.release()}"


def mib(count):
    return f"{count / 2**20:,.0f}"


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(c) for c in row) + " |")
    print()


def steps(lines, gemm):
    sluice = {r["tokens"]: r for r in lines if r["label"] == "step sluice"}
    rows = []
    for r in (r for r in lines if r["label"].startswith("step")):
        ours = sluice.get(r["tokens"])
        ratio = ours["tokens_per_second"] / r["tokens_per_second"] if ours else 0
        memory = r["peak_rss_bytes"] - r.get("mapped_resident_bytes", 0)
        # One job, one count of useful work: Sluice's, whatever the peer recomputes.
        tflops = ours["useful_tflops"] / ratio if ours else 0
        share = f"{100 * tflops * 1e3 / gemm:.0f} %" if gemm else "?"
        rows.append([r["label"][5:], r["tokens"], f"{r['seconds_per_step']:.3f}", f"{r['tokens_per_second']:,.0f}",
                     mib(memory), f"{tflops:.3f}", share, "" if r is ours else f"{ratio:.2f}"])
    table(["program", "tokens", "s/step", "tokens/s", "memory, MiB", "useful TFLOP/s", "of large GEMM", "Sluice is faster by"], rows)


def main():
    with open(sys.argv[1]) as f:
        lines = [json.loads(line) for line in f if line.startswith("{")]
    gemm = max((r["gflops"] for r in lines if r["label"].startswith("gemm")), default=0)
    print(f"# A LoRA step of SmolLM2-135M, {datetime.date.today().isoformat()}\n\n{hardware()}\n")
    print("Rank 16 on all linear layers, batch 1, loss on the last quarter of the tokens, bf16; medians after a warm-up.")
    print("Memory is the peak of the process without what is mapped from the model's file.\n")
    steps(lines, gemm)
    table(["large bf16 matrix product", "GFLOP/s"], [[r["peer"], f"{r['gflops']:,.0f}"] for r in lines if r["label"].startswith("gemm")])
    infer = [r for r in lines if r["label"].startswith("infer")]
    if infer:
        table(["program", "prompt", "prefill tokens/s", "decode tokens/s"],
              [[r["peer"], r["prompt"], f"{r['prefill_tokens_per_second']:,.0f}", f"{r['decode_tokens_per_second']:,.0f}"] for r in infer])
    print("Commands:\n\n```")
    print("bench/train_step.sh")
    for r in lines:
        print("  " + r["command"])
    print("```")


if __name__ == "__main__":
    main()
