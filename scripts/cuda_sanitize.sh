#!/usr/bin/env bash
# compute-sanitizer over a short list of op tests that reaches every tensor-core kernel of a Hopper GPU, one line for each run:
#
#   scripts/cuda_sanitize.sh                          # memcheck and racecheck of build/cuda/ops_test
#   scripts/cuda_sanitize.sh synccheck linear         # one tool, one entry of the list below
#   build/cuda/bundle/run_tests.sh -- scripts/cuda_sanitize.sh       # without a build: the bundle's ops_test
#   SLUICE_CUDA_PATH=portable scripts/cuda_sanitize.sh               # the portable kernels
#
# TIMEOUT: seconds for one run (default 300). LOGS: where whole outputs go (default: a new folder in /tmp).
# The tests' tensors lie in one allocation, so memcheck finds accesses that are misaligned, or outside shared memory or that
# allocation, but not one just beside a tensor; racecheck looks at shared memory.
# racecheck (CUDA 13.0) does not follow an mbarrier at which one lane arrives for its warp, even if no other lane has read, nor, by what
# it reported, a __syncthreads that warps reach by different code. Where plain loads and stores are ordered so, all readers arrive
# or the word is an atomic; so what it reports is to be looked at.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# name, test cases: the smallest that run the kernel
list=(
  'linear-plain|linear on CUDA: plain products*'                            # gemm_sm90
  'linear|linear on CUDA: adapters of every kind of rank*'                  # gemm_sm90 with adapters, the adapters' passes
  'linear-tiles|linear on CUDA: more tiles than multiprocessors*'           # several tiles for one block
  'attention-forward|attention_forward*CUDA: what lies behind*'             # head dimensions 64, 128, 256 and the wide kernel, 512
  'attention-edges|attention_forward*CUDA: every length around*'
  'attention-backward-one|attention_backward on CUDA: a token that sees*'   # 64 to 512: narrow and wide
  'attention-backward|attention_backward on CUDA: any number of tokens'     # narrow and wide, causal and windows
  'decode|attention_decode on CUDA: every width*'
  'matvec|weight_matvec: rows of interleaved heads*'
  'projections|projections: matrices of several formats*'                   # norms, gates, several matrices in one launch
  'append|attention_append*'
  'head|linear_cross_entropy on cuda: peaked rows*'                         # head_sm90, by rows
  'head-blocks|linear_cross_entropy on cuda: skipping by blocks*'
)

tools=() entries=()
for argument in "$@"; do
  case $argument in
    memcheck | racecheck | synccheck | initcheck) tools+=("$argument") ;;
    -h | --help) sed -n '2,/^set -u/{/^set -u/d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    *)
      case " ${list[*]%%|*} " in *" $argument "*) entries+=("$argument") ;; *)
        echo "cuda_sanitize: '$argument' is neither a tool nor one of: ${list[*]%%|*}" >&2
        exit 2 ;;
      esac ;;
  esac
done
[ ${#tools[@]} -gt 0 ] || tools=(memcheck racecheck)

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
[ -n "$sanitizer" ] || { echo "cuda_sanitize: no compute-sanitizer on PATH or in /usr/local/cuda*/bin; it comes with the CUDA toolkit" >&2; exit 2; }
ops_test=build/cuda/ops_test
[ -x $ops_test ] || ops_test=$(command -v ops_test) || { echo "cuda_sanitize: no ops_test in build/cuda or on PATH" >&2; exit 2; }
logs=${LOGS:-$(mktemp -d /tmp/cuda_sanitize.XXXXXX)}
mkdir -p "$logs"

result=0
for tool in "${tools[@]}"; do
  for entry in "${list[@]}"; do
    name=${entry%%|*} cases=${entry#*|}
    [ ${#entries[@]} -eq 0 ] || [[ " ${entries[*]} " == *" $name "* ]] || continue
    log=$logs/$tool-$name.txt begin=$SECONDS
    SLUICE_TEST_DEVICE=cuda timeout "${TIMEOUT:-300}" "$sanitizer" --tool "$tool" --print-limit 20 --error-exitcode 99 \
      "$ops_test" --no-path-filenames=true -tc="$cases" >"$log" 2>&1
    code=$?
    passed=$(sed -n 's/^\[doctest\] test cases: *\([0-9]*\) | *\([0-9]*\) passed.*/\2 of \1 tests/p' "$log")
    case $code in
      0) verdict=clean && [[ ${passed:-0} != 0* ]] || { verdict="NOTHING RAN" && result=1; } ;;
      99) verdict=FOUND result=1 ;;
      124) verdict="not finished" result=1 ;;
      *) verdict="failed ($code)" result=1 ;;
    esac
    printf '%-10s %-24s %-13s %4d s  %s; %s\n' "$tool" "$name" "$verdict" $((SECONDS - begin)) "${passed:-no test ended}" \
      "$(grep -h 'SUMMARY' "$log" | tail -n 1 | sed 's/^=* *//')"
  done
done
echo "outputs: $logs"
exit $result
