#!/usr/bin/env bash
# Fine-tunes a real model in two commands and shows what it learned: SmolLM2-135M-Instruct, 4-bit, learns to cut
# conversations into chunks by topic (examples/chunk/README.md). `make demo` has built build/release before.
#
#   scripts/demo.sh [folder for the results]     build/demo by default; a run that was stopped is resumed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build/demo}
sluice=build/release/sluice
mkdir -p "$out"

step() {  # step "what it does" command…
  printf '\n\033[1m%s\033[0m\n$ %s\n' "$1" "${*:2}"
  "${@:2}"
}

model=$(scripts/fetch_model.sh)
begin=$SECONDS
step "Data: conversations over many topics; the held-out ones are over others" \
  build/release/chunk_generate examples/chunk/topics.txt "$out/data"
step "Score of the model as it came" \
  "$sluice" eval chunk --model "$model" --data examples/chunk/data/heldout.jsonl --out "$out/before.json"
step "Fine-tune it with LoRA" \
  "$sluice" train -c examples/chunk/config.yaml --model "$model" --data "$out/data" --adapter_path "$out/adapter" --resume
step "Score with the adapter" \
  "$sluice" eval chunk --model "$model" --adapter "$out/adapter/last" --data examples/chunk/data/heldout.jsonl --out "$out/after.json"
step "Before and after" \
  "$sluice" eval compare "$out/before.json" "$out/after.json"
printf '\nTook %d min %d s. The adapter is in %s, the course of the training in %s.\n' $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)) \
  "$out/adapter/last" "$out/adapter/training.svg"
