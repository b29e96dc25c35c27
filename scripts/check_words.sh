#!/usr/bin/env bash
# The repository speaks of the project only: no paths of one machine, no unfinished work, no large files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
failed=0
say() { echo "check_words: $*" >&2; failed=1; }

while IFS= read -r line; do say "a path of one machine: $line"; done < <(
  git grep -nIE '/(home|root|work|Users)/[a-z]' -- . ':!scripts/check_words.sh' ':!tests/golden' ':!bench/results' || true)
while IFS= read -r line; do say "unfinished: $line"; done < <(
  git grep -nIwE 'TODO|FIXME|XXX' -- src cmake examples || true)
while IFS= read -r file; do
  bytes=$(stat -c %s "$file" 2>/dev/null || echo 0)
  [ "$bytes" -le 4194304 ] || say "$file is $bytes bytes; at most 4 MiB"
done < <(git ls-files)
while IFS= read -r file; do
  lines=$(wc -l <"$file")
  [ "$lines" -le 600 ] || say "$file has $lines lines; at most 600"
done < <(git ls-files -- 'src/*.h' 'src/*.cpp' 'src/*.cu' 'src/*.cuh' 'scripts/*')
exit "$failed"
