// Chunks of the quantised formats as matvec_tiles.cuh multiplies them, and the instructions that it takes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/activation/activation.h"
#include "ops/common/mma.cuh"

namespace sluice::cuda::tiles {

constexpr int tile_rows = 16, chunk_cols = 256, most_columns = 8;
constexpr int most_warps = 16;
constexpr int float_parts = 3;  // bf16 that add up to a float
constexpr float x_unit = 0x1p80F,
                sum_unit = 0x1p-53F;  // sum_unit: of code * 2^-133 * x * x_unit

extern __shared__ __align__(16) uint8_t matvec_shared[];

template <class T>
__device__ inline T read(uint32_t at) {
  return *reinterpret_cast<const T*>(matvec_shared + at);
}
template <class T>
__device__ inline void write(uint32_t at, T value) {
  *reinterpret_cast<T*>(matvec_shared + at) = value;
}
__device__ inline uint32_t address(uint32_t at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(matvec_shared)) + at;
}

// ---- Instructions ---------------------------------------------------------------------------------------------------

template <int bytes>
__device__ inline void copy_async(uint32_t to, const uint8_t* from) {
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address(to)), "l"(from) : "memory");
  else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address(to)), "l"(from), "n"(bytes) : "memory");
}
// The first `count` bytes; the rest are zeros.
template <int bytes>
__device__ inline void copy_async_part(uint32_t to, const uint8_t* from, int count) {
  if constexpr (bytes == 16) copy_async_part_16(address(to), from, count);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address(to)), "l"(from), "r"(count) : "memory");
}
__device__ inline void multiply_add_8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
__device__ inline uint32_t multiply_bf16(uint32_t pair, uint32_t by) {
  const __nv_bfloat162 product =
      __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), *reinterpret_cast<const __nv_bfloat162*>(&by));
  return *reinterpret_cast<const uint32_t*>(&product);
}
__device__ inline float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// ---- A product ------------------------------------------------------------------------------------------------------

// A matrix of a launch; all of a launch have one format, one count of columns and one size of groups.
struct Matrix {
  const uint8_t *data, *scales, *biases;
  void* y;
  int rows, first_tile;  // first_tile: of all tiles of the launch
  uint32_t interleaved_head_dim;
};
constexpr int most_matrices = 3;

struct Product {
  Matrix matrices[most_matrices];  // those that are missing begin past the last tile
  int64_t row_bytes, scale_row_bytes;
  int scale_bytes;                          // of a row's chunk: 4, 8 or 16
  bool scales_whole;                        // every chunk's are eight bytes at multiples of eight
  int group_shift;                          // log2 of the group / 32
  int cols, chunks, num_x, parts, columns;  // parts: bf16 that make a number of x; columns: num_x * parts
  int tiles, units, units_at_once;          // a unit is a tile, gated one of each matrix
  int k_warps, row_warps;
  bool all_whole;                                             // no row ends within a chunk
  int64_t tile_step, scale_tile_step;                         // bytes between a warp's tiles
  uint32_t x_at, x_bytes, ring_at, stage_bytes, partials_at;  // x_bytes: of a warp
  const void* x;
  bool x_bf16, y_bf16;
  bool add;    // to y
  bool gated;  // y = act(matrix 0 x) * (matrix 1 x)
  Activation activation;
  bool normed;               // x is normalised first
  const float* norm_weight;  // may be null
  float norm_eps, norm_offset;
};

// A lane's part of a tile: rows `row` and row + 8; four columns of each step of 16 and the columns 2 t, 2 t + 1 of
// sums.
struct Lane {
  int lane, row, t;
};
// Where a chunk's data lie in shared memory, by offsets.
struct Chunk {
  uint32_t rows, scales;  // of the tile; stride as the format says
  uint32_t shift[2];      // of the rows `row` and row + 8, formats not aligned:
                          // where in its 16 bytes the chunk begins
  uint32_t sums;          // this lane's
  uint4 x[8];             // of the groups of 32, this lane's
};

constexpr uint32_t nibbles = 0x000f000fU, high_nibbles = 0x00f000f0U, bytes = 0x00ff00ffU;

