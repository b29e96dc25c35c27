#!/usr/bin/env bash
# Packs what the CUDA tests and benchmarks need to run on a machine that has a GPU but none of the build tools:
#
#   cmake --preset cuda -DSLUICE_BENCH=ON && cmake --build --preset cuda
#   scripts/cuda_bundle.sh                         # build/cuda -> build/cuda/bundle
#   scripts/cuda_bundle.sh --build build/x --out /tmp/bundle --with-golden
#
# The folder holds payload.tar.xz (stripped programs, libsluice_cuda.so, the shared libraries they need) and run_tests.sh. Copy it
# there and run run_tests.sh from a checkout of this repository, whose tests/golden the tests read; --with-golden packs
# tests/golden too, so that no checkout is needed. With ORACLE_DIR set, those fixtures are packed and used instead.
#
# Not packed: the C and C++ runtime, the driver, and cuBLASLt, which is hundreds of MB: run_tests.sh looks for libcublasLt.so.13 in
# the system's libraries, in /usr/local/cuda*/lib64 and in Python's site-packages (pip install nvidia-cublas).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/cuda out="" golden=no
die() {
  echo "cuda_bundle: $*" >&2
  exit 1
}
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?--build needs a folder} && shift 2 ;;
    --out) out=${2:?--out needs a folder} && shift 2 ;;
    --with-golden) golden=yes && shift ;;
    -h | --help) sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    *) die "unknown argument '$1'; see --help" ;;
  esac
done
out=${out:-$build/bundle}
[ -f "$build/libsluice_cuda.so" ] || die "$build has no libsluice_cuda.so; build with the preset cuda first"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/bin" "$stage/lib"

programs=()
for name in ops_test core_test end_to_end_test sluice bench/train_step bench/infer_speed bench/cuda_op_bench; do
  if [ -x "$build/$name" ]; then programs+=("$build/$name"); else echo "cuda_bundle: $build/$name is not built, left out" >&2; fi
