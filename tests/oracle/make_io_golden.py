#!/usr/bin/env python3
"""Golden files of the readers in src/io, and the seeds of their fuzzers.

    pip install safetensors gguf numpy mlx
    python3 tests/oracle/make_io_golden.py        # rewrites tests/golden/io and tests/golden/fuzz

Good files are written by the formats' own packages, and golden/io/known.json says what is in them. Bad files are bytes put
together here; golden/io/bad_files.json says which words the refusal must contain. golden/io/model_folders.json is kept by
hand. Seeded: a rerun with the same versions gives the same bytes.
"""

import json
import pathlib
import shutil
import struct

import gguf
import mlx.core as mx
import numpy as np
import safetensors
import safetensors.numpy
from safetensors import TensorSpec

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
IO, FUZZ = GOLDEN / "io", GOLDEN / "fuzz"
RNG = np.random.default_rng(1)
known, bad = {}, []


def data(count):
    return RNG.integers(0, 256, count, dtype=np.uint8).tobytes()


# ---------------------------------------------------------------------------------------------- safetensors, good

SAFETENSORS_DTYPES = {  # name in the package, name in the file, bits
    "float64": ("F64", 64), "float32": ("F32", 32), "float16": ("F16", 16), "bfloat16": ("BF16", 16), "int64": ("I64", 64),
    "int32": ("I32", 32), "int16": ("I16", 16), "int8": ("I8", 8), "uint64": ("U64", 64), "uint32": ("U32", 32),
    "uint16": ("U16", 16), "uint8": ("U8", 8), "bool": ("BOOL", 8), "float8_e4m3fn": ("F8_E4M3", 8), "float8_e5m2": ("F8_E5M2", 8),
}