__device__ inline void add_scaled(float (&acc)[4], const float (&scale)[2], const float (&c)[4]) {
  acc[0] = fmaf(scale[0], c[0], acc[0]), acc[1] = fmaf(scale[0], c[1], acc[1]);
  acc[2] = fmaf(scale[1], c[2], acc[2]), acc[3] = fmaf(scale[1], c[3], acc[3]);
}
// Adds offset * (sum of x) for the chunk's groups of 32, those of number 2 t, 2 t + 1 in a lane's a0 (row `row`) and
// a1; the sums are three bf16 that add up.
__device__ inline void add_offsets(float (&acc)[4], uint32_t a0, uint32_t a1, uint4 sums) {
  multiply_add_8(acc, a0, a1, sums.z);
  mma_16x8x16(acc, a0, a1, a0, a1, sums.x, sums.y);
}
// The same for pairs of f16, which two bf16 hold exactly.
__device__ inline void add_half_offsets(float (&acc)[4], uint32_t a0, uint32_t a1, uint4 sums) {
  uint32_t high[2], low[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t pair = r == 0 ? a0 : a1;
    const float v0 = half_bits(pair & 0xffffU), v1 = half_bits(pair >> 16);
    const __nv_bfloat162 rounded = __floats2bfloat162_rn(v0, v1);
    const __nv_bfloat162 rest = __floats2bfloat162_rn(v0 - __low2float(rounded), v1 - __high2float(rounded));
    high[r] = *reinterpret_cast<const uint32_t*>(&rounded), low[r] = *reinterpret_cast<const uint32_t*>(&rest);
  }
  add_offsets(acc, low[0], low[1], sums);
  add_offsets(acc, high[0], high[1], sums);
}
// Words of 4 bytes, rows `row` and row + 8: their low nibbles, or high nibbles times 16, or the bytes themselves, times
// x.
__device__ inline void multiply_masked(float (&c)[4], uint32_t w0, uint32_t w1, uint32_t mask, uint32_t b0,
                                       uint32_t b1) {
  mma_16x8x16(c, w0 & mask, w1 & mask, w0 >> 8 & mask, w1 >> 8 & mask, b0, b1);
}

// The same of signed bytes, to which 128 is added.
__device__ inline uint32_t unsigned_bytes(uint32_t w) {  // (w ^ 0x80808080) & bytes; the compiler would make two of it
  uint32_t d;
  asm("lop3.b32 %0, %1, 0x80808080, %2, 0x28;" : "=r"(d) : "r"(w), "r"(bytes));
  return d;
}
__device__ inline void multiply_signed(float (&c)[4], uint32_t w0, uint32_t w1, uint32_t b0, uint32_t b1) {
  mma_16x8x16(c, unsigned_bytes(w0), unsigned_bytes(w1), unsigned_bytes(w0 >> 8), unsigned_bytes(w1 >> 8), b0, b1);
}

// ---- Formats
// ------------------------------------------------------------------------------------------------------------------
// chunk_bytes, pieces of 16 bytes of a chunk and the stride between rows in pieces (odd: no bank conflicts), stages of
// the ring; whether chunks begin at multiples of 16 bytes; offset_bytes, of a chunk's sums of x in parts (0: they are
// floats, with which the products of the groups of 32 begin), and what the sums are multiplied by. slot: which column
// of the chunk is number j of lane t in the group of 32 number q, and by which power of two its codes are too large.

constexpr int byte_order(int j) { return (j & 1) * 2 + (j >> 1 & 1); }  // 0 2 1 3

struct Slot {
  int column, exponent;
};

