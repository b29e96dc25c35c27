// Decoders of the storage formats for the *.cu files of this folder (layouts: quant_ref.h).
//
// A row is a run of octets, eight weights in consecutive columns; a thread loads and decodes one octet at a time:
//
//   const Row row = view.row(r);
//   const auto raw = D::load(view, row, octet);       // loads only, so that several can be under way
//   float w[8];  D::decode(view, raw, octet, w);
//
// `align` is what is known of the address of the data and of every row: 16, or 1 for weights that may lie anywhere. Each weight is one
// fused multiply-add of exact factors: the correctly rounded float, as on the CPU (quant_decode.h). No load touches an aligned word that
// holds no byte of the weight.
#pragma once

#include <cuda_fp16.h>

#include <bit>

#include "core/weight.h"
#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

struct Row {
  const uint8_t *data, *scales, *biases;
};

struct WeightView {
  const uint8_t *data, *scales, *biases;
  int64_t row_bytes, scale_row_bytes;
  uint32_t interleaved_head_dim;
  int group_shift;  // affine: log2 of the octets of a group
  DType scale_dtype;

  explicit WeightView(const Weight& w)
      : data(reinterpret_cast<const uint8_t*>(w.data)),
        scales(reinterpret_cast<const uint8_t*>(w.scales)),
        biases(reinterpret_cast<const uint8_t*>(w.biases)),
        row_bytes(w.row_bytes()),
        scale_row_bytes(w.format == WeightFormat::affine ? w.cols / w.group_size * size_of(w.scale_dtype) : 0),
        interleaved_head_dim(static_cast<uint32_t>(w.interleaved_head_dim)),
        group_shift(w.group_size == 128  ? 4
                    : w.group_size == 64 ? 3
                                         : 2),
        scale_dtype(w.scale_dtype) {
    SLUICE_ASSERT(w.rows <= INT32_MAX && w.cols <= INT32_MAX);
  }
  // Whether the decoders for align = 16 may read it: every row of plain floats begins at 16 bytes, everything else lies as its
  // blocks allow.
  bool aligned() const {
    const auto at = [](const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
    return at(data, 16) && at(scales, size_of(scale_dtype)) && at(biases, size_of(scale_dtype));
  }

  __device__ Row row(uint32_t r) const {
    if (interleaved_head_dim != 0) {  // Weight::stored_row
      const uint32_t half = interleaved_head_dim / 2, in_head = r % interleaved_head_dim;
      r = r - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
    }
    return {data + r * row_bytes, scales + r * scale_row_bytes, biases + r * scale_row_bytes};
  }
};

// ---- Loads --------------------------------------------------------------------------------------------------------------------

template <int align>
__device__ inline uint32_t load_u16(const uint8_t* p) {
  if constexpr (align >= 2) return __ldg(reinterpret_cast<const uint16_t*>(p));
  else return __ldg(p) | static_cast<uint32_t>(__ldg(p + 1)) << 8;
}
template <int align>
__device__ inline uint32_t load_u32(const uint8_t* p) {
  if constexpr (align >= 4) return __ldg(reinterpret_cast<const uint32_t*>(p));
  else return load_u16<align>(p) | load_u16<align>(p + 2) << 16;
}

// n words from p on. With align 2: words from the aligned address at or before p, joined by realign.
template <int n, int align>
struct Words {
  static constexpr bool shifted = align == 2;
  uint32_t w[n + shifted];
  uint32_t shift;

