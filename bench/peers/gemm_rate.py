#!/usr/bin/env python3
"""This machine's large bf16 matrix product with torch: the best GFLOP/s of a few shapes, as one line of JSON."""
import argparse
import json
import time

import torch

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--size", type=int, default=4096)
p.add_argument("--repeats", type=int, default=5)
args = p.parse_args()
torch.set_num_threads(args.threads)
a = torch.randn(args.size, args.size, dtype=torch.bfloat16)
b = torch.randn(args.size, args.size, dtype=torch.bfloat16)
rates = []
for _ in range(args.repeats + 1):
    begin = time.perf_counter()
    a @ b.T
    rates.append(2 * args.size**3 / (time.perf_counter() - begin) / 1e9)
print(json.dumps({"peer": f"torch {torch.__version__}", "size": args.size, "threads": args.threads,
                  "gflops": round(max(rates[1:]), 1)}))