template <int bits, bool scales_bf16>
struct Affine {
  static constexpr int chunk_bytes = 32 * bits, pieces = 2 * bits, stride = 2 * bits + 1, stages = bits == 4 ? 3 : 2;
  static constexpr bool aligned = true, has_scales = true;
  static constexpr int offset_bytes = 64;
  static constexpr float sum_factor = sum_unit;
  __device__ static Slot slot(int q, int t, int j) {
    if (bits == 8) return {q * 32 + (j >> 2) * 16 + 4 * t + byte_order(j & 3), 0};
    const int nibble = (j >> 2) * 2 + (j >> 1 & 1) + (j & 1) * 4;  // 0 4 1 5 2 6 3 7
    return {q * 32 + 8 * t + nibble, (j >> 1 & 1) * 4};
  }
  __device__ static float scale(uint32_t at) {
    const uint32_t bits16 = read<uint16_t>(at);
    return scales_bf16 ? __uint_as_float(bits16 << 16) : half_bits(bits16);
  }
  __device__ static void multiply(const Product& p, const Chunk& k, const Lane& l, float (&acc)[4]) {
    if (p.group_shift == 0) multiply<true>(p, k, l, acc);
    else multiply<false>(p, k, l, acc);
  }
  template <bool group_of_32>
  __device__ static void multiply(const Product& p, const Chunk& k, const Lane& l, float (&acc)[4]) {
    const uint32_t at = k.rows + (l.lane & 15) * (stride * 16) + (l.lane >> 4) * 16;
    const uint32_t scale_rows = 16 * p.scale_bytes, scales = k.scales + l.row * 2 * p.scale_bytes;
    {
      uint32_t bias[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t from = scales + r * scale_rows + p.scale_bytes;
        if constexpr (group_of_32) bias[r] = read<uint32_t>(from + 4 * l.t);
        else bias[r] = read<uint16_t>(from + (2 * l.t >> p.group_shift) * 2) * 0x10001U;
      }
      const auto sums = read<uint4>(k.sums);
      if constexpr (scales_bf16) add_offsets(acc, bias[0], bias[1], sums);
      else add_half_offsets(acc, bias[0], bias[1], sums);
    }
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      float c[4] = {};
      uint32_t r[4];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int q = 2 * pair + u;
        const uint4 b = k.x[q];
        if constexpr (bits == 4) {
          if (u == 0) ldmatrix_x4(address(at + q * 16), r);
          const uint32_t w0 = r[2 * u], w1 = r[2 * u + 1], v0 = w0 >> 8, v1 = w1 >> 8;
          mma_16x8x16(c, w0 & nibbles, w1 & nibbles, w0 & high_nibbles, w1 & high_nibbles, b.x, b.y);
          mma_16x8x16(c, v0 & nibbles, v1 & nibbles, v0 & high_nibbles, v1 & high_nibbles, b.z, b.w);
        } else {
          ldmatrix_x4(address(at + q * 32), r);
          multiply_masked(c, r[0], r[1], bytes, b.x, b.y);
          multiply_masked(c, r[2], r[3], bytes, b.z, b.w);
        }
        if (group_of_32 || u == 1) {
          const uint32_t from = scales + (q >> (group_of_32 ? 0 : p.group_shift)) * 2;
          add_scaled(acc, {scale(from), scale(from + scale_rows)}, c);
#pragma unroll
          for (float& value : c) value = 0;
        }
      }
    }
  }
};

// The first 16 bytes of a block of q4_k or q5_k: d and dmin, then the packed scales and minima (quant_decode.h).
struct KHeader {
  uint32_t scales[2], minima[2];
  float d, minus_min;
  __device__ explicit KHeader(uint4 h) {
    d = half_bits(h.x & 0xffffU), minus_min = -half_bits(h.x >> 16);
    scales[0] = h.y & 0x3f3f3f3fU, minima[0] = h.z & 0x3f3f3f3fU;
    scales[1] = (h.w & 0x0f0f0f0fU) | (h.y >> 2 & 0x30303030U);
    minima[1] = (h.w >> 4 & 0x0f0f0f0fU) | (h.z >> 2 & 0x30303030U);
  }
  // The bytes 2 t, 2 t + 1 as codes.
  __device__ uint32_t minima_of(int t) const {
    return __byte_perm(t < 2 ? minima[0] : minima[1], 0, t & 1 ? 0x4342U : 0x4140U);
  }
  // Byte i of a word as a float: 2^23 + byte, less 2^23.
  __device__ static float number(const uint32_t (&words)[2], int i) {
    return __uint_as_float(__byte_perm(words[i / 4], 0x4B000000U, 0x7650U | (i & 3))) - 0x1p23F;
  }
};