  __device__ void load(const uint8_t* p) {
    if constexpr (shifted) {
      shift = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p) & 2) * 8;
      const auto* q = reinterpret_cast<const uint32_t*>(p - shift / 8);
#pragma unroll
      for (int i = 0; i < n; ++i) w[i] = __ldg(q + i);
      w[n] = __ldg(q + (shift != 0 ? n : n - 1));  // unused at shift 0, when it could lie past the weight
    } else if constexpr (align >= 16 && n % 4 == 0) {
#pragma unroll
      for (int i = 0; i < n; i += 4) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(p) + i / 4);
        w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
      }
    } else if constexpr (align >= 8 && n % 2 == 0) {
#pragma unroll
      for (int i = 0; i < n; i += 2) {
        const uint2 v = __ldg(reinterpret_cast<const uint2*>(p) + i / 2);
        w[i] = v.x, w[i + 1] = v.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i) w[i] = load_u32<align>(p + 4 * i);
    }
  }
  __device__ uint32_t operator[](int i) const {
    if constexpr (shifted) return __funnelshift_r(w[i], w[i + 1], shift);
    else return w[i];
  }
};

__device__ inline float f16_bits_to_float(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ inline float to_float(uint32_t bits, DType dtype) {
  if (dtype == DType::bf16) return __uint_as_float(bits << 16);
  return dtype == DType::f16 ? f16_bits_to_float(bits & 0xffffU) : __uint_as_float(bits);
}
template <int align>
__device__ inline uint32_t load_scale(const uint8_t* p, DType dtype, int i) {
  if (dtype == DType::f32) return load_u32<align>(p + 4 * static_cast<int64_t>(i));
  return load_u16<align>(p + 2 * static_cast<int64_t>(i));
}
__device__ inline float code_to_float(uint32_t code) { return static_cast<float>(static_cast<int>(code)); }

// ---- Plain floats -------------------------------------------------------------------------------------------------------------

// Octets begin at the column the caller moved row.data to; the last one may hold fewer than eight weights, the rest are zeros.
template <WeightFormat format, int align>
struct Floats {
  static constexpr bool plain = true;
  static constexpr int bytes = format == WeightFormat::f32 ? 4 : 2;
  struct Raw {
    uint32_t w[2 * bytes];
  };
  __device__ static Raw load(const WeightView&, const Row& row, int octet, int count = 8) {
    const uint8_t* p = row.data + static_cast<int64_t>(octet) * (8 * bytes);
    Raw raw;
    if (align >= 16 && count >= 8) {
#pragma unroll
      for (int i = 0; i < 2 * bytes; i += 4) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(p) + i / 4);
        raw.w[i] = v.x, raw.w[i + 1] = v.y, raw.w[i + 2] = v.z, raw.w[i + 3] = v.w;
      }
    } else {
      constexpr int known = align >= 16 ? bytes : 1;
#pragma unroll
      for (int i = 0; i < 2 * bytes; ++i) raw.w[i] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i >= count) break;
        if constexpr (bytes == 4) raw.w[i] = load_u32<known>(p + 4 * i);
        else raw.w[i / 2] |= load_u16<known>(p + 2 * i) << (i % 2 * 16);
      }
    }
    return raw;
  }
  __device__ static void decode(const WeightView&, const Raw& raw, int, float (&w)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (format == WeightFormat::f32) w[i] = __uint_as_float(raw.w[i]);
      else if constexpr (format == WeightFormat::bf16)
        w[i] = __uint_as_float(i % 2 == 0 ? raw.w[i / 2] << 16 : raw.w[i / 2] & 0xffff0000U);
      else w[i] = f16_bits_to_float(raw.w[i / 2] >> (i % 2 * 16) & 0xffffU);
    }
  }
};

// ---- GGUF, blocks of 32 -------------------------------------------------------------------------------------------------------

