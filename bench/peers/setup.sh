#!/usr/bin/env bash
# Makes bench/.venv with the programs that Sluice is measured against, from PyPI. Idempotent. Prints the Python to use.
# torch comes as PyPI serves it (the CUDA build, 3 GB unpacked; it runs on the CPU too).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
venv=$root/bench/.venv
python=$venv/bin/python
wanted=$root/bench/peers/requirements.txt

if [ ! -f "$venv/installed" ] || ! cmp -s "$wanted" "$venv/installed"; then
  "$root/scripts/setup.sh" build bench >&2
  [ -x "$python" ] || python3 -m venv "$venv"
  echo "setup: installing torch, transformers, peft, liger-kernel and llama-cpp-python into bench/.venv (some minutes)" >&2
  CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) "$python" -m pip install --quiet -r "$wanted" >&2
  cp "$wanted" "$venv/installed"
fi
echo "$python"
