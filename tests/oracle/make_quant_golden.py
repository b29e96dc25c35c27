"""Golden data for src/ops/quant: bytes as they lie in a file, and the weights they mean according to their owners' own code.

    pip install gguf numpy safetensors "mlx[cpu]"
    python3 tests/oracle/make_quant_golden.py          # writes tests/golden/quant/{gguf,affine}.safetensors

GGUF blocks are random bytes (every code, scale and minimum occurs) with chosen f16 scales: negative, subnormal, zero and the largest; the
weights are gguf.dequantize's. Affine groups are half what mlx.quantize makes of normal weights, half random codes with chosen scales; the
weights are mlx.dequantize's in float32. Names: <case>/data U8 [rows, bytes], <case>/weights F32 [rows, cols]; affine also <case>/scales and
<case>/biases, and the case is called b<bits>_g<group>_<dtype>.
"""

import pathlib

import gguf
import mlx.core as mx
import numpy as np
from safetensors.numpy import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "golden" / "quant"
SCALES = np.array([1.0, -0.37, 6e-8, -6.1e-5, 0.0, 65504.0, -65504.0, 3.14e-3, -2.5e2], np.float16)


def gguf_cases():
    # offset of each f16 in the block (ggml-common.h)
    formats = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
    rng = np.random.default_rng(20241)
    tensors = {}
    for name, halves in formats.items():
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        rows, blocks = 3, 9 if block == 32 else 3
        data = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
        for offset in halves:
            scale = SCALES[rng.permutation(rows * blocks) % len(SCALES)].reshape(rows, blocks, 1)
            data[:, :, offset : offset + 2] = scale.view(np.uint8)
        data = data.reshape(rows, blocks * size)
        tensors[f"{name.lower()}/data"] = data
        tensors[f"{name.lower()}/weights"] = gguf.dequantize(data, kind).astype(np.float32)
    for name, kind in {"f16": np.float16, "f32": np.float32}.items():
        values = rng.standard_normal((3, 71)).astype(kind)
        values[0, :6] = np.array([6e-8, -6e-8, 65504, -65504, 0, -0.0], kind)
        tensors[f"{name}/data"] = values.view(np.uint8)
        tensors[f"{name}/weights"] = values.astype(np.float32)
    bits = rng.integers(0, 0x7f80, (3, 71)).astype(np.uint16) | rng.choice(np.array([0, 0x8000], np.uint16), (3, 71))
    tensors["bf16/data"] = bits.view(np.uint8)
    tensors["bf16/weights"] = gguf.dequantize(bits.view(np.uint8), gguf.GGMLQuantizationType.BF16).astype(np.float32)

    # q_proj of a Llama with two heads of dimension 8, rows interleaved as llama.cpp's converter stores them; weights in Hugging Face order
    q = rng.standard_normal((16, 32)).astype(np.float32)
    stored = gguf.quantize(q.reshape(2, 2, 4, 32).swapaxes(1, 2).reshape(16, 32), gguf.GGMLQuantizationType.Q8_0)
    tensors["interleaved/data"] = stored
    tensors["interleaved/weights"] = gguf.dequantize(gguf.quantize(q, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0)
    return tensors


def as_numpy(array):
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16))
    return np.array(array)


def affine_cases():
    rng = np.random.default_rng(20242)
    tensors = {}
    dtypes = {"bf16": mx.bfloat16, "f16": mx.float16, "f32": mx.float32}
    for bits in (2, 3, 4, 6, 8):
        for group, dtype in zip((32, 64, 128), dtypes if bits % 2 == 0 else ("f16", "f32", "bf16")):
            rows, cols = 4, 256
            w = mx.array(rng.standard_normal((rows // 2, cols)).astype(np.float32)).astype(dtypes[dtype])
            codes, scales, biases = mx.quantize(w, group_size=group, bits=bits)
            words = rng.integers(0, 2**32, (rows // 2, cols * bits // 32), dtype=np.uint32)
            chosen = rng.choice(SCALES.astype(np.float32), (2, rows // 2, cols // group))
            codes = mx.concatenate([codes, mx.array(words)])
            scales = mx.concatenate([scales, mx.array(chosen[0]).astype(scales.dtype)])
            biases = mx.concatenate([biases, mx.array(chosen[1]).astype(biases.dtype)])
            exact = mx.dequantize(codes, scales.astype(mx.float32), biases.astype(mx.float32), group_size=group, bits=bits)
            case = f"b{bits}_g{group}_{dtype}"
            tensors[f"{case}/data"] = np.array(codes).view(np.uint8)
            tensors[f"{case}/scales"] = as_numpy(scales).view(np.uint8)
            tensors[f"{case}/biases"] = as_numpy(biases).view(np.uint8)
            tensors[f"{case}/weights"] = np.array(exact)
    return tensors


OUT.mkdir(parents=True, exist_ok=True)
for name, tensors in {"gguf": gguf_cases(), "affine": affine_cases()}.items():
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, OUT / f"{name}.safetensors")
    (OUT / f"{name}.safetensors").chmod(0o644)
