// Decoders of the storage formats into vectors of float, for the *_cpu.cpp files of this folder. Include it after
// ops/common/cpu_simd.h (and <immintrin.h> before that): what is here is compiled for the instruction set of the pass.
//
// A row is a run of units (the format's block), a unit a run of pieces of 32 weights:
//
//   const Row row = Rows(weight).at(r);
//   for (u …) { const auto unit = D::unit(row, u);  for (p < D::pieces) { F32 w[vectors]; D::decode(unit, p, w); … } }
//
// Rows of f32, f16 and bf16 may end in a part of a piece (D::decode_part: the first `count` weights, then zeros). Each weight is
// one fused multiply-add of exact factors: the correctly rounded float of what quant_ref.h says. Nothing beyond a
// row's last byte is read: it may be the last of a mapped file.
#pragma once

#include "core/weight.h"

namespace sluice::SLUICE_CPU {
namespace {

constexpr int piece_cols = 32;
constexpr int vectors = piece_cols / lanes;  // of a piece: 2 or 4
constexpr int half = vectors / 2;

struct Row {
  const std::byte* data;
  const std::byte *scales, *biases;  // affine only, as are the following
  DType scale_dtype;
  int group_shift;  // log2 of pieces in a group
};

// The rows of a weight, with what is the same for all of them worked out once.
struct Rows {
  const Weight& weight;
  int64_t row_bytes, scale_bytes = 0;
  int group_shift = 0;

