// Matrix-vector products with a quantised matrix, for one to a few rows of x.
//
// A row of the weight is a run of slices of 8 or 16 weights. T threads share the slices of R rows of the weight, thread t taking the
// slices t, t + T, …; T depends on the count of columns and the format only. Each (row of x, output) has one sum in each thread, fed in
// that order, then the sums of a warp and of the warps are added by a fixed tree: so a result depends neither on N nor on R.
//
// For the formats that matter most a slice is not decoded weight by weight. With w = scale * code + offset,
//   sum_i x_i w_i = scale * sum_i x_i code_i + offset * sum_i x_i,
// and a code needs no conversion: its bits, read as a float, are the subnormal number code * 2^(k - 149) when its lowest bit is bit k
// of the word. x is multiplied by 2^(87 - k) first, which is exact, so that products are code * x * 2^-62: good for 1e-18 < |x| < 1e12.
#include <algorithm>
#include <type_traits>

#include "ops/quant/quant.h"
#include "ops/quant/quant_decode.cuh"

namespace sluice::cuda {
namespace {

// ---- Slices -------------------------------------------------------------------------------------------------------------------
//
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

// ---- The kernel ---------------------------------------------------------------------------------------------------------------

constexpr int most_threads = 128;  // of a block
// Blocks of a multiprocessor, by what a thread's sums and codes take of the registers.
constexpr int blocks_at_once(int sums, bool coded) { return sums > 8 && coded ? 3 : sums > 1 ? 4 : 1; }

struct Product {
  WeightView weight;
  int rows, cols, num_slices, num_x;  // num_x: rows of x and y
  int x_tiles;
  uint32_t data_step, scale_step;  // halfwords of codes and of scales from a thread's slice to its next
  const void* x;
  void* y;
  bool x_wide;  // every run of x can be read by 16-byte loads
  bool y_bf16;
};

template <class T>
__device__ void load_run(const T* x, int count, bool wide, float* v) {
  if (wide && count >= 8) {
    if constexpr (std::is_same_v<T, float>) {
      const float4 a = __ldg(reinterpret_cast<const float4*>(x)), b = __ldg(reinterpret_cast<const float4*>(x) + 1);
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
      const uint4 a = __ldg(reinterpret_cast<const uint4*>(x));
      const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[2 * i] = __uint_as_float(words[i] << 16);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = i < count ? to_float(x[i]) : 0.0F;
  }
}

// x as the slices want it (S::prepare), for products with many rows of the weight: for 32 slices at a time four planes of float4 and one of
// the two sums, each with the slices side by side.
struct Prepared {
  static constexpr int64_t floats_of_slice = 18;
};
__host__ __device__ inline int64_t prepared_floats(int64_t num_slices) {
  return round_up(num_slices, 32) * Prepared::floats_of_slice;
}
template <class X>
__device__ void load_prepared(const float* x, int slice, X& v) {
  const float* at = x + static_cast<int64_t>(slice >> 5) * (32 * Prepared::floats_of_slice);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = *reinterpret_cast<const float4*>(at + i * 128 + (slice & 31) * 4);
    v.v[4 * i] = four.x, v.v[4 * i + 1] = four.y, v.v[4 * i + 2] = four.z, v.v[4 * i + 3] = four.w;
  }
  const float2 two = *reinterpret_cast<const float2*>(at + 512 + (slice & 31) * 2);
  v.sum[0] = two.x, v.sum[1] = two.y;
}
// A thread for each slice of a row of x; rows by blockIdx.y.
template <class S, class T>
__global__ __launch_bounds__(128) void prepare_kernel(const T* x, int cols, int num_slices, bool wide, float* out) {
  const int slice = static_cast<int>(blockIdx.x * 128 + threadIdx.x);
  if (slice >= num_slices) return;
  x += static_cast<int64_t>(blockIdx.y) * cols;
  typename S::X v;
#pragma unroll
  for (int run = 0; run < 2; ++run) load_run(x + S::column(slice, run), 8, wide, v.v + 8 * run);
  S::prepare(v);
  float* at = out + blockIdx.y * prepared_floats(num_slices) +
              static_cast<int64_t>(slice >> 5) * (32 * Prepared::floats_of_slice);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<float4*>(at + i * 128 + (slice & 31) * 4) = {v.v[4 * i], v.v[4 * i + 1], v.v[4 * i + 2],
                                                                   v.v[4 * i + 3]};
  *reinterpret_cast<float2*>(at + 512 + (slice & 31) * 2) = {v.sum[0], v.sum[1]};
}

__device__ inline const uint8_t* moved(const uint8_t* p, uint32_t halfwords) {
  return reinterpret_cast<const uint8_t*>(reinterpret_cast<const uint16_t*>(p) + halfwords);
}

// Threads (T, groups): a group shares R rows of the weight, for x_batch rows of x; one row of x must be x_wide.
// T: of x, or Prepared.
template <class S, class T, int x_batch, int R>
__global__ __launch_bounds__(most_threads, blocks_at_once(x_batch* R, S::coded)) void matvec_kernel(const Product p) {
  constexpr bool prepared = std::is_same_v<T, Prepared>;
  using Element = std::conditional_t<prepared, float, T>;
  __shared__ float sums[most_threads / 32][x_batch * R];
  const int x_begin = static_cast<int>(blockIdx.x % p.x_tiles) * x_batch;
  const int64_t first = (static_cast<int64_t>(blockIdx.x / p.x_tiles) * blockDim.y + threadIdx.y) * R;
  Row rows[R];
#pragma unroll
  for (int r = 0; r < R; ++r)  // missing rows repeat the last
    rows[r] = p.weight.row(static_cast<uint32_t>(min(first + r, static_cast<int64_t>(p.rows - 1))));
  const int64_t x_row = prepared ? prepared_floats(p.num_slices) : p.cols;
  const Element* x[x_batch];
#pragma unroll
  for (int n = 0; n < x_batch; ++n) x[n] = static_cast<const Element*>(p.x) + min(x_begin + n, p.num_x - 1) * x_row;

  // From a thread's slice to its next it is a whole number of blocks: data_step halfwords of the codes.
  float sum[x_batch][R] = {};
  typename S::Raw raw[R];
  const int place = static_cast<int>(threadIdx.x);
  int slice = place;
  uint32_t data_at = 0, scale_at = 0;
#pragma unroll
  for (int r = 0; r < R; ++r) rows[r] = S::at(p.weight, rows[r], place);
  if (slice < p.num_slices) {
#pragma unroll
    for (int r = 0; r < R; ++r) raw[r] = S::load(p.weight, rows[r], place, p.cols - slice * 8);
  }
  while (slice < p.num_slices) {
    const int next = slice + static_cast<int>(blockDim.x);
    data_at += p.data_step;
    scale_at += p.scale_step;
    const auto load_next = [&](int r) {
      if (next >= p.num_slices) return;
      const Row row = {moved(rows[r].data, data_at), moved(rows[r].scales, scale_at), moved(rows[r].biases, scale_at)};
      raw[r] = S::load(p.weight, row, place, p.cols - next * 8);
    };
    typename S::Codes codes[x_batch == 1 ? 1 : R];
    if constexpr (x_batch > 1) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        codes[r] = S::decode(p.weight, raw[r], place);
        load_next(r);
      }
    }
#pragma unroll
    for (int n = 0; n < x_batch; ++n) {
      typename S::X v;
      if constexpr (prepared) {
        load_prepared(x[n], slice, v);
      } else {
#pragma unroll
        for (int run = 0; run < S::runs; ++run) {
          const int column = S::column(slice, run);
          load_run(x[n] + column, S::plain ? p.cols - column : 8, x_batch == 1 || p.x_wide, v.v + 8 * run);
        }
        S::prepare(v);
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if constexpr (x_batch == 1) codes[0] = S::decode(p.weight, raw[r], place);
        sum[n][r] = S::add_product(codes[x_batch == 1 ? 0 : r], v, sum[n][r]);
        if constexpr (x_batch == 1) load_next(r);
      }
    }
    slice = next;
  }

