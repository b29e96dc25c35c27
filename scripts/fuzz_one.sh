#!/usr/bin/env bash
# scripts/fuzz_one.sh <program> <folder for the growing corpus> <seconds>: runs one libFuzzer program from its seeds in
# tests/golden/fuzz/<name without _fuzz>/. Prints one line, or the whole output and the input that failed.
set -euo pipefail
program=$1 corpus=$2/$(basename "$1") seconds=$3
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=$(basename "$program")
seeds=$root/tests/golden/fuzz/${name%_fuzz}
mkdir -p "$corpus"
[ -d "$seeds" ] && cp -r "$seeds/." "$corpus/"
log=$corpus.log
if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$corpus.failed." \
    "$corpus" >"$log" 2>&1; then
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "$name: $runs inputs in $seconds s, no fault"
else
  tail -n 60 "$log"
  echo "$name: FAILED; the input in base64:"
  base64 "$corpus".failed.* 2>/dev/null || true
  exit 1
fi