template <bool five>
struct Q45K {
  static constexpr int chunk_bytes = five ? 176 : 144, pieces = chunk_bytes / 16, stride = pieces, stages = 3;
  static constexpr bool aligned = true, has_scales = false;
  static constexpr int offset_bytes = 64;
  static constexpr float sum_factor = x_unit;  // the minima are codes too
  __device__ static Slot slot(int q, int t, int j) {
    return {q * 32 + (j >> 2) * 16 + 4 * t + byte_order(j & 3), (q & 1) * 4};
  }
  __device__ static void multiply(const Product&, const Chunk& k, const Lane& l, float (&acc)[4]) {
    const uint32_t row = k.rows + l.row * chunk_bytes;
    const KHeader head0(read<uint4>(row)), head1(read<uint4>(row + 8 * chunk_bytes));
    const uint32_t at = k.rows + (l.lane & 15) * chunk_bytes + (l.lane >> 4) * 16;
    uint32_t fifths[4];
    if constexpr (five) ldmatrix_x4(address(at + 16), fifths);
    float sum[4] = {}, minimum[4] = {};
    add_offsets(minimum, head0.minima_of(l.t), head1.minima_of(l.t), read<uint4>(k.sums));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t r[4];
      ldmatrix_x4(address(at + (five ? 48 : 16) + 32 * i), r);
#pragma unroll
      for (int high = 0; high < 2; ++high) {
        const int s = 2 * i + high;
        const uint32_t mask = high ? high_nibbles : nibbles;
        const uint4 b = k.x[s];
        float c[4] = {};
        multiply_masked(c, r[0], r[1], mask, b.x, b.y);
        multiply_masked(c, r[2], r[3], mask, b.z, b.w);
        if constexpr (five) {  // the bit is 2^s too large, x that of the nibble
          const uint32_t bit = 0x00010001U << s;
          const uint32_t by = 0x3f803f80U + static_cast<uint32_t>(4 + 4 * high - s) * 0x00800080U;
          multiply_masked(c, fifths[0], fifths[1], bit, multiply_bf16(b.x, by), multiply_bf16(b.y, by));
          multiply_masked(c, fifths[2], fifths[3], bit, multiply_bf16(b.z, by), multiply_bf16(b.w, by));
        }
        const float scale_of[2] = {KHeader::number(head0.scales, s), KHeader::number(head1.scales, s)};
        add_scaled(sum, scale_of, c);
      }
    }
    add_scaled(acc, {head0.d, head1.d}, sum);
    add_scaled(acc, {head0.minus_min, head1.minus_min}, minimum);
  }
};

// Blocks of 32 whose scale is two bytes: the codes of every other block lie two bytes off the words. A lane takes four
// whole words of a pair of blocks; in the first block the last lane's second word is made of the two that the block's
// ends lie in.
__device__ inline uint32_t ends_word(uint32_t last, uint32_t first, int t) {
  return __byte_perm(last, first, t == 3 ? 0x1076U : 0x3210U);
}
constexpr int ends_byte(int byte) { return byte < 2 ? byte : 12 + byte; }  // of a run of 16: bytes 0, 1, 14, 15

struct Q8 {
  static constexpr int chunk_bytes = 272, pieces = 18, stride = 19, stages = 2;
  static constexpr bool aligned = false;
  static constexpr int offset_bytes = 0;
  static constexpr float sum_factor = -128 * sum_unit;
  static constexpr bool has_scales = false;
  __device__ static Slot slot(int q, int t, int j) {
    const int byte = byte_order(j & 3);
    if (q & 1) return {q * 32 + (j >> 2) * 16 + 4 * t + byte, 0};
    if (j < 4) return {q * 32 + 2 + 4 * t + byte, 0};
    return {q * 32 + (t < 3 ? 18 + 4 * t + byte : byte < 2 ? byte : 28 + byte), 0};
  }
  __device__ static void multiply(const Product&, const Chunk& k, const Lane& l, float (&acc)[4]) {
    const uint32_t row0 = k.rows + l.row * (stride * 16) + k.shift[0];
    const uint32_t row1 = k.rows + (l.row + 8) * (stride * 16) + k.shift[1];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t w[2][6];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t at = (r == 0 ? row0 : row1) + pair * 68, own = at + 4 * l.t;
        w[r][0] = read<uint32_t>(at), w[r][1] = read<uint32_t>(own + 4), w[r][2] = read<uint32_t>(own + 20);
        w[r][3] = read<uint32_t>(at + 32), w[r][4] = read<uint32_t>(own + 36), w[r][5] = read<uint32_t>(own + 52);
        w[r][2] = ends_word(w[r][2], w[r][0], l.t);
      }
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const uint4 b = k.x[2 * pair + block];
        const auto s = read<float2>(k.sums + (2 * pair + block) * 8);
        float c[4] = {s.x, s.y, s.x, s.y};
        const int first = block == 0 ? 1 : 4;
        multiply_signed(c, w[0][first], w[1][first], b.x, b.y);
        multiply_signed(c, w[0][first + 1], w[1][first + 1], b.z, b.w);
        if (block == 0) add_scaled(acc, {half_bits(w[0][0] & 0xffffU), half_bits(w[1][0] & 0xffffU)}, c);
        else add_scaled(acc, {half_bits(w[0][3] >> 16), half_bits(w[1][3] >> 16)}, c);
      }
    }
  }
};

