// Slices of a row of a quantised matrix, as weight_matvec.cu multiplies them with x.
//
// For the formats that matter most a slice is not decoded weight by weight. With w = scale * code + offset,
//   sum_i x_i w_i = scale * sum_i x_i code_i + offset * sum_i x_i,
// and a code needs no conversion: its bits, read as a float, are the subnormal number code * 2^(k - 149) when its lowest bit is bit k
// of the word. x is multiplied by 2^(87 - k) first, which is exact, so that products are code * x * 2^-62: good for 1e-18 < |x| < 1e12.
#pragma once

#include "ops/common/cuda_utils.cuh"
#include "ops/quant/quant_decode.cuh"

namespace sluice::cuda::slices {

// A kind of slice: how many runs of eight consecutive columns it holds (one or two), where a run begins, how its weights are loaded and
// decoded, what x must be multiplied by, and the product.

// Decoded weight by weight: any format.
template <class D>
struct OctetSlice {
  static constexpr int runs = 1;
  static constexpr bool plain = D::plain, coded = false, eight_rows = false;
  static constexpr float sum_scale = 1;
  using Raw = decltype(D::load(std::declval<const WeightView&>(), Row{}, 0));
  struct Codes {
    float w[8];
  };
  struct X {
    float v[8];
  };
  __device__ static int column(int slice, int) { return slice * 8; }
  __device__ static Row at(const WeightView&, const Row& row, int) { return row; }
  __device__ static Raw load(const WeightView& view, const Row& row, int slice, int count) {
    if constexpr (plain) return D::load(view, row, slice, count);
    else return D::load(view, row, slice);
  }
  __device__ static Codes decode(const WeightView& view, const Raw& raw, int slice) {
    Codes codes;
    D::decode(view, raw, slice, codes.w);
    return codes;
  }
  __device__ static void prepare(X&) {}
  __device__ static float add_product(const Codes& codes, const X& x, float sum) {
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = __fmaf_rn(codes.w[i], x.v[i], sum);
    return sum;
  }
};

__device__ inline float power_of_two(int exponent) { return __int_as_float((127 + exponent) << 23); }
// Sums of products of codes, and so all sums of such a slice, are 2^-62 of their value: 2^-149 of the codes, 2^87 of x.
constexpr float code_unit = 0x1p-62F;

// Nibble j of a word as a subnormal: its lowest bit is bit nibble_bit(j).
constexpr int nibble_bit(int j) { return j < 5 ? 4 * j : 4 * (j - 5); }
__device__ inline float nibble_as_float(uint32_t word, int j) {
  return __uint_as_float((j < 5 ? word : word >> 20) & (15U << nibble_bit(j)));
}
constexpr int byte_bit(int i) { return i % 2 * 8; }
__device__ inline float byte_as_float(uint32_t word, int i) {
  return __uint_as_float((i < 2 ? word : word >> 16) & (255U << byte_bit(i)));
}

// Sixteen codes in `groups` groups (the same for both runs, or one for each).
template <int groups>
struct Codes16 {
  float c[16], scale[groups], offset[groups];
};
struct X16 {
  float v[16], sum[2];
};

// Format: load, decode and bit_of(i), the lowest bit of code i of the sixteen.
template <class Format, int groups>
struct CodeSlice {
  static constexpr int runs = 2;
  static constexpr bool plain = false, coded = true;
  static constexpr bool eight_rows = true;  // whether eight rows of the weight at once are faster than four
  static constexpr float sum_scale = 1 / code_unit;
  using Codes = Codes16<groups>;
  using X = X16;
  __device__ static void prepare(X& x) {
    float sum[2];
#pragma unroll
    for (int run = 0; run < 2; ++run) {
      const float* v = x.v + 8 * run;
      sum[run] = __fadd_rn(__fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3])),
                           __fadd_rn(__fadd_rn(v[4], v[5]), __fadd_rn(v[6], v[7])));
    }
    x.sum[0] = __fmul_rn(groups == 1 ? __fadd_rn(sum[0], sum[1]) : sum[0], code_unit);
    x.sum[1] = __fmul_rn(sum[1], code_unit);
#pragma unroll
    for (int i = 0; i < 16; ++i) x.v[i] = __fmul_rn(x.v[i], power_of_two(87 - Format::bit_of(i)));
  }
  __device__ static float add_product(const Codes& codes, const X& x, float sum) {
    float part[groups];
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      constexpr int codes_of_group = 16 / groups;
      part[g] = __fmul_rn(codes.c[codes_of_group * g], x.v[codes_of_group * g]);
#pragma unroll
      for (int i = codes_of_group * g + 1; i < codes_of_group * (g + 1); ++i)
        part[g] = __fmaf_rn(codes.c[i], x.v[i], part[g]);
    }
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      sum = __fmaf_rn(codes.scale[g], part[g], sum);
      sum = __fmaf_rn(codes.offset[g], x.sum[g], sum);
    }
    return sum;
  }
};

