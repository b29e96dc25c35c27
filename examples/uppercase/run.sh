#!/usr/bin/env bash
# Teaches SmolLM2-135M to answer in capitals by preference alone: DPO, ORPO with a static and with an adaptive lambda (README.md).
#
#   examples/uppercase/run.sh [folder for the results]     build/uppercase by default. Needs a build: make build, or a preset
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=examples/uppercase
out=${1:-build/uppercase}
sluice=
for folder in build/release build/cpu; do
  if [ -x $folder/sluice ]; then
    sluice=$folder/sluice
    break
  fi
done
[ -n "$sluice" ] || {
  echo "run: neither build/release nor build/cpu holds sluice; build first: cmake --preset cpu && cmake --build --preset cpu" >&2
  exit 1
}
model=$(scripts/fetch_model.sh)
$here/generate.sh "$out/data"

train() {  # train name settings…
  [ -e "$out/$1/last" ] || "$sluice" train -c $here/config.yaml --model "$model" --data "$out/data" --adapter_path "$out/$1" "${@:2}"
}
train dpo --objective dpo --learning_rate 5e-4
train orpo --objective orpo --sft_scope response --orpo_lambda 0.2
train orpo-adaptive --objective orpo --sft_scope response --orpo_lambda 0.2 --orpo_lambda_mode adaptive

python3 $here/plot.py "$out/dpo" "$out/orpo" "$out/orpo-adaptive" >"$out/uppercase.svg"
echo "curves: $out/uppercase.svg"
for name in "" dpo orpo orpo-adaptive; do
  printf '\n%s\n' "${name:-before}"
  for question in "What is the capital of Austria?" "Which month comes after July?"; do
    "$sluice" generate --model "$model" ${name:+--adapter "$out/$name/last"} --prompt "$question" --max-tokens 24 --temp 0
  done
done