  explicit Rows(const Weight& w) : weight(w), row_bytes(w.row_bytes()) {
    if (w.format != WeightFormat::affine) return;
    scale_bytes = w.cols / w.group_size * size_of(w.scale_dtype);
    group_shift = w.group_size == 32 ? 0 : w.group_size == 64 ? 1 : 2;
  }
  Row at(int64_t row) const {
    const int64_t stored = weight.stored_row(row);
    return {weight.data + stored * row_bytes, weight.scales + stored * scale_bytes,
            weight.biases + stored * scale_bytes, weight.scale_dtype, group_shift};
  }
};

#if defined(SLUICE_ISA_AVX512)
// The masked forms with a full mask are the plain instructions; the plain forms make GCC 12 warn (GCC bug 105593).
constexpr __mmask16 all_lanes = 0xffff;
SLUICE_INLINE F32 fma(F32 a, F32 b, F32 c) { return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
SLUICE_INLINE F32 load_f16(const std::byte* p) { return (F32)_mm512_maskz_cvtph_ps(all_lanes, load_raw<__m256i>(p)); }
struct F16Pair {
  F32 first, second;
};
SLUICE_INLINE F16Pair two_f16_at(const std::byte* p) {
  const __m512 pair = _mm512_maskz_cvtph_ps(all_lanes, _mm256_set1_epi32(load_raw<int32_t>(p)));
  return {(F32)_mm512_maskz_moveldup_ps(all_lanes, pair), (F32)_mm512_maskz_movehdup_ps(all_lanes, pair)};
}
SLUICE_INLINE F32 all(float value) { return (F32)_mm512_set1_ps(value); }
SLUICE_INLINE I32 load_u8(const std::byte* p) {
  return (I32)_mm512_maskz_cvtepu8_epi32(all_lanes, load_raw<__m128i>(p));
}
SLUICE_INLINE I32 load_i8(const std::byte* p) {
  return (I32)_mm512_maskz_cvtepi8_epi32(all_lanes, load_raw<__m128i>(p));
}
SLUICE_INLINE I32 spread(__m128i source, I32 bytes) {  // each 128-bit lane picks its own bytes of `source`
  return (I32)_mm512_shuffle_epi8(_mm512_maskz_broadcast_i32x4(all_lanes, source), (__m512i)bytes);
}
#else
SLUICE_INLINE F32 fma(F32 a, F32 b, F32 c) { return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
SLUICE_INLINE F32 load_f16(const std::byte* p) { return (F32)_mm256_cvtph_ps(load_raw<__m128i>(p)); }
struct F16Pair {
  F32 first, second;
};
SLUICE_INLINE F16Pair two_f16_at(const std::byte* p) {
  const __m256 pair = _mm256_cvtph_ps(_mm_set1_epi32(load_raw<int32_t>(p)));
  return {(F32)_mm256_moveldup_ps(pair), (F32)_mm256_movehdup_ps(pair)};
}
SLUICE_INLINE F32 all(float value) { return (F32)_mm256_set1_ps(value); }
SLUICE_INLINE I32 load_u8(const std::byte* p) { return (I32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
SLUICE_INLINE I32 load_i8(const std::byte* p) { return (I32)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
SLUICE_INLINE I32 spread(__m128i source, I32 bytes) {
  return (I32)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(source), (__m256i)bytes);
}
#endif

SLUICE_INLINE float f16_at(const std::byte* p) { return _cvtsh_ss(load_raw<uint16_t>(p)); }
SLUICE_INLINE F32 load_bf16(const std::byte* p) { return (F32)(__builtin_convertvector(load_raw<U16>(p), U32) << 16); }
SLUICE_INLINE F32 to_float(I32 v) { return __builtin_convertvector(v, F32); }

struct Lanes {
  int32_t value[lanes];
};
template <class F>
constexpr Lanes each_lane(F f) {
  Lanes l = {};
  for (int i = 0; i < lanes; ++i) l.value[i] = f(i);
  return l;
}
constexpr Lanes lane_index = each_lane([](int i) { return i; });

// scale * code + offset.
struct Line {
  F32 scale, offset;
  SLUICE_INLINE Line of(F32 scale, F32 offset) { return {scale, offset}; }
  SLUICE_INLINE Line of(float scale, float offset) { return {all(scale), all(offset)}; }
  SLUICE_INLINE F32 at(const Line& line, I32 code) { return fma(to_float(code), line.scale, line.offset); }
};

// The same for codes of four bits, in whose lanes higher bits may stand. AVX-512 looks the value up among sixteen, by an
// instruction that reads only the low four bits.
#if defined(SLUICE_ISA_AVX512)
struct Line4 {
  F32 table;
  SLUICE_INLINE Line4 of(F32 scale, F32 offset) {
    return {fma(to_float(load_raw<I32>(lane_index.value)), scale, offset)};
  }
  SLUICE_INLINE Line4 of(float scale, float offset) { return of(all(scale), all(offset)); }
  SLUICE_INLINE F32 at(const Line4& line, I32 code) {
    return (F32)_mm512_maskz_permutexvar_ps(all_lanes, (__m512i)code, (__m512)line.table);
  }
};
#else
struct Line4 {
  Line line;
  SLUICE_INLINE Line4 of(F32 scale, F32 offset) { return {Line::of(scale, offset)}; }
  SLUICE_INLINE Line4 of(float scale, float offset) { return {Line::of(scale, offset)}; }
  SLUICE_INLINE F32 at(const Line4& l, I32 code) { return Line::at(l.line, code & 15); }
};
#endif

// ---- Plain floats -------------------------------------------------------------------------------------------------------------

template <int bytes, F32 (*load_vector)(const std::byte*)>
struct Floats {
  static constexpr int pieces = 1, weight_bytes = bytes, unit_bytes = piece_cols * bytes;
  static constexpr bool has_part = true;
  using Unit = const std::byte*;
  SLUICE_INLINE Unit unit(const Row& row, int64_t u) { return row.data + u * unit_bytes; }
  SLUICE_INLINE void decode(Unit p, int, F32 (&w)[vectors]) {
    for (int v = 0; v < vectors; ++v) w[v] = load_vector(p + v * lanes * bytes);
  }
  SLUICE_INLINE void decode_part(Unit p, int64_t count, F32 (&w)[vectors]) {
    std::byte part[piece_cols * bytes] = {};
    std::memcpy(part, p, static_cast<size_t>(count * bytes));
    decode(part, 0, w);
  }
};
SLUICE_INLINE F32 load_f32(const std::byte* p) { return load_raw<F32>(p); }
using F32Row = Floats<4, load_f32>;
using F16Row = Floats<2, load_f16>;
using Bf16Row = Floats<2, load_bf16>;

struct Quantised {
  static constexpr bool has_part = false;
  template <class Unit>
  SLUICE_INLINE void decode_part(const Unit&, int64_t, F32 (&)[vectors]) {}
};

// ---- GGUF, blocks of 32 -------------------------------------------------------------------------------------------------------

// Sixteen bytes of nibbles: vector v of the low half and its counterpart in the high half.
template <class F>
SLUICE_INLINE void each_nibble_vector(const std::byte* codes, F f) {
  for (int v = 0; v < half; ++v) {
    const I32 byte = load_u8(codes + v * lanes);
    f(v, byte);
    f(v + half, byte >> 4);
  }
}

template <bool with_min>
struct Q4 : Quantised {
  static constexpr int pieces = 1, unit_bytes = with_min ? 20 : 18;
  struct Unit {
    Line4 line;
    const std::byte* codes;
  };
  SLUICE_INLINE Unit unit(const Row& row, int64_t u) {
    const std::byte* p = row.data + u * unit_bytes;
    if constexpr (with_min) {
      const F16Pair dm = two_f16_at(p);
      return {Line4::of(dm.first, dm.second), p + 4};
    } else {
      const float d = f16_at(p);
      return {Line4::of(d, -8 * d), p + 2};
    }
  }
  SLUICE_INLINE void decode(const Unit& u, int, F32 (&w)[vectors]) {
    each_nibble_vector(u.codes, [&](int v, I32 code) { w[v] = Line4::at(u.line, code); });
  }
};

template <bool with_min>
struct Q5 : Quantised {
  static constexpr int pieces = 1, unit_bytes = with_min ? 24 : 22;
  struct Unit {
    Line line;
    const std::byte* fifths;  // 4 bytes, then the nibbles
  };
  SLUICE_INLINE Unit unit(const Row& row, int64_t u) {
    const std::byte* p = row.data + u * unit_bytes;
    const float d = f16_at(p);
    return {Line::of(d, with_min ? f16_at(p + 2) : -16 * d), p + (with_min ? 4 : 2)};
  }
  SLUICE_INLINE void decode(const Unit& u, int, F32 (&w)[vectors]) {
    const U32 fifths = U32{} + load_raw<uint32_t>(u.fifths);
    const U32 index = (U32)load_raw<I32>(lane_index.value);
    each_nibble_vector(u.fifths + 4, [&](int v, I32 code) {
      const I32 fifth = (I32)((fifths >> (index + static_cast<uint32_t>(v * lanes))) & 1U) << 4;
      w[v] = Line::at(u.line, (code & 15) | fifth);
    });
  }
};

struct Q8_0 : Quantised {
  static constexpr int pieces = 1, unit_bytes = 34;
  struct Unit {
    F32 scale;
    const std::byte* codes;
  };
  SLUICE_INLINE Unit unit(const Row& row, int64_t u) {
    const std::byte* p = row.data + u * unit_bytes;
    return {all(f16_at(p)), p + 2};
  }
  SLUICE_INLINE void decode(const Unit& u, int, F32 (&w)[vectors]) {
    for (int v = 0; v < vectors; ++v) w[v] = to_float(load_i8(u.codes + v * lanes)) * u.scale;
  }
};

// ---- GGUF, blocks of 256 ------------------------------------------------------------------------------------------------------

// q4_k and q5_k keep eight scales and eight minima of six bits in twelve bytes a, b, c of four: a and b hold the low six bits of the
// first four scales and minima; c holds the low nibbles of the last four, whose top two bits are those of a and b.
struct ScalesAndMins {
  float scale[8], offset[8];
};
SLUICE_INLINE void unpack_scales(const std::byte* p, ScalesAndMins& out) {
  const uint32_t a = load_raw<uint32_t>(p + 4), b = load_raw<uint32_t>(p + 8), c = load_raw<uint32_t>(p + 12);
  const uint32_t packed[4] = {a & 0x3f3f3f3fU, (c & 0x0f0f0f0fU) | ((a >> 2) & 0x30303030U), b & 0x3f3f3f3fU,
                              ((c >> 4) & 0x0f0f0f0fU) | ((b >> 2) & 0x30303030U)};
  const __m256 d = _mm256_set1_ps(f16_at(p)), minus_dmin = _mm256_set1_ps(-f16_at(p + 2));
  const auto eight = [&](int i) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(packed + i))));
  };
  _mm256_storeu_ps(out.scale, _mm256_mul_ps(eight(0), d));
  _mm256_storeu_ps(out.offset, _mm256_mul_ps(eight(2), minus_dmin));
}

struct Q4K : Quantised {
  static constexpr int pieces = 8, unit_bytes = 144;
  struct Unit {
    ScalesAndMins s;
    const std::byte* codes;
  };
  SLUICE_INLINE Unit unit(const Row& row, int64_t u) {
    const std::byte* p = row.data + u * unit_bytes;
    Unit unit;
    unpack_scales(p, unit.s);
    unit.codes = p + 16;
    return unit;
  }
  SLUICE_INLINE void decode(const Unit& u, int piece, F32 (&w)[vectors]) {
    const Line4 line = Line4::of(u.s.scale[piece], u.s.offset[piece]);
    const std::byte* codes = u.codes + piece / 2 * 32;
    for (int v = 0; v < vectors; ++v) w[v] = Line4::at(line, load_u8(codes + v * lanes) >> (piece % 2 * 4));
  }
};

struct Q5K : Quantised {
  static constexpr int pieces = 8, unit_bytes = 176;
  struct Unit {
    ScalesAndMins s;
    const std::byte* fifths;  // 32 bytes, then the nibbles
  };
  SLUICE_INLINE Unit unit(const Row& row, int64_t u) {
    const std::byte* p = row.data + u * unit_bytes;
    Unit unit;
    unpack_scales(p, unit.s);
    unit.fifths = p + 16;
    return unit;
  }
  SLUICE_INLINE void decode(const Unit& u, int piece, F32 (&w)[vectors]) {
    const Line line = Line::of(u.s.scale[piece], u.s.offset[piece]);
    const std::byte* codes = u.fifths + 32 + piece / 2 * 32;
    for (int v = 0; v < vectors; ++v) {
      const I32 low = (load_u8(codes + v * lanes) >> (piece % 2 * 4)) & 15;
      const I32 fifth = ((load_u8(u.fifths + v * lanes) >> piece) & 1) << 4;
      w[v] = Line::at(line, low | fifth);
    }
  }
};

struct Q6K : Quantised {
  static constexpr int pieces = 8, unit_bytes = 210;
  struct Unit {
    float scale[16];
    const std::byte* low;  // 128 bytes, then 64 bytes of high bits
  };
  SLUICE_INLINE Unit unit(const Row& row, int64_t u) {
    const std::byte* p = row.data + u * unit_bytes;
    Unit unit;
    const F32 d = all(f16_at(p + 208));
    for (int v = 0; v < 16 / lanes; ++v) store(unit.scale + v * lanes, to_float(load_i8(p + 192 + v * lanes)) * d);
    unit.low = p;
    return unit;
  }
  SLUICE_INLINE void decode(const Unit& u, int piece, F32 (&w)[vectors]) {
    const int run = piece % 4;
    const std::byte* low = u.low + piece / 4 * 64 + run % 2 * 32;
    const std::byte* high = u.low + 128 + piece / 4 * 32;
    for (int v = 0; v < vectors; ++v) {
      const I32 code =
          ((load_u8(low + v * lanes) >> (run / 2 * 4)) & 15) | ((load_u8(high + v * lanes) >> (run * 2)) & 3) << 4;
      w[v] = to_float(code - 32) * u.scale[piece * 2 + v / half];
    }
  }
};

// ---- MLX affine ---------------------------------------------------------------------------------------------------------------

SLUICE_INLINE float scale_at(const std::byte* p, DType dtype, int64_t i) {
  if (dtype == DType::bf16) return std::bit_cast<float>(static_cast<uint32_t>(load_raw<uint16_t>(p + 2 * i)) << 16);
  return dtype == DType::f16 ? f16_at(p + 2 * i) : load_raw<float>(p + 4 * i);
}

// A piece is 4 * bits bytes, one little-endian number; code i is its bits [i * bits, (i + 1) * bits). A lane picks the one
// or two bytes that hold its code from a window of the piece, shifts and masks.
template <int bits>
struct Affine : Quantised {
  static constexpr int pieces = 1, unit_bytes = 4 * bits;
  static constexpr int second = bits == 3 ? 4 : bits == 6 ? 8 : 0;  // where the window of codes 16 to 31 begins
  struct Unit {
    std::conditional_t<bits <= 4, Line4, Line> line;
    const std::byte* codes;
  };
  SLUICE_INLINE Unit unit(const Row& row, int64_t u) {
    const int64_t group = u >> row.group_shift;
    const float scale = scale_at(row.scales, row.scale_dtype, group),
                bias = scale_at(row.biases, row.scale_dtype, group);
    return {decltype(Unit::line)::of(scale, bias), row.data + u * unit_bytes};
  }