template <int bits, DType scale_dtype>  // 4 or 8
struct AffineSlice : CodeSlice<AffineSlice<bits, scale_dtype>, 1> {
  static constexpr int num_words = bits / 2;
  static constexpr bool wide_scales = scale_dtype == DType::f32;
  struct Raw {
    Words<num_words, 16> codes;
    uint32_t scale, bias;
  };
  static constexpr int bit_of(int i) { return bits == 4 ? nibble_bit(i % 8) : byte_bit(i % 4); }
  __device__ static int column(int slice, int run) { return slice * 16 + run * 8; }
  __device__ static Row at(const WeightView& view, const Row& row, int slice) {
    const int64_t group_at = static_cast<int64_t>(slice >> (view.group_shift - 1)) * (wide_scales ? 4 : 2);
    return {row.data + static_cast<int64_t>(slice) * (4 * num_words), row.scales + group_at, row.biases + group_at};
  }
  __device__ static Raw load(const WeightView&, const Row& row, int, int) {
    Raw raw;
    raw.codes.load(row.data);
    raw.scale = wide_scales ? load_u32<4>(row.scales) : load_u16<2>(row.scales);
    raw.bias = wide_scales ? load_u32<4>(row.biases) : load_u16<2>(row.biases);
    return raw;
  }
  __device__ static Codes16<1> decode(const WeightView&, const Raw& raw, int) {
    Codes16<1> codes;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if constexpr (bits == 4) codes.c[i] = nibble_as_float(raw.codes[i / 8], i % 8);
      else codes.c[i] = byte_as_float(raw.codes[i / 4], i % 4);
    }
    codes.scale[0] = to_float(raw.scale, scale_dtype);
    codes.offset[0] = to_float(raw.bias, scale_dtype);
    return codes;
  }
};

// Eight bytes whose low nibbles are the first run and whose high nibbles the second.
constexpr int split_nibble_bit(int i) { return nibble_bit(i % 4 * 2 + i / 8); }
template <class Words>
__device__ void split_nibbles(const Words& words, float (&c)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) c[i] = nibble_as_float(words[i % 8 / 4], i % 4 * 2 + i / 8);
}

template <bool with_min>
struct Q4Slice : CodeSlice<Q4Slice<with_min>, 1> {
  static constexpr int block = with_min ? 20 : 18, known = with_min ? 4 : 2;
  struct Raw {
    Words<2, known> codes;
    uint32_t d;
  };
  static constexpr int bit_of(int i) { return split_nibble_bit(i); }
  __device__ static int column(int slice, int run) { return (slice >> 1) * 32 + (slice & 1) * 8 + run * 16; }
  __device__ static Row at(const WeightView&, const Row& row, int slice) {
    const uint8_t* p = row.data + static_cast<int64_t>(slice >> 1) * block;
    return {p + known + 8 * (slice & 1), p, nullptr};
  }
  __device__ static Raw load(const WeightView&, const Row& row, int, int) {
    Raw raw;
    raw.codes.load(row.data);
    raw.d = with_min ? load_u32<known>(row.scales) : load_u16<known>(row.scales);
    return raw;
  }
  __device__ static Codes16<1> decode(const WeightView&, const Raw& raw, int) {
    Codes16<1> codes;
    split_nibbles(raw.codes, codes.c);
    const float d = f16_bits_to_float(raw.d & 0xffffU);
    codes.scale[0] = d;
    codes.offset[0] = with_min ? f16_bits_to_float(raw.d >> 16) : __fmul_rn(d, -8);
    return codes;
  }
};

struct Q8Slice : CodeSlice<Q8Slice, 1> {
  static constexpr bool eight_rows = false;
  struct Raw {
    Words<4, 2> codes;
    uint32_t d;
  };
  static constexpr int bit_of(int i) { return byte_bit(i % 4); }
  __device__ static int column(int slice, int run) { return slice * 16 + run * 8; }
  __device__ static Row at(const WeightView&, const Row& row, int slice) {
    const uint8_t* p = row.data + static_cast<int64_t>(slice >> 1) * 34;
    return {p + 2 + 16 * (slice & 1), p, nullptr};
  }
  __device__ static Raw load(const WeightView&, const Row& row, int, int) {
    Raw raw;
    raw.codes.load(row.data);
    raw.d = load_u16<2>(row.scales);
    return raw;
  }
  __device__ static Codes16<1> decode(const WeightView&, const Raw& raw, int) {
    Codes16<1> codes;
#pragma unroll
    for (int i = 0; i < 16; ++i) codes.c[i] = byte_as_float(raw.codes[i / 4] ^ 0x80808080U, i % 4);  // code + 128
    const float d = f16_bits_to_float(raw.d);
    codes.scale[0] = d;
    codes.offset[0] = __fmul_rn(d, -128);
    return codes;
  }
};