  const int warps = static_cast<int>(blockDim.x / 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
  for (int n = 0; n < x_batch; ++n) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float total = warp_sum(sum[n][r]);
      if (threadIdx.x % 32 == 0) sums[threadIdx.y * warps + warp][n * R + r] = total;
    }
  }
  __syncthreads();
  const int n = static_cast<int>(threadIdx.x) / R, r = static_cast<int>(threadIdx.x) % R;
  if (n >= x_batch || x_begin + n >= p.num_x || first + r >= p.rows) return;
  float total = sums[threadIdx.y * warps][n * R + r];
  for (int w = 1; w < warps; ++w) total = __fadd_rn(total, sums[threadIdx.y * warps + w][n * R + r]);
  total = __fmul_rn(total, S::sum_scale);
  const int64_t at = static_cast<int64_t>(x_begin + n) * p.rows + first + r;
  if (p.y_bf16) static_cast<__nv_bfloat16*>(p.y)[at] = from_float<__nv_bfloat16>(total);
  else static_cast<float*>(p.y)[at] = total;
}

// Threads that share a row: about eight slices each.
int threads_for(int64_t num_slices) {
  return static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(num_slices, 8), 32), 32, most_threads));
}

template <class S, class T, int x_batch, int R>
void launch(const Context& ctx, Product p) {
  p.x_tiles = static_cast<int>(ceil_div(p.num_x, x_batch));
  const int T_threads = threads_for(p.num_slices), groups = most_threads / T_threads;
  const int64_t columns = static_cast<int64_t>(T_threads) * 8 * S::runs;
  if (p.cols > 0) {
    // Blocks keep their scales among the codes.
    const int64_t scale_row_bytes = p.weight.scale_row_bytes > 0 ? p.weight.scale_row_bytes : p.weight.row_bytes;
    p.data_step = static_cast<uint32_t>(columns * p.weight.row_bytes / p.cols / 2);
    p.scale_step = static_cast<uint32_t>(columns * scale_row_bytes / p.cols / 2);
  }
  const int64_t blocks = ceil_div(p.rows, R * groups) * p.x_tiles;
  SLUICE_ASSERT(blocks <= INT32_MAX);
  const dim3 block(static_cast<unsigned>(T_threads), static_cast<unsigned>(groups));
  matvec_kernel<S, T, x_batch, R><<<static_cast<unsigned>(blocks), block, 0, stream_of(ctx)>>>(p);
}