struct Q4 {
  static constexpr int chunk_bytes = 144, pieces = 10, stride = 11, stages = 3;
  static constexpr bool aligned = false;
  static constexpr int offset_bytes = 0;
  static constexpr float sum_factor = -8 * sum_unit;
  static constexpr bool has_scales = false;
  __device__ static Slot slot(int q, int t, int j) {
    const int byte = byte_order(j & 3), high = j >> 2;
    const int place = q & 1 ? 4 * t + byte : t < 3 ? 2 + 4 * t + byte : ends_byte(byte);
    return {q * 32 + high * 16 + place, high * 4};
  }
  __device__ static void multiply(const Product&, const Chunk& k, const Lane& l, float (&acc)[4]) {
    const uint32_t row0 = k.rows + l.row * (stride * 16) + k.shift[0];
    const uint32_t row1 = k.rows + (l.row + 8) * (stride * 16) + k.shift[1];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t w[2][2], d[2][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint32_t at = (r == 0 ? row0 : row1) + pair * 36, own = at + 4 * l.t;
        d[r][0] = read<uint32_t>(at), d[r][1] = read<uint32_t>(at + 16);
        w[r][0] = ends_word(read<uint32_t>(own + 4), d[r][0], l.t), w[r][1] = read<uint32_t>(own + 20);
      }
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const uint4 b = k.x[2 * pair + block];
        const auto s = read<float2>(k.sums + (2 * pair + block) * 8);
        float c[4] = {s.x, s.y, s.x, s.y};
        multiply_masked(c, w[0][block], w[1][block], nibbles, b.x, b.y);
        multiply_masked(c, w[0][block], w[1][block], high_nibbles, b.z, b.w);
        if (block == 0) add_scaled(acc, {half_bits(d[0][0] & 0xffffU), half_bits(d[1][0] & 0xffffU)}, c);
        else add_scaled(acc, {half_bits(d[0][1] >> 16), half_bits(d[1][1] >> 16)}, c);
      }
    }
  }
};

struct Q4Min {
  static constexpr int chunk_bytes = 160, pieces = 11, stride = 11, stages = 3;
  static constexpr bool aligned = false;
  static constexpr int offset_bytes = 64;
  static constexpr float sum_factor = sum_unit;
  static constexpr bool has_scales = false;
  __device__ static Slot slot(int q, int t, int j) {
    return {q * 32 + (j >> 2) * 16 + 4 * t + byte_order(j & 3), (j >> 2) * 4};
  }
  __device__ static void multiply(const Product&, const Chunk& k, const Lane& l, float (&acc)[4]) {
    const uint32_t row0 = k.rows + l.row * (stride * 16) + k.shift[0];
    const uint32_t row1 = k.rows + (l.row + 8) * (stride * 16) + k.shift[1];
    const uint32_t own = 40 * l.t;
    add_half_offsets(acc, __byte_perm(read<uint32_t>(row0 + own), read<uint32_t>(row0 + own + 20), 0x7632U),
                     __byte_perm(read<uint32_t>(row1 + own), read<uint32_t>(row1 + own + 20), 0x7632U),
                     read<uint4>(k.sums));
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      const auto d0 = read<uint32_t>(row0 + 20 * q), d1 = read<uint32_t>(row1 + 20 * q);
      const auto w0 = read<uint32_t>(row0 + 20 * q + 4 + 4 * l.t), w1 = read<uint32_t>(row1 + 20 * q + 4 + 4 * l.t);
      const uint4 b = k.x[q];
      float c[4] = {};
      multiply_masked(c, w0, w1, nibbles, b.x, b.y);
      multiply_masked(c, w0, w1, high_nibbles, b.z, b.w);
      add_scaled(acc, {half_bits(d0 & 0xffffU), half_bits(d1 & 0xffffU)}, c);
    }
  }
};

