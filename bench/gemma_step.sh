#!/usr/bin/env bash
# One training step of Gemma 4 at full width, e4b and 31B, six layers of random weights in MLX 4-bit: is the planned memory what the system
# measures? The checkpoints (0.9 and 2.3 GB) are written to a temporary folder and removed. Prints a table in Markdown and writes it
# to bench/results/<date>-gemma-step.md.
#
#   bench/gemma_step.sh                         THREADS=1 E4B_TOKENS=8192 B31_TOKENS=8192 MEMORY_MIB=4096 PYTHON=python3
#
# The interpreter needs numpy and ml_dtypes.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
threads=${THREADS:-1} memory=${MEMORY_MIB:-4096} python=${PYTHON:-python3}

cmake --preset bench >/dev/null
cmake --build --preset bench --target train_step >/dev/null
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

measure() {  # measure size tokens: one line of JSON
  "$python" bench/gemma_checkpoint.py "$1" "$scratch/$1" >&2
  ${TRAIN_STEP:-build/bench/bench/train_step} --model "$scratch/$1" --tokens "$2" --memory-mib "$memory" --threads "$threads" --steps 0 |
    sed "s|^{|{\"size\": \"$1\", |" | tee -a "$scratch/lines" >&2
  rm -r "${scratch:?}/$1"
}

measure e4b "${E4B_TOKENS:-8192}"
measure 31b "${B31_TOKENS:-8192}"
mkdir -p bench/results
"$python" bench/gemma_report.py "$scratch/lines" | tee "bench/results/$(date -u +%Y-%m-%d)-gemma-step.md"
