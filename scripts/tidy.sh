#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over the sources given, or over all. Needs build/cpu/compile_commands.json.
# Left out: kernels (*_cpu.cpp), since clang does not know all of GCC's vector extensions, and tests, since clang 14 cannot
# capture a structured binding.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files -- 'src/*.cpp' | grep -vE '_(cpu|test|bench|fuzz)\.cpp$')
printf '%s\0' "${files[@]}" | xargs -0 -n 4 -P "$(nproc)" clang-tidy -p build/cpu --quiet --warnings-as-errors='*' 2>/dev/null