// A group of 32 holds two runs' 16 columns each; every step of 16 columns has a scale of its own. What is taken off the
// codes, 32, makes offsets of -32 times the scales.
struct Q6K {
  static constexpr int chunk_bytes = 210, pieces = 14, stride = 15, stages = 2;
  static constexpr bool aligned = false;
  static constexpr int offset_bytes = 128;
  static constexpr float sum_factor = -32 * x_unit;
  static constexpr bool has_scales = false;
  __device__ static Slot slot(int q, int t,
                              int j) {  // q: half of the block, 16 of a run's 32, runs 0, 1 or 2, 3
    const int run = (q & 1) * 2 + (j >> 2);
    return {(q >> 2) * 128 + run * 32 + (q >> 1 & 1) * 16 + 4 * t + byte_order(j & 3), (q & 1) * 4};
  }
  __device__ static void multiply(const Product& p, const Chunk& k, const Lane& l, float (&acc)[4]) {
    if ((p.row_bytes & 2) != 0 || (k.shift[0] & 2) != 0) multiply<true>(k, l, acc);  // the same in all lanes
    else multiply<false>(k, l, acc);
  }
  template <bool shifted>
  __device__ static uint32_t word(uint32_t at, uint32_t bits) {
    if constexpr (shifted) return __funnelshift_r(read<uint32_t>(at), read<uint32_t>(at + 4), bits);
    else return read<uint32_t>(at);
  }
  template <bool shifted>
  __device__ static void multiply(const Chunk& k, const Lane& l, float (&acc)[4]) {
    const uint32_t bits = (k.shift[0] & 2) * 8;  // the same in row + 8
    const uint32_t rows[2] = {k.rows + l.row * (stride * 16) + (k.shift[0] & ~3U),
                              k.rows + (l.row + 8) * (stride * 16) + (k.shift[1] & ~3U)};
    float sum[4] = {};
    {  // offsets: (scale + 128) is a code; what the 128 adds is taken off
      uint32_t a[2][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
          a[half][r] = __byte_perm(word<shifted>(rows[r] + 192 + 8 * half + l.t / 2 * 4, bits) ^ 0x80808080U, 0,
                                   l.t & 1 ? 0x4342U : 0x4140U);
      }
      const auto b = read<uint4>(k.sums), b2 = read<uint4>(k.sums + 16);
      multiply_add_8(sum, 0x00800080U, 0x00800080U, b2.z);
      mma_16x8x16(sum, a[0][0], a[0][1], a[1][0], a[1][1], b2.x, b2.y);
      mma_16x8x16(sum, a[0][0], a[0][1], a[1][0], a[1][1], b.z, b.w);
      mma_16x8x16(sum, a[0][0], a[0][1], a[1][0], a[1][1], b.x, b.y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t scales[2][2];  // + 128; of the runs 0, 1 and 2, 3
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) scales[r][i] = word<shifted>(rows[r] + 192 + 8 * half + 4 * i, bits) ^ 0x80808080U;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t low[2][2], top[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint32_t own = rows[r] + 16 * h + 4 * l.t;
          low[0][r] = word<shifted>(own + 64 * half, bits), low[1][r] = word<shifted>(own + 64 * half + 32, bits);
          top[r] = word<shifted>(own + 128 + 32 * half, bits);
        }
#pragma unroll
        for (int run = 0; run < 4; ++run) {
          const int q = (half * 2 + h) * 2 + run / 2;
          const uint2 b = run & 1 ? make_uint2(k.x[q].z, k.x[q].w) : make_uint2(k.x[q].x, k.x[q].y);
          float c[4] = {};
          multiply_masked(c, low[run & 1][0], low[run & 1][1], run < 2 ? nibbles : high_nibbles, b.x, b.y);
          const uint32_t by = run & 1 ? 0x40804080U : 0x41804180U;  // 4, 16: what the two bits' place lacks
          multiply_masked(c, top[0], top[1], 0x00030003U << (2 * run), multiply_bf16(b.x, by), multiply_bf16(b.y, by));
          const uint32_t pick = 0x7650U | (2 * (run & 1) + h);
          const float scale_of[2] = {
              __uint_as_float(__byte_perm(scales[0][run / 2], 0x4B000000U, pick)) - (0x1p23F + 128),
              __uint_as_float(__byte_perm(scales[1][run / 2], 0x4B000000U, pick)) - (0x1p23F + 128)};
          add_scaled(sum, scale_of, c);
        }
      }
    }
    const uint32_t d0 = read<uint32_t>(rows[0] + 208) >> bits, d1 = read<uint32_t>(rows[1] + 208) >> bits;
    add_scaled(acc, {half_bits(d0 & 0xffffU), half_bits(d1 & 0xffffU)}, sum);
  }
};

}  // namespace sluice::cuda::tiles