// Eight bytes of a block of 256; the runs belong to the sub-blocks 2 i and 2 i + 1.
template <bool five>
struct Q45KSlice : CodeSlice<Q45KSlice<five>, 2> {
  struct Raw {
    Words<4, 16> header;
    Words<2, 16> codes;
    Words<five ? 2 : 1, 16> fifths;  // five only
  };
  static constexpr int bit_of(int i) { return five ? byte_bit(i % 4) : split_nibble_bit(i); }
  __device__ static int column(int slice, int run) { return (slice >> 2) * 64 + (slice & 3) * 8 + run * 32; }
  __device__ static Row at(const WeightView&, const Row& row, int slice) {
    const uint8_t* p = row.data + static_cast<int64_t>(slice >> 4) * (five ? 176 : 144);
    return {p + (five ? 48 : 16) + 8 * (slice & 15), p, p + 16 + 8 * (slice & 3)};
  }
  __device__ static Raw load(const WeightView&, const Row& row, int, int) {
    Raw raw;
    raw.header.load(row.scales);
    raw.codes.load(row.data);
    if constexpr (five) raw.fifths.load(row.biases);
    return raw;
  }
  __device__ static Codes16<2> decode(const WeightView&, const Raw& raw, int slice) {
    Codes16<2> codes;
    if constexpr (five) {
      const int bit = (slice >> 2 & 3) * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t word = raw.codes[half], fifths = raw.fifths[half] >> bit << 4;
        const uint32_t low = (word & 0x0f0f0f0fU) | (fifths & 0x10101010U);
        const uint32_t high = (word >> 4 & 0x0f0f0f0fU) | (fifths >> 1 & 0x10101010U);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          codes.c[4 * half + i] = byte_as_float(low, i);
          codes.c[8 + 4 * half + i] = byte_as_float(high, i);
        }
      }
    } else {
      split_nibbles(raw.codes, codes.c);
    }
    // KHeader for both sub-blocks; what depends on the place only is the same in all steps of a thread.
    const int pair = slice >> 2 & 3, shift = (pair & 1) * 16;
    const bool late = pair >= 2;
    const uint32_t low = late ? 0x0f0f0f0fU : 0x3f3f3f3fU, high = late ? 0x30303030U : 0;
    const uint32_t a = raw.header[1], b = raw.header[2], c = raw.header[3];
    const uint32_t scales = (((late ? c : a) & low) | (a >> 2 & high)) >> shift;
    const uint32_t minima = (((late ? c >> 4 : b) & low) | (b >> 2 & high)) >> shift;
    const float d = f16_bits_to_float(raw.header[0] & 0xffffU);
    const float minus_min = -f16_bits_to_float(raw.header[0] >> 16);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      codes.scale[g] = __fmul_rn(code_to_float(scales >> (8 * g) & 0xffU), d);
      codes.offset[g] = __fmul_rn(code_to_float(minima >> (8 * g) & 0xffU), minus_min);
    }
    return codes;
  }
};

// Eight bytes with the low bits and eight with the high of a block of 256; the runs lie 64 weights apart.
struct Q6KSlice : CodeSlice<Q6KSlice, 2> {
  struct Raw {
    Words<2, 2> low, high;
    uint32_t d;
    int8_t scale[2];
  };
  static constexpr int bit_of(int i) { return byte_bit(i % 4); }
  // Slices of a block: its halves, runs 0 and 1 (with 2 and 3), and eight weights of a run.
  __device__ static int column(int slice, int run) {
    return (slice >> 3) * 128 + (slice >> 2 & 1) * 32 + (slice & 3) * 8 + run * 64;
  }
  __device__ static Row at(const WeightView&, const Row& row, int slice) {
    const uint8_t* p = row.data + static_cast<int64_t>(slice >> 4) * 210;
    return {p + 8 * (slice & 7) + (slice >> 3 & 1) * 64, p, nullptr};
  }
  __device__ static Raw load(const WeightView&, const Row& row, int slice, int) {
    const uint8_t* p = row.scales;
    const int half = slice >> 3 & 1;
    Raw raw;
    raw.low.load(row.data);
    raw.high.load(p + 128 + 32 * half + 8 * (slice & 3));
    const int scale = 8 * half + (slice >> 2 & 1) * 2 + (slice >> 1 & 1);
    raw.scale[0] = static_cast<int8_t>(__ldg(p + 192 + scale));
    raw.scale[1] = static_cast<int8_t>(__ldg(p + 192 + scale + 4));
    raw.d = load_u16<2>(p + 208);
    return raw;
  }
  __device__ static Codes16<2> decode(const WeightView&, const Raw& raw, int slice) {
    Codes16<2> codes;
    const int bit = (slice >> 2 & 1) * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = raw.low[half],
                     top = raw.high[half] >> bit;  // two bits of run 0 or 1, four bits on those of 2 or 3
      const uint32_t low = (word & 0x0f0f0f0fU) | (top << 4 & 0x30303030U);
      const uint32_t high = (word >> 4 & 0x0f0f0f0fU) | (top & 0x30303030U);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        codes.c[4 * half + i] = byte_as_float(low, i);
        codes.c[8 + 4 * half + i] = byte_as_float(high, i);
      }
    }
    const float d = f16_bits_to_float(raw.d);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      codes.scale[g] = __fmul_rn(static_cast<float>(raw.scale[g]), d);
      codes.offset[g] = __fmul_rn(codes.scale[g], -32);
    }
    return codes;
  }
};

}  // namespace sluice::cuda::slices
