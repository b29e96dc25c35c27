#!/usr/bin/env bash
# Lays out the C++ and CUDA sources by .clang-format, or with --check only says which files differ. Versions of
# clang-format disagree, so --check does nothing with another one than Debian 12's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=14
mapfile -t files < <(git ls-files -- 'src/*.h' 'src/*.cpp' 'src/*.cuh' 'src/*.cu' 'tests/*.h' 'tests/*.cpp' 'bench/*.h' 'bench/*.cpp' 'examples/*.cpp')

formatter=$(command -v "clang-format-$version" || command -v clang-format || true)
found=$([ -n "$formatter" ] && "$formatter" --version | sed -E 's/.*version ([0-9]+).*/\1/' || echo none)
if [ "${1:-}" = --check ]; then
  if [ "$found" != "$version" ]; then
    echo "format: not checked; clang-format is $found, the sources are laid out by $version"
    exit 0
  fi
  "$formatter" --dry-run -Werror "${files[@]}" 2>&1 | grep -E 'error:' | cut -d: -f1 | sort | uniq -c |
    sed 's/^ *\([0-9]*\) \(.*\)/format: \2 differs in \1 places; run make format/' >&2 || true  # grep finds nothing in a tidy tree
  "$formatter" --dry-run -Werror "${files[@]}" 2>/dev/null
  echo "format: ${#files[@]} files are as clang-format $version lays them out"
  exit 0
fi
[ "$found" = "$version" ] || { echo "format: clang-format is $found, needed $version (clang-format-$version)" >&2; exit 1; }
"$formatter" -i "${files[@]}"