def write_safetensors(name, tensors, metadata):
    """tensors: name -> (dtype in the package, shape). Written by the reference implementation."""
    specs, keep, records = {}, [], []
    for tensor, (dtype, shape) in tensors.items():
        in_file, bits = SAFETENSORS_DTYPES[dtype]
        array = np.frombuffer(data(int(np.prod(shape, dtype=np.int64)) * bits // 8), dtype=np.uint8)
        keep.append(array)
        specs[tensor] = TensorSpec(dtype=dtype, shape=list(shape), data_ptr=array.ctypes.data, data_len=array.nbytes)
        records.append({"name": tensor, "dtype": in_file, "shape": list(shape), "hex": array.tobytes().hex()})
    path = IO / name
    path.write_bytes(safetensors.serialize(specs, metadata))
    known[name] = {"metadata": metadata or {}, "tensors": records}


def good_safetensors():
    every = {f"every.{dtype}": (dtype, (3, 5)) for dtype in SAFETENSORS_DTYPES}
    write_safetensors("every_dtype.safetensors", every, {"format": "pt"})
    write_safetensors("shapes.safetensors", {"scalar": ("float32", ()), "nothing": ("float32", (4, 0, 3)), "five": ("bfloat16", (1, 2, 3, 1, 2)),
                                             "größe \"quoted\" \U0001f600": ("uint8", (7,))}, None)
    write_safetensors("no_tensors.safetensors", {}, {"note": "nothing here"})


# ---------------------------------------------------------------------------------------------- safetensors, bad


def bad_case(file, content, what, *words):
    (IO / "bad" / file).write_bytes(content)
    bad.append({"file": file, "what": what, "words": list(words)})


def container(header, body=b"", length=None):
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + body


def entry(name, dtype="F32", shape=(2,), offsets=(0, 8)):
    return f'"{name}":{{"dtype":"{dtype}","shape":[{",".join(map(str, shape))}],"data_offsets":[{",".join(map(str, offsets))}]}}'


def tensors(*entries):
    return "{" + ",".join(entries) + "}"


def bad_safetensors():
    def case(name, content, what, *words):
        bad_case(name + ".safetensors", content, what, *words)

    zero = bytes(8)
    case("empty", b"", "no bytes at all", "is empty")
    case("five_bytes", b"\x01\x00\x00\x00\x00", "shorter than the length field", "holds 5 bytes")
    case("header_huge", container("{}", length=1 << 40), "header length of a terabyte", "header length is 1099511627776")
    case("header_max", container("{}", length=(1 << 64) - 1), "header length of all ones", "header length is 18446744073709551615")
    case("header_past_end", container("{}", length=200), "header ends past the file", "header needs 200 bytes", "cut short")
    case("header_empty", container(""), "header of no bytes", "not valid JSON")
    case("not_json", container('{"a": nonsense}'), "header is no JSON", "not valid JSON at byte")
    case("json_cut", container('{"a":{"dtype":"F32"'), "header JSON stops early", "not valid JSON")
    case("json_more", container("{} {}"), "second value after the header", "not valid JSON")
    case("top_array", container("[1]"), "header is an array", "not an object")
    case("top_number", container("7"), "header is a number", "not an object")
    case("deep", container('{"a":{"dtype":"F32","shape":' + "[" * 20000), "arrays nested 20,000 deep", "tensor a")
    case("deep_objects", container('{"a":' * 5000), "objects nested 5,000 deep", "tensor a")
    case("bad_utf8_name", container(b'{"a\xff\xfeb":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', zero), "name is not UTF-8", "not valid JSON", "UTF-8")
    case("overlong_utf8", container(b'{"\xc0\xaf":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', zero), "overlong UTF-8 in a name", "UTF-8")
    case("twice", container(tensors(entry("a"), entry("a")), zero), "the same name twice", "tensor a", "twice")
    case("metadata_twice", container('{"__metadata__":{},"__metadata__":{}}'), "metadata twice", "__metadata__", "twice")
    case("metadata_number", container('{"__metadata__":{"format":1}}'), "metadata that is no text", "__metadata__", '"format"')
    case("metadata_text", container('{"__metadata__":"pt"}'), "metadata that is no object", "__metadata__")
    case("unknown_dtype", container(tensors(entry("a", "Q99")), zero), "unknown dtype", "tensor a", "Q99")
    case("escapes", container(tensors(entry("a\\u001b[31mb\\n", "Q99")), zero), "control characters in a name are escaped in the message", "a\\x1b[31mb\\x0a")
    case("field_missing", container('{"a":{"dtype":"F32","shape":[2]}}', zero), "no data_offsets", "tensor a", "data_offsets")
    case("field_unknown", container('{"a":{"dtype":"F32","shape":[2],"strides":[1]}}', zero), "unknown field", "tensor a", "strides")
    case("field_twice", container('{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', zero), "field twice", "tensor a", "twice")
    case("dtype_number", container('{"a":{"dtype":4,"shape":[2],"data_offsets":[0,8]}}', zero), "dtype is a number", "tensor a", "dtype")
    case("entry_number", container('{"a":4}'), "tensor is a number", "tensor a", "number")
    case("entry_null", container('{"a":null}'), "tensor is null", "tensor a", "null")
    case("negative_extent", container(tensors(entry("a", shape=(-2,))), zero), "negative extent", "tensor a", "negative")
    case("fraction_extent", container(tensors(entry("a", shape=("2.0",))), zero), "extent with a fraction", "tensor a", "no integer")
    case("extent_2_64", container(tensors(entry("a", shape=(1 << 64,))), zero), "extent of 2^64", "tensor a")
    case("extent_2_63", container(tensors(entry("a", shape=(1 << 63,))), zero), "extent of 2^63", "tensor a", "9223372036854775808")
    case("product_overflow", container(tensors(entry("a", shape=(1 << 62, 16))), zero), "shape product wraps to 0", "tensor a", "larger than memory")
    case("product_wraps_to_8", container(tensors(entry("a", "U8", ((1 << 62) + 2, 4))), zero), "shape product wraps to the true size", "tensor a", "larger than memory")
    case("zero_hides_overflow", container(tensors(entry("a", shape=(1 << 62, 16, 0), offsets=(0, 0)))), "overflow hidden behind a zero", "tensor a", "larger than memory")
    case("rank_nine", container(tensors(entry("a", shape=(1,) * 9, offsets=(0, 4))), bytes(4)), "nine dimensions", "tensor a", "8 dimensions")
    case("one_offset", container(tensors(entry("a", offsets=(8,))), zero), "one offset", "tensor a", "two data_offsets")
    case("three_offsets", container(tensors(entry("a", offsets=(0, 8, 16))), zero), "three offsets", "tensor a", "two data_offsets")
    case("reversed", container(tensors(entry("a", offsets=(8, 0))), zero), "offsets run backwards", "tensor a", "backwards")
    case("past_end", container(tensors(entry("a", shape=(4,), offsets=(0, 16))), zero), "data past the end", "tensor a", "cut short")
    case("far_past_end", container(tensors(entry("a", "U8", (8,), (2**63, 2**63 + 8))), zero), "data far past the end", "tensor a", "cut short")
    case("size_wrong", container(tensors(entry("a", shape=(3,))), zero), "size is not shape times dtype", "tensor a", "hold 8 bytes", "needs 12")
    case("half_byte", container(tensors(entry("a", "F4", (3,), (0, 1))), bytes(1)), "12 bits are no whole bytes", "tensor a", "whole number of bytes")
    case("overlap", container(tensors(entry("a"), entry("b", offsets=(4, 12))), bytes(12)), "two tensors overlap", "tensor b", "inside")
    case("same_range", container(tensors(entry("a"), entry("b")), zero), "two tensors share one range", "tensor b", "inside")
    case("gap", container(tensors(entry("a"), entry("b", offsets=(12, 20))), bytes(20)), "bytes between tensors", "tensor b", "gap")
    case("gap_at_start", container(tensors(entry("a", offsets=(8, 16))), bytes(16)), "bytes before the first tensor", "tensor a", "gap")
    case("more_at_end", container(tensors(entry("a")), bytes(9)), "bytes after the last tensor", "end at byte 8", "holds 9")


# ---------------------------------------------------------------------------------------------- GGUF

T = gguf.GGUFValueType
Q = gguf.GGMLQuantizationType
GOOD_GGUF_TYPES = [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_XS, Q.Q2_K]


def good_gguf():
    path = IO / "every_type.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars = {"u8": 200, "i8": -100, "u16": 60000, "i16": -30000, "u32": 4000000000, "i32": -2000000000, "u64": 2**63 + 4096, "i64": -(2**62)}
    for kind, value in scalars.items():
        writer.add_key_value(f"scalar.{kind}", value, T[{"u": "UINT", "i": "INT"}[kind[0]] + kind[1:]])
    writer.add_float32("scalar.f32", 1e-5)
    writer.add_float64("scalar.f64", 1e-5)
    writer.add_bool("scalar.yes", True)
    writer.add_bool("scalar.no", False)
    writer.add_string("scalar.text", "größe \U0001f600")
    writer.add_array("array.numbers", [1, 2, 300])
    writer.add_array("array.floats", [0.5, -0.25])
    writer.add_array("array.bools", [True, False, True])
    writer.add_array("array.text", ["a", "", "ccc"])
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "</s>", "Ġthe"])
    writer.add_array("array.nested", [[1, 2], [3]])
    writer.add_custom_alignment(64)
    records = []
    for kind in GOOD_GGUF_TYPES:
        cols, size = gguf.GGML_QUANT_SIZES[kind]
        width = max(cols, 5) if cols == 1 else cols * 2
        row = width // cols * size
        array = np.frombuffer(data(3 * row), dtype=np.uint8).reshape(3, row)
        name = f"blk.0.{kind.name.lower()}.weight"
        if kind == Q.F32:
            array = RNG.standard_normal((3, 5)).astype(np.float32)
            writer.add_tensor(name, array)
        elif kind == Q.F16:
            array = RNG.standard_normal((3, 5)).astype(np.float16)
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, array, raw_dtype=kind)
        records.append({"name": name, "dtype": kind.name, "shape": [3, width], "hex": array.tobytes().hex()})
    norm = RNG.standard_normal(6).astype(np.float32)
    writer.add_tensor("norm.weight", norm)
    records.append({"name": "norm.weight", "dtype": "F32", "shape": [6], "hex": norm.tobytes().hex()})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = {"general.architecture": "llama", **{f"scalar.{k}": v for k, v in scalars.items()},
                "scalar.f32": float(np.float32(1e-5)), "scalar.f64": 1e-5, "scalar.yes": True, "scalar.no": False,
                "scalar.text": "größe \U0001f600", "array.numbers": [1, 2, 300], "array.floats": [0.5, -0.25],
                "array.bools": [True, False, True], "array.text": ["a", "", "ccc"], "general.alignment": 64}
    known["every_type.gguf"] = {"metadata": metadata, "tensors": records}
    content = bytearray(path.read_bytes())
    content[4] = 2  # versions 2 and 3 differ in the number only, when little-endian
    (IO / "version_2.gguf").write_bytes(content)
    known["version_2.gguf"] = known["every_type.gguf"]