// Octet j of a block lies in the bytes 8 (j % 2) … of the codes, in the low nibbles for j < 2.
template <bool with_min, int align>
struct Q4 {
  static constexpr bool plain = false;
  static constexpr int block = with_min ? 20 : 18, known = align == 1 ? 1 : with_min ? 4 : 2;
  struct Raw {
    Words<2, known> codes;
    uint32_t d;  // with_min: and m
  };
  __device__ static Raw load(const WeightView&, const Row& row, int octet) {
    const uint8_t* p = row.data + static_cast<int64_t>(octet >> 2) * block;
    Raw raw;
    raw.codes.load(p + (with_min ? 4 : 2) + 8 * (octet & 1));
    if constexpr (with_min) raw.d = load_u32<known>(p);
    else raw.d = load_u16<known>(p);
    return raw;
  }
  __device__ static void decode(const WeightView&, const Raw& raw, int octet, float (&w)[8]) {
    const float d = f16_bits_to_float(raw.d & 0xffffU), offset = with_min ? f16_bits_to_float(raw.d >> 16) : -8 * d;
    const uint32_t shift = (octet & 2) * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = raw.codes[half] >> shift;
#pragma unroll
      for (int i = 0; i < 4; ++i) w[half * 4 + i] = __fmaf_rn(code_to_float(word >> (8 * i) & 15U), d, offset);
    }
  }
};

template <bool with_min, int align>
struct Q5 {
  static constexpr bool plain = false;
  static constexpr int block = with_min ? 24 : 22, known = align == 1 ? 1 : with_min ? 8 : 2;
  struct Raw {
    Words<1, known> fifths;
    Words<2, known> codes;
    uint32_t d;
  };
  __device__ static Raw load(const WeightView&, const Row& row, int octet) {
    const uint8_t* p = row.data + static_cast<int64_t>(octet >> 2) * block;
    Raw raw;
    raw.fifths.load(p + (with_min ? 4 : 2));
    raw.codes.load(p + (with_min ? 8 : 6) + 8 * (octet & 1));
    if constexpr (with_min) raw.d = load_u32<known>(p);
    else raw.d = load_u16<known>(p);
    return raw;
  }
  __device__ static void decode(const WeightView&, const Raw& raw, int octet, float (&w)[8]) {
    const float d = f16_bits_to_float(raw.d & 0xffffU), offset = with_min ? f16_bits_to_float(raw.d >> 16) : -16 * d;
    const uint32_t shift = (octet & 2) * 2, fifths = raw.fifths[0] >> ((octet & 3) * 8);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = raw.codes[half] >> shift;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t fifth = (fifths >> (half * 4 + i) & 1U) << 4;
        w[half * 4 + i] = __fmaf_rn(code_to_float((word >> (8 * i) & 15U) | fifth), d, offset);
      }
    }
  }
};

template <int align>
struct Q8_0 {
  static constexpr bool plain = false;
  static constexpr int block = 34, known = align == 1 ? 1 : 2;
  struct Raw {
    Words<2, known> codes;
    uint32_t d;
  };
  __device__ static Raw load(const WeightView&, const Row& row, int octet) {
    const uint8_t* p = row.data + static_cast<int64_t>(octet >> 2) * block;
    Raw raw;
    raw.codes.load(p + 2 + 8 * (octet & 3));
    raw.d = load_u16<known>(p);
    return raw;
  }
  __device__ static void decode(const WeightView&, const Raw& raw, int, float (&w)[8]) {
    const float d = f16_bits_to_float(raw.d);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = raw.codes[half];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[half * 4 + i] = __fmul_rn(static_cast<float>(static_cast<int8_t>(word >> (8 * i) & 0xffU)), d);
    }
  }
};

// ---- GGUF, blocks of 256 ------------------------------------------------------------------------------------------------------

// The first 16 bytes of a block of q4_k or q5_k: d and dmin, then the packed scales and minima a, b, c (quant_decode.h).
struct KHeader {
  float scale, offset;  // of sub-block s
  __device__ KHeader(const Words<4, 16>& h, int s) : KHeader(h[0], h[1], h[2], h[3], s) {}
  __device__ KHeader(const Words<4, 1>& h, int s) : KHeader(h[0], h[1], h[2], h[3], s) {}
  __device__ KHeader(uint32_t dm, uint32_t a, uint32_t b, uint32_t c, int s) {
    const bool late = s >= 4;
    const uint32_t scales = late ? (c & 0x0f0f0f0fU) | (a >> 2 & 0x30303030U) : a & 0x3f3f3f3fU;
    const uint32_t minima = late ? (c >> 4 & 0x0f0f0f0fU) | (b >> 2 & 0x30303030U) : b & 0x3f3f3f3fU;
    const int shift = (s & 3) * 8;
    scale = code_to_float(scales >> shift & 0xffU) * f16_bits_to_float(dm & 0xffffU);
    offset = code_to_float(minima >> shift & 0xffU) * -f16_bits_to_float(dm >> 16);
  }
};

