#!/usr/bin/env python3
"""The table of bench/gemma_step.sh from its JSON lines: planned memory beside what the arenas and the system measured."""
import datetime
import json
import sys

from report import hardware, mib, table


def main():
    with open(sys.argv[1]) as f:
        lines = [json.loads(line) for line in f]
    print(f"# A LoRA step of Gemma 4 at full width, six layers, MLX 4-bit: planned and measured memory, {datetime.date.today().isoformat()}\n")
    print(f"{hardware()}; {lines[0]['threads']} thread\n")
    print("Random weights (bench/gemma_checkpoint.py), rank 16 on all linear layers, loss on the last quarter of the tokens, bf16; one step. MiB.\n")
    rows = []
    for r in lines:
        planned, own = r["planned_bytes"], r["own_resident_bytes"]
        rows.append([r["size"], f"{r['tokens']:,}", r["schedule"], mib(r["step_arena_planned"]),
                     "the same to the byte" if r["step_arena_peak"] == r["step_arena_planned"] else mib(r["step_arena_peak"]),
                     mib(r["parameter_bytes"]), mib(planned), mib(own), f"{100 * (own / planned - 1):+.3f} %", mib(r["mapped_resident_bytes"]),
                     f"{r['cpu_seconds']:.0f}", f"{r['loss']:.2f}"])
    table(["model", "tokens", "schedule", "step arena, planned", "used", "adapter, gradient, moments", "process in all, planned",
           "the system's RssAnon", "difference", "mapped file resident", "CPU seconds", "loss"], rows)
    print("RssAnon is what the system counts as the process's own memory, without the mapped file. CPU seconds are the whole process's.\n")
    print("Commands:\n\n```\nbench/gemma_step.sh")
    for r in lines:
        print(f"  bench/gemma_checkpoint.py {r['size']} {r['size']}6")
        print(f"  train_step --model {r['size']}6 --tokens {r['tokens']} --memory-mib {r['memory_mib']} --threads {r['threads']} --steps 0")
    print("```")


if __name__ == "__main__":
    main()