def text(value):
    value = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(value)) + value


def scalar(key, kind=T.UINT32, payload=struct.pack("<I", 1)):
    return text(key) + struct.pack("<I", int(kind)) + payload


def array_of(kind, count, payload):
    return struct.pack("<IQ", int(kind), count) + payload


def info(name, dims=(4,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def file(keys=(), infos=(), body=b"", version=3, num_keys=None, num_infos=None, alignment=32, magic=b"GGUF"):
    head = magic + struct.pack("<IQQ", version, len(infos) if num_infos is None else num_infos, len(keys) if num_keys is None else num_keys)
    head += b"".join(keys) + b"".join(infos)
    return head + bytes(-len(head) % alignment if body else 0) + body


def bad_gguf():
    def case(name, content, what, *words):
        bad_case(name + ".gguf", content, what, *words)

    nested = b""
    for _ in range(6):
        nested = array_of(T.ARRAY if nested else T.UINT8, 1, nested or b"\x01")
    case("empty", b"", "no bytes at all", "is empty")
    case("three_bytes", b"GGU", "shorter than the magic", "needs 4 bytes")
    case("not_gguf", b"PK\x03\x04" + bytes(60), "another format", "does not begin with GGUF")
    case("version_1", file(version=1), "version 1", "version 1")
    case("version_4", file(version=4), "a version to come", "version 4")
    case("big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian", "big-endian")
    case("header_cut", file()[:20], "stops in the header", "needs 8 bytes", "cut short")
    case("keys_huge", file(num_keys=1 << 60), "2^60 keys", "1152921504606846976 metadata keys")
    case("keys_max", file(num_keys=(1 << 64) - 1), "2^64 - 1 keys", "metadata keys")
    case("tensors_huge", file(num_infos=1 << 60), "2^60 tensors", "1152921504606846976 tensors")
    case("keys_cut", file([scalar("a")], num_keys=2) + bytes(20), "stops after the first of two keys", "metadata key", "empty")
    case("key_long", file([struct.pack("<Q", 1 << 50) + b"abcdefgh"]), "key longer than the file", "needs 1125899906842624 bytes")
    case("key_empty", file([scalar("")]), "empty key", "metadata key", "empty")
    case("key_bad_utf8", file([scalar(b"a\xff")]), "key is not UTF-8", "metadata key", "UTF-8")
    case("key_twice", file([scalar("a"), scalar("a")]), "the same key twice", "metadata a", "twice")
    case("value_type_13", file([scalar("a", 13)]), "unknown value type", "metadata a", "value type 13")
    case("value_cut", file([scalar("a.long.key", T.UINT64, b"\x01\x00\x00")]), "stops in a value", "metadata a.long.key", "needs 8 bytes")
    case("string_long", file([scalar("a", T.STRING, struct.pack("<Q", (1 << 64) - 1) + b"abc")]), "string longer than the file", "metadata a", "needs 18446744073709551615 bytes")
    case("string_bad_utf8", file([scalar("a", T.STRING, text(b"\xed\xa0\x80"))]), "text is not UTF-8 (a surrogate)", "metadata a", "UTF-8")
    case("array_huge", file([scalar("a", T.ARRAY, array_of(T.UINT64, 1 << 61, bytes(16)))]), "array longer than the file; the product wraps", "metadata a", "2305843009213693952 elements")
    case("array_strings_huge", file([scalar("a", T.ARRAY, array_of(T.STRING, 1 << 40, bytes(16)))]), "array of 2^40 strings", "metadata a", "1099511627776 elements")
    case("array_string_cut", file([scalar("a", T.ARRAY, array_of(T.STRING, 2, text("x") + struct.pack("<Q", 99)))]), "string in an array ends past the file", "metadata a", "needs 99 bytes")
    case("array_type_13", file([scalar("a", T.ARRAY, array_of(13, 1, bytes(8)))]), "unknown element type", "metadata a", "value type 13")
    case("array_deep", file([scalar("a", T.ARRAY, nested)]), "arrays nested 6 deep", "metadata a", "deeper than 4")
    case("alignment_0", file([scalar("general.alignment", T.UINT32, struct.pack("<I", 0))]), "alignment 0", "general.alignment")
    case("alignment_3", file([scalar("general.alignment", T.UINT32, struct.pack("<I", 3))]), "alignment 3", "general.alignment")
    case("alignment_huge", file([scalar("general.alignment", T.UINT32, struct.pack("<I", 1 << 31))]), "alignment 2^31", "general.alignment")
    case("alignment_text", file([scalar("general.alignment", T.STRING, text("32"))]), "alignment as text", "general.alignment")
    case("name_empty", file([], [info("")], bytes(16)), "tensor without a name", "tensor's name", "empty")
    case("name_bad_utf8", file([], [info(b"\xf8abcd")], bytes(16)), "tensor name is not UTF-8", "tensor's name", "UTF-8")
    case("name_twice", file([], [info("a"), info("a", offset=32)], bytes(64)), "the same tensor twice", "tensor a", "twice")
    case("dims_0", file([], [info("a", ())], bytes(16)), "no dimensions", "tensor a", "0 dimensions")
    case("dims_5", file([], [info("a", (1,) * 5)], bytes(16)), "five dimensions", "tensor a", "5 dimensions")
    case("dims_max", file([], [text("a") + struct.pack("<I", 0xFFFFFFFF) + bytes(32)], bytes(16)), "2^32 - 1 dimensions", "tensor a", "4294967295 dimensions")
    case("extent_0", file([], [info("a", (4, 0))], bytes(16)), "extent of zero", "tensor a", "extent of 0")
    case("extent_2_63", file([], [info("a", (1 << 63,))], bytes(16)), "extent of 2^63", "tensor a", "extent of 9223372036854775808")
    case("product_overflow", file([], [info("a", (1 << 40, 1 << 40))], bytes(16)), "shape product wraps", "tensor a", "larger than memory")
    case("product_wraps_to_16", file([], [info("a", ((1 << 61) + 2, 2))], bytes(16)), "shape product wraps to the true size", "tensor a", "larger than memory")
    case("elements_overflow", file([], [info("a", (1 << 62, 3), Q.Q4_0)], bytes(16)), "2^63.6 elements in 2^62.8 bytes", "tensor a", "larger than memory")
    case("half_block", file([], [info("a", (33,), Q.Q8_0)], bytes(64)), "row of 33 weights in blocks of 32", "tensor a", "Q8_0 blocks of 32")
    case("type_99", file([], [info("a", kind=99)], bytes(16)), "unknown tensor type", "tensor a", "type 99")
    case("type_4", file([], [info("a", kind=4)], bytes(16)), "withdrawn tensor type", "tensor a", "type 4")
    case("misaligned", file([], [info("a", offset=8)], bytes(32)), "offset is no multiple of the alignment", "tensor a", "multiple of 32")
    case("overlap", file([], [info("a", (16,)), info("b", offset=32)], bytes(64)), "two tensors overlap", "tensor b", "inside")
    case("same_place", file([], [info("a"), info("b")], bytes(16)), "two tensors at one offset", "tensor b", "inside")
    case("past_end", file([], [info("a", (16,))], bytes(32)), "data past the end", "tensor a", "cut short")
    case("no_data", file([], [info("a")]), "no data at all", "tensor a", "cut short")
    case("offset_wraps", file([], [info("a", (16,), offset=(1 << 64) - 32)], bytes(64)), "offset plus size wraps", "tensor a", "past the end")


# ---------------------------------------------------------------------------------------------- MLX, every width


def mlx_model():
    """A folder whose modules have every supported bits and group size, each with its own entry in config.json."""
    folder = IO / "mlx_bits"
    folder.mkdir()
    tensors, expected, settings = {}, {}, {"group_size": 64, "bits": 4, "mode": "affine"}
    for bits in (2, 3, 4, 6, 8):
        for group in (32, 64, 128):
            module = f"model.layers.{bits}.g{group}_proj"
            w = mx.array(RNG.standard_normal((3, 2 * group + (128 if group == 64 else 0))).astype(np.float32))
            q, scales, biases = mx.quantize(w, group_size=group, bits=bits)
            tensors |= {f"{module}.weight": q, f"{module}.scales": scales, f"{module}.biases": biases}
            expected[module] = np.array(mx.dequantize(q, scales, biases, group_size=group, bits=bits))
            if (bits, group) != (4, 64):
                settings[module] = {"group_size": group, "bits": bits}
    tensors["model.norm.weight"] = mx.array(RNG.standard_normal(8).astype(np.float32)).astype(mx.bfloat16)
    tensors["model.layers.0.plain_proj.weight"] = mx.array(RNG.standard_normal((4, 8)).astype(np.float32)).astype(mx.bfloat16)
    settings["model.layers.0.plain_proj"] = False
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "quantization": settings, "quantization_config": settings}, indent=1) + "\n")
    safetensors.numpy.save_file(expected, folder / "expected.safetensors")


def seeds():
    for kind in ("safetensors", "gguf"):
        (FUZZ / kind).mkdir(parents=True)
        for path in sorted(IO.glob(f"*.{kind}")) + sorted((IO / "bad").glob(f"*.{kind}")):
            if path.stat().st_size <= 8192 and path.stat().st_size > 0:
                shutil.copy(path, FUZZ / kind / f"{path.parent.name}-{path.stem}")


def main():
    for folder in (IO / "bad", IO / "mlx_bits", FUZZ / "safetensors", FUZZ / "gguf"):
        shutil.rmtree(folder, ignore_errors=True)
    (IO / "bad").mkdir(parents=True)
    good_safetensors()
    bad_safetensors()
    good_gguf()
    bad_gguf()
    mlx_model()
    seeds()
    (IO / "known.json").write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    (IO / "bad_files.json").write_text("[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in bad) + "\n]\n")


if __name__ == "__main__":
    main()