template <bool five, int align>
struct Q45K {
  static constexpr bool plain = false;
  static constexpr int block = five ? 176 : 144, codes_at = five ? 48 : 16;
  struct Raw {
    Words<4, align> header;
    Words<2, align> codes;
    Words<five ? 2 : 1, align> fifths;  // five only
  };
  __device__ static Raw load(const WeightView&, const Row& row, int octet) {
    const uint8_t* p = row.data + static_cast<int64_t>(octet >> 5) * block;
    const int s = octet >> 2 & 7, first = (octet & 3) * 8;  // of the sub-block's 32
    Raw raw;
    raw.header.load(p);
    raw.codes.load(p + codes_at + 32 * (s >> 1) + first);
    if constexpr (five) raw.fifths.load(p + 16 + first);
    return raw;
  }
  __device__ static void decode(const WeightView&, const Raw& raw, int octet, float (&w)[8]) {
    const int s = octet >> 2 & 7;
    const KHeader header(raw.header, s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = raw.codes[half] >> ((s & 1) * 4);
      uint32_t fifths = 0;
      if constexpr (five) fifths = raw.fifths[half] >> s;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t code = word >> (8 * i) & 15U;
        if constexpr (five) code |= (fifths >> (8 * i) & 1U) << 4;
        w[half * 4 + i] = __fmaf_rn(code_to_float(code), header.scale, header.offset);
      }
    }
  }
};

template <int align>
struct Q6K {
  static constexpr bool plain = false;
  static constexpr int block = 210, known = align == 1 ? 1 : 2;
  struct Raw {
    Words<2, known> low, high;
    uint32_t d;
    int8_t scale;
  };
  __device__ static Raw load(const WeightView&, const Row& row, int octet) {
    const uint8_t* p = row.data + static_cast<int64_t>(octet >> 5) * block;
    const int half = octet >> 4 & 1, run = octet >> 2 & 3, first = (octet & 3) * 8;
    Raw raw;
    raw.low.load(p + 64 * half + 32 * (run & 1) + first);
    raw.high.load(p + 128 + 32 * half + first);
    raw.scale = static_cast<int8_t>(__ldg(p + 192 + (octet >> 1 & 15)));
    raw.d = load_u16<known>(p + 208);
    return raw;
  }
  __device__ static void decode(const WeightView&, const Raw& raw, int octet, float (&w)[8]) {
    const int run = octet >> 2 & 3;
    const float scale = __fmul_rn(static_cast<float>(raw.scale), f16_bits_to_float(raw.d));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t low = raw.low[half] >> (run >> 1) * 4, high = raw.high[half] >> run * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t code = (low >> (8 * i) & 15U) | (high >> (8 * i) & 3U) << 4;
        w[half * 4 + i] = __fmul_rn(static_cast<float>(static_cast<int>(code) - 32), scale);
      }
    }
  }
};

// ---- MLX affine ---------------------------------------------------------------------------------------------------------------

