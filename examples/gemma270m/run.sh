#!/usr/bin/env bash
# Fine-tunes Gemma 3 270M on the chunk task and scores it before and after (README.md). Needs a build: `make` or a preset.
#
#   examples/gemma270m/run.sh [folder for the results]     build/gemma270m by default; a run that was stopped is resumed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=examples/gemma270m
out=${1:-build/gemma270m}
built=
for folder in build/release build/cpu; do
  if [ -x $folder/sluice ] && [ -x $folder/chunk_generate ]; then
    built=$folder
    break
  fi
done
[ -n "$built" ] || {
  echo "run: neither build/release nor build/cpu holds sluice and chunk_generate; build first: cmake --preset cpu && cmake --build --preset cpu" >&2
  exit 1
}
mkdir -p "$out/data"

step() {  # step "what it does" command…
  printf '\n%s\n$ %s\n' "$1" "${*:2}"
  "${@:2}"
}

model=$($here/fetch.sh)
step "Data" "$built/chunk_generate" examples/chunk/topics.txt "$out/data"
step "Score of the model as it came" "$built/sluice" eval chunk --model "$model" --chat-template $here/chat_template.jinja \
  --data examples/chunk/data/heldout.jsonl --out "$out/before.json"
step "Fine-tune it with LoRA" "$built/sluice" train -c $here/config.yaml --model "$model" --data "$out/data" \
  --adapter_path "$out/adapter" --resume
step "Score with the adapter" "$built/sluice" eval chunk --model "$model" --adapter "$out/adapter/last" \
  --data examples/chunk/data/heldout.jsonl --out "$out/after.json"
step "Before and after" "$built/sluice" eval compare "$out/before.json" "$out/after.json"
