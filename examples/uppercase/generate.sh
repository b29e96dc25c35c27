#!/usr/bin/env bash
# Writes train.jsonl and valid.jsonl of preference pairs: the same answer in capitals is chosen, as people write it rejected.
#
#   examples/uppercase/generate.sh folder
set -euo pipefail
out=${1:?generate: give a folder}
mkdir -p "$out"
rm -f "$out/train.jsonl" "$out/valid.jsonl"
awk -F'|' -v out="$out" '
  BEGIN { file = out "/train.jsonl" }
  /^#/ { next }
  /^-- held out/ { file = out "/valid.jsonl"; next }
  NF == 2 { printf "{\"prompt\": \"%s\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", $1, toupper($2), $2 >> file }
' "$(dirname "${BASH_SOURCE[0]}")/facts.txt"
wc -l "$out/train.jsonl" "$out/valid.jsonl"