// An octet is `bits` bytes, one little-endian number; code i is its bits [i * bits, (i + 1) * bits). With align 16 the octets of 3
// and 6 bits are cut from the aligned words of their piece of 32 weights.
template <int bits, int align>
struct Affine {
  static constexpr bool plain = false;
  struct Raw {
    uint32_t codes[2];
    uint32_t scale, bias;
  };
  __device__ static Raw load(const WeightView& view, const Row& row, int octet) {
    const uint8_t* p = row.data + static_cast<int64_t>(octet) * bits;
    Raw raw;
    raw.codes[1] = 0;
    if constexpr (bits == 2) {
      raw.codes[0] = load_u16<align>(p);
    } else if constexpr (bits == 4) {
      raw.codes[0] = load_u32<align>(p);
    } else if constexpr (bits == 8) {
      Words<2, align> words;
      words.load(p);
      raw.codes[0] = words[0], raw.codes[1] = words[1];
    } else if constexpr (align == 1) {
      raw.codes[0] = load_u16<1>(p) | static_cast<uint32_t>(__ldg(p + 2)) << 16;
      if constexpr (bits == 6) {
        raw.codes[0] |= static_cast<uint32_t>(__ldg(p + 3)) << 24;
        raw.codes[1] = load_u16<1>(p + 4);
      }
    } else {
      const int bit = (octet & 3) * 8 * bits, word = bit >> 5, last = bits - 1;  // of the piece
      const auto* q = reinterpret_cast<const uint32_t*>(row.data + static_cast<int64_t>(octet >> 2) * 4 * bits);
      const uint32_t first = __ldg(q + word), second = __ldg(q + min(word + 1, last));
      raw.codes[0] = __funnelshift_r(first, second, bit & 31);
      if constexpr (bits == 6) raw.codes[1] = second >> (bit & 31);
    }
    const int group = octet >> view.group_shift;
    raw.scale = load_scale<align>(row.scales, view.scale_dtype, group);
    raw.bias = load_scale<align>(row.biases, view.scale_dtype, group);
    return raw;
  }
  __device__ static uint32_t code(const Raw& raw, int i) {
    constexpr uint32_t mask = (1U << bits) - 1;
    if constexpr (bits <= 4) return raw.codes[0] >> (bits * i) & mask;
    if constexpr (bits == 8) return raw.codes[i / 4] >> (8 * (i % 4)) & mask;
    return (i < 5 ? raw.codes[0] >> (6 * (i % 5)) : __funnelshift_r(raw.codes[0], raw.codes[1], 24) >> (6 * (i % 4))) &
           mask;
  }
  __device__ static void decode(const WeightView& view, const Raw& raw, int, float (&w)[8]) {
    const float scale = to_float(raw.scale, view.scale_dtype), bias = to_float(raw.bias, view.scale_dtype);
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = __fmaf_rn(code_to_float(code(raw, i)), scale, bias);
  }
};

// Calls f.template operator()<D>() with the decoder of a weight's format.
template <int align, class F>
void with_decoder(const Weight& w, F f) {
  switch (w.format) {
    case WeightFormat::f32: return f.template operator()<Floats<WeightFormat::f32, align>>();
    case WeightFormat::f16: return f.template operator()<Floats<WeightFormat::f16, align>>();
    case WeightFormat::bf16: return f.template operator()<Floats<WeightFormat::bf16, align>>();
    case WeightFormat::q4_0: return f.template operator()<Q4<false, align>>();
    case WeightFormat::q4_1: return f.template operator()<Q4<true, align>>();
    case WeightFormat::q5_0: return f.template operator()<Q5<false, align>>();
    case WeightFormat::q5_1: return f.template operator()<Q5<true, align>>();
    case WeightFormat::q8_0: return f.template operator()<Q8_0<align>>();
    case WeightFormat::q4_k: return f.template operator()<Q45K<false, align>>();
    case WeightFormat::q5_k: return f.template operator()<Q45K<true, align>>();
    case WeightFormat::q6_k: return f.template operator()<Q6K<align>>();
    case WeightFormat::affine: break;
  }
  switch (w.bits) {
    case 2: return f.template operator()<Affine<2, align>>();
    case 3: return f.template operator()<Affine<3, align>>();
    case 4: return f.template operator()<Affine<4, align>>();
    case 6: return f.template operator()<Affine<6, align>>();
    default: return f.template operator()<Affine<8, align>>();
  }
}

}  // namespace sluice::cuda