  static constexpr int bit_in_window(int i) { return i * bits - (i >= 16 ? 8 * second : 0); }
  SLUICE_INLINE __m128i window(const std::byte* p) {
    if constexpr (bits <= 3) return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    else return load_raw<__m128i>(p);
  }
  template <int v>
  SLUICE_INLINE I32 codes_of(const std::byte* p) {
    static constexpr Lanes pick = each_lane([](int i) {
      const int bit = bit_in_window(v * lanes + i), byte = bit / 8;
      const int next = bit % 8 + bits > 8 ? byte + 1 : 0x80;  // 0x80: a zero
      return static_cast<int32_t>(0x80800000U | static_cast<uint32_t>(next << 8 | byte));
    });
    static constexpr Lanes shift = each_lane([](int i) { return bit_in_window(v * lanes + i) % 8; });
    const I32 picked = spread(window(p + (v >= half ? second : 0)), load_raw<I32>(pick.value));
    const I32 code = (I32)((U32)picked >> (U32)load_raw<I32>(shift.value));
    return bits == 4 ? code : code & ((1 << bits) - 1);  // Line4 masks four bits itself
  }
  SLUICE_INLINE void decode(const Unit& u, int, F32 (&w)[vectors]) {
    if constexpr (bits == 8) {
      for (int v = 0; v < vectors; ++v) w[v] = Line::at(u.line, load_u8(u.codes + v * lanes));
    } else {
      using L = decltype(u.line);
      w[0] = std::remove_const_t<L>::at(u.line, codes_of<0>(u.codes));
      w[1] = std::remove_const_t<L>::at(u.line, codes_of<1>(u.codes));
      if constexpr (vectors == 4) {
        w[2] = std::remove_const_t<L>::at(u.line, codes_of<2>(u.codes));
        w[3] = std::remove_const_t<L>::at(u.line, codes_of<3>(u.codes));
      }
    }
  }
};

// Calls f with the decoder of a weight's format.
template <class F>
SLUICE_INLINE void with_decoder(const Weight& w, F f) {
  switch (w.format) {
    case WeightFormat::f32: return f(F32Row());
    case WeightFormat::f16: return f(F16Row());
    case WeightFormat::bf16: return f(Bf16Row());
    case WeightFormat::q4_0: return f(Q4<false>());
    case WeightFormat::q4_1: return f(Q4<true>());
    case WeightFormat::q5_0: return f(Q5<false>());
    case WeightFormat::q5_1: return f(Q5<true>());
    case WeightFormat::q8_0: return f(Q8_0());
    case WeightFormat::q4_k: return f(Q4K());
    case WeightFormat::q5_k: return f(Q5K());
    case WeightFormat::q6_k: return f(Q6K());
    case WeightFormat::affine: break;
  }
  switch (w.bits) {
    case 2: return f(Affine<2>());
    case 3: return f(Affine<3>());
    case 4: return f(Affine<4>());
    case 6: return f(Affine<6>());
    default: return f(Affine<8>());
  }
}

}  // namespace
}  // namespace sluice::SLUICE_CPU