done
[ ${#programs[@]} -gt 0 ] || die "nothing in $build to run"
for program in "${programs[@]}"; do strip -o "$stage/bin/$(basename "$program")" "$program"; done
strip --strip-unneeded -o "$stage/lib/libsluice_cuda.so" "$build/libsluice_cuda.so"

# Every library that a program or the backend asks for, but what belongs to the system or to CUDA.
skipped='/(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libcuda|libcublas|libcublasLt|libcudart)[-.]'
ldd "${programs[@]}" "$build/libsluice_cuda.so" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | { grep -Ev "$skipped" || true; } |
  while read -r library; do strip --strip-unneeded -o "$stage/lib/$(basename "$library")" "$library"; done

if [ "$golden" = yes ]; then mkdir -p "$stage/source/tests" && cp -r tests/golden "$stage/source/tests/"; fi
if [ -n "${ORACLE_DIR:-}" ]; then mkdir -p "$stage/oracle" && cp -rL "$ORACLE_DIR/." "$stage/oracle/"; fi

rm -rf "$out"
mkdir -p "$out"
tar -C "$stage" -cf - . | xz -T0 -6 >"$out/payload.tar.xz"

cat >"$out/run_tests.sh" <<'RUN'
#!/usr/bin/env bash
# Runs the CUDA tests of this bundle, or a command with its programs and libraries in reach:
#
#   run_tests.sh                                    ops, then whole models and runs
#   run_tests.sh ops [doctest's arguments]          ops_test alone, such as: run_tests.sh ops -tc='rmsnorm*'
#   run_tests.sh models [doctest's arguments]       end_to_end_test alone
#   run_tests.sh -- cuda_op_bench --filter linear   any program of bin/
#
# From a checkout of the repository (its tests/golden is read), or with SLUICE_SOURCE_DIR naming one. A test case that breaks the
# device ends its process; the rest goes on in a new one. TEST_TIMEOUT: seconds for one process (default 480).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

unpacked=${SLUICE_BUNDLE_DIR:-${TMPDIR:-/tmp}/sluice-bundle-$(id -u)}
stamp=$(cksum <"$here/payload.tar.xz")
if [ "$(cat "$unpacked/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$unpacked" && mkdir -p "$unpacked"
  if command -v xz >/dev/null; then xz -dc "$here/payload.tar.xz" | tar -C "$unpacked" -xf -
  else python3 -m tarfile -e "$here/payload.tar.xz" "$unpacked"; fi || exit 1
  echo "$stamp" >"$unpacked/stamp"
fi

find_cublaslt() {  # the folder of libcublasLt.so.13
  local folder
  folder=$(ldconfig -p 2>/dev/null | awk '/libcublasLt\.so\.13 / { print $NF; exit }')
  if [ -n "$folder" ]; then dirname "$folder" && return; fi
  for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib; do
    if [ -e "$folder/libcublasLt.so.13" ]; then echo "$folder" && return; fi
  done
  python3 - <<'PY' 2>/dev/null
import pathlib, site, sys
for root in [*site.getsitepackages(), *sys.path]:
    for inside in ("nvidia/cu13/lib", "nvidia/cublas/lib"):
        if (pathlib.Path(root) / inside / "libcublasLt.so.13").exists():
            print(pathlib.Path(root) / inside)
            raise SystemExit
PY
}
cublaslt=$(find_cublaslt)
[ -n "$cublaslt" ] || echo "run_tests: no libcublasLt.so.13 found; install CUDA 13 or the Python package nvidia-cublas" >&2
export LD_LIBRARY_PATH=$unpacked/lib${cublaslt:+:$cublaslt}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$unpacked/bin:$PATH

if [ -z "${SLUICE_SOURCE_DIR:-}" ]; then
  SLUICE_SOURCE_DIR=$PWD
  if [ -d "$unpacked/source" ]; then SLUICE_SOURCE_DIR=$unpacked/source; fi
fi
export SLUICE_SOURCE_DIR
if [ -z "${ORACLE_DIR:-}" ] && [ -d "$unpacked/oracle" ]; then export ORACLE_DIR=$unpacked/oracle; fi

if [ "${1:-}" = -- ]; then
  shift
  exec "$@"
fi
[ -d "$SLUICE_SOURCE_DIR/tests/golden" ] || echo "run_tests: $SLUICE_SOURCE_DIR has no tests/golden; run this from a checkout" >&2

# run_program name arguments…: all test cases, in a new process after each one that broke the device or the process.
run_program() {
  local name=$1 first=1 failed=0 code log
  shift
  log=$(mktemp)
  while :; do
    SLUICE_TEST_DEVICE=cuda timeout "${TEST_TIMEOUT:-480}" "$name" --first="$first" --test-suite-exclude=full --no-path-filenames=true "$@" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    [ "$code" -eq 0 ] || failed=1
    [ "$code" -eq 3 ] || [ "$code" -ge 124 ] || break
    # The last test case that began: "[12] its name".
    first=$(sed -n 's/^\[\([0-9]*\)\] .*/\1/p' "$log" | tail -n 1)
    if [ -z "$first" ]; then break; fi
    first=$((first + 1))
    echo "run_tests: $name ended with $code in test case $((first - 1)); going on with the next"
  done
  rm -f "$log"
  return "$failed"
}

models='--source-file=@MODELS@'
result=0
case ${1:-all} in
  ops) shift && run_program ops_test "$@" || result=1 ;;
  models) shift && run_program end_to_end_test "$models" "$@" || result=1 ;;
  all)
    run_program ops_test || result=1
    run_program end_to_end_test "$models" || result=1
    ;;
  *) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" && exit 2 ;;
esac
[ "$result" -eq 0 ] && echo "run_tests: passed" || echo "run_tests: FAILED"
exit "$result"
RUN
# The files that ctest -L cuda runs of end_to_end_test.
models=$(sed -n 's/^add_test(\[*=*\[*"\{0,1\}end_to_end_test_cuda.*"--source-file=\([^"]*\)".*/\1/p' "$build/CTestTestfile.cmake" | head -n 1)
[ -n "$models" ] || die "$build has no test end_to_end_test_cuda; configure it again"
sed -i "s|@MODELS@|$models|" "$out/run_tests.sh"
chmod +x "$out/run_tests.sh"
echo "$out: $(du -sh "$out" | cut -f1), with $(cd "$stage/bin" && echo *)"