constexpr int most_x = 16;  // rows of x prepared at a time

// scratch: prepared_floats for each of min(N, most_x) rows of x.
template <class S, class T, bool aligned>
void multiply(const Context& ctx, Product p, float* scratch) {
  p.num_slices = static_cast<int>(ceil_div(p.cols, 8 * S::runs));
  if constexpr (aligned) {
    // Few rows: more threads that each do less hide the latency.
    const int64_t threads = static_cast<int64_t>(p.rows) * threads_for(p.num_slices);
    const int64_t enough = static_cast<int64_t>(facts_of(ctx).num_multiprocessors) * 512;
    if (p.num_x == 1 && p.x_wide && threads < 4 * enough) return launch<S, T, 1, 1>(ctx, p);
    if constexpr (S::eight_rows) {
      if (p.num_x == 1 && p.x_wide && threads >= 6 * enough) return launch<S, T, 1, 8>(ctx, p);
    }
    if (p.num_x == 1 && p.x_wide) return launch<S, T, 1, 4>(ctx, p);
  }
  if constexpr (S::coded) {
    for (int n = 0; n < p.num_x && p.num_slices > 0; n += most_x) {
      Product part = p;
      part.num_x = std::min(most_x, p.num_x - n);
      part.x = scratch;
      part.y = static_cast<std::byte*>(p.y) + static_cast<int64_t>(n) * p.rows * (p.y_bf16 ? 2 : 4);
      const dim3 blocks(static_cast<unsigned>(ceil_div(p.num_slices, 128)), static_cast<unsigned>(part.num_x));
      prepare_kernel<S><<<blocks, 128, 0, stream_of(ctx)>>>(
          static_cast<const T*>(p.x) + static_cast<int64_t>(n) * p.cols, p.cols, p.num_slices, p.x_wide, scratch);
      launch<S, Prepared, 4, 4>(ctx, part);
    }
  } else {
    launch<S, T, 4, 4>(ctx, p);
  }
}

