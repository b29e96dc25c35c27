#!/usr/bin/env bash
# A LoRA training step of SmolLM2-135M in Sluice and in PyTorch + PEFT, and decoding beside llama.cpp, measured one after
# the other in one run on this machine. Prints tables in Markdown and writes them to bench/results/<date>-train_step.md.
#
#   bench/train_step.sh                         THREADS=2 TOKENS="1024 4096" MEMORY_MIB=600 STEPS=3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
threads=${THREADS:-$(nproc)} steps=${STEPS:-3} memory=${MEMORY_MIB:-600}
read -r -a tokens <<<"${TOKENS:-1024 4096}"

model=$(realpath --relative-to=. "$(scripts/fetch_model.sh)")
python=$(realpath --no-symlinks --relative-to=. "$(bench/peers/setup.sh)")
cmake --preset bench >/dev/null
cmake --build --preset bench --target train_step infer_speed >/dev/null
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT

measure() {  # measure "label" command…   appends its line of JSON
  echo "… ${*:2}" >&2
  "${@:2}" 2>/dev/null | tail -n 1 | sed "s|^{|{\"label\": \"$1\", \"command\": \"${*:2}\", |" | tee -a "$lines" >&2
}

sluice=build/bench/bench/train_step
peer=("$python" bench/peers/pytorch_lora_step.py --threads "$threads" --steps "$steps")
measure "gemm torch" "$python" bench/peers/gemm_rate.py --threads "$threads"
measure "gemm oneDNN" "$sluice" --gemm 4096 --threads "$threads"
for n in "${tokens[@]}"; do
  measure "step sluice" "$sluice" --model "$model" --tokens "$n" --memory-mib "$memory" --threads "$threads" --steps "$steps"
  measure "step torch" "${peer[@]}" --tokens "$n"
  measure "step torch, checkpointing" "${peer[@]}" --tokens "$n" --checkpointing
done
measure "infer llama.cpp" "$python" bench/peers/llama_cpp_speed.py "$model" --threads "$threads"
measure "infer sluice" build/bench/bench/infer_speed --model "$model" --threads "$threads"

mkdir -p bench/results
"$python" bench/report.py "$lines" | tee "bench/results/$(date -u +%Y-%m-%d)-train_step.md"
