#!/usr/bin/env bash
# What sharing the prompt of a preference pair saves on SmolLM2-135M: step time of the forest over that of two separate sequences, and its
# memory over that of SFT on as many tokens, measured one after the other in one run. The same schedule for all three (each layer's input
# kept), so that the ratios are those of the work. Writes bench/results/<date>-preference_step.md.
#
#   bench/preference_step.sh                    THREADS=2 PROMPT=6144 RESPONSE=1024 STEPS=3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
threads=${THREADS:-$(nproc)} prompt=${PROMPT:-6144} response=${RESPONSE:-1024} steps=${STEPS:-3}

model=$(scripts/fetch_model.sh)
cmake --preset bench >/dev/null
cmake --build --preset bench --target preference_step >/dev/null
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for layout in forest separate sft; do
  echo "… $layout" >&2
  build/bench/bench/preference_step --model "$model" --layout $layout --prompt "$prompt" --response "$response" \
    --threads "$threads" --steps "$steps" | tee -a "$lines" >&2
done
mkdir -p bench/results
python3 - "$lines" "$prompt" "$response" <<'PYTHON' | tee "bench/results/$(date -u +%Y-%m-%d)-preference_step.md"
import json, os, platform, sys
rows = {r["layout"]: r for r in map(json.loads, open(sys.argv[1]))}
cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
print(f"# A step on a preference pair, SmolLM2-135M: prompt {sys.argv[2]}, two answers of {sys.argv[3]}\n")
print(f"{cpu}, {os.cpu_count()} cores. `bench/preference_step.sh`\n")
print("| layout | tokens | s/step | step arena MiB | schedule |\n| --- | --- | --- | --- | --- |")
for r in rows.values():
    print(f"| {r['layout']} | {r['tokens']} | {r['seconds_per_step']:.2f} | {r['step_arena_bytes'] / 2**20:.0f} | {r['schedule']} |")
f, s, t = rows["forest"], rows["separate"], rows["sft"]
print(f"\nstep time, forest over two sequences: {f['seconds_per_step'] / s['seconds_per_step']:.3f} (target <= 0.65)")
print(f"memory, forest over SFT of as many tokens: {f['step_arena_bytes'] / t['step_arena_bytes']:.3f} (target <= 1.15)")
PYTHON