// The slices for a decoder; affine groups by the dtype of their scales.
template <class D, DType scale_dtype>
struct SliceFor {
  using type = OctetSlice<D>;
};
template <DType scale_dtype>
struct SliceFor<Affine<4, 16>, scale_dtype> {
  using type = AffineSlice<4, scale_dtype>;
};
template <DType scale_dtype>
struct SliceFor<Affine<8, 16>, scale_dtype> {
  using type = AffineSlice<8, scale_dtype>;
};
template <bool with_min>
struct SliceFor<Q4<with_min, 16>, DType::bf16> {
  using type = Q4Slice<with_min>;
};
template <>
struct SliceFor<Q8_0<16>, DType::bf16> {
  using type = Q8Slice;
};
template <bool five>
struct SliceFor<Q45K<five, 16>, DType::bf16> {
  using type = Q45KSlice<five>;
};
template <>
struct SliceFor<Q6K<16>, DType::bf16> {
  using type = Q6KSlice;
};

}  // namespace

void weight_matvec(Context& ctx, const WeightMatvec& args) {
  const Weight& w = args.weight;
  const int64_t N = args.x.shape[0];
  ArenaScope scope(ctx.arena);
  bool prepares = w.format == WeightFormat::affine && (w.bits == 4 || w.bits == 8);
  for (WeightFormat coded : {WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q8_0, WeightFormat::q4_k,
                             WeightFormat::q5_k, WeightFormat::q6_k})
    prepares = prepares || w.format == coded;
  auto* const scratch =
      scope.array<float>(prepares ? std::min<int64_t>(N, most_x) * prepared_floats(ceil_div(w.cols, 16)) : 0);
  if (ctx.counting() || N == 0 || w.rows == 0) return;
  SLUICE_ASSERT(N <= INT32_MAX);
  const bool x_bf16 = args.x.dtype == DType::bf16;
  const Product p = {.weight = WeightView(w),
                     .rows = static_cast<int>(w.rows),
                     .cols = static_cast<int>(w.cols),
                     .num_slices = 0,
                     .num_x = static_cast<int>(N),
                     .x_tiles = 1,
                     .data_step = 0,
                     .scale_step = 0,
                     .x = args.x.data,
                     .y = args.y.data,
                     .x_wide = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 &&
                               (N == 1 || w.cols * size_of(args.x.dtype) % 16 == 0),
                     .y_bf16 = args.y.dtype == DType::bf16};
  const bool plain = block_cols(w.format) == 1;
  const bool aligned = p.weight.aligned() && (!plain || p.weight.row_bytes % 16 == 0);
  const auto multiply_by = [&]<class S, bool fast>() {
    if (x_bf16) multiply<S, __nv_bfloat16, fast>(ctx, p, scratch);
    else multiply<S, float, fast>(ctx, p, scratch);
  };
  const auto run = [&]<class D>() {
    if constexpr (std::is_same_v<D, Affine<4, 16>> || std::is_same_v<D, Affine<8, 16>>) {
      if (w.scale_dtype == DType::f32)
        return multiply_by.template operator()<typename SliceFor<D, DType::f32>::type, true>();
      if (w.scale_dtype == DType::f16)
        return multiply_by.template operator()<typename SliceFor<D, DType::f16>::type, true>();
    }
    multiply_by.template operator()<typename SliceFor<D, DType::bf16>::type, true>();
  };
  if (aligned) with_decoder<16>(w, run);
  else with_decoder<1>(w, [&]<class D>() { multiply_by.template operator()<OctetSlice<D>, false>(); });
  check_launch("weight_matvec");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(weight_matvec, WeightMatvec)
