// What the CUDA forward and backward of the linear layer share: the adapter as operands, dropout, and passes over the
// rows of x or dy that form the thin products and the adapter's gradients.
#pragma once

#include <cmath>

#include "ops/common/cuda_utils.cuh"
#include "ops/linear/linear.h"

namespace sluice::cuda {

// The adapter in the operands' dtype, its rank padded with zeros to a multiple of 8. `factor` = scale / (1 - p)
// multiplies the thin products in f32 before they are rounded, so that neither the adapter's weights nor x are rounded
// for it.
struct AdapterOperands {
  int64_t R = 0, padded = 0, in = 0, out = 0;
  DType dtype = DType::bf16;
  float factor = 1;
  void* a = nullptr;          // [padded, in]
  void* b = nullptr;          // [out, padded] in the forward
  void* b_t = nullptr;        // [padded, out] in the backward
  float* ratio = nullptr;     // [out] magnitude / norm, in the forward with DoRA
  uint32_t* zeros = nullptr;  // [num_zeros]
};
struct AdapterWeights {
  Tensor lora_a, lora_b, magnitude, norm;
};
// Takes scratch from the arena; nothing is launched while it counts.
AdapterOperands adapter_operands(Context& ctx, const AdapterWeights& weights, float scale, float p, DType dtype,
                                 bool backward, int64_t num_zeros = 0);

// Dropout: keep [rows, words], bit c % 32 of word c / 32 of a row, and xd = keep ? x : 0. Either may be null.
inline int64_t keep_words(int64_t cols) { return ceil_div(cols, 32); }
void drop(const Context& ctx, const Dropout& dropout, DType dtype, const void* x, int64_t rows, int64_t cols,
          uint32_t* keep, void* xd);

// Dropout's numbers: core/rng.h's philox with the keys of its rounds. An element stays when its number is at least
// `threshold`: (number >> 8) / 2^24 >= p.
struct Draws {
  uint32_t keys[10][2];
  uint32_t stream[2];
  uint32_t threshold;
  int64_t row_begin;
};
inline Draws draws_of(const Dropout& d) {
  Draws draws{.stream = {static_cast<uint32_t>(d.stream), static_cast<uint32_t>(d.stream >> 32)},
              .threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(d.p) * 0x1p24)) << 8,
              .row_begin = d.row_begin};
  for (uint32_t round = 0; round < 10; ++round) {
    draws.keys[round][0] = static_cast<uint32_t>(d.seed) + round * 0x9E3779B9U;
    draws.keys[round][1] = static_cast<uint32_t>(d.seed >> 32) + round * 0xBB67AE85U;
  }
  return draws;
}
// Which of the elements 4 block … 4 block + 3 stay, a bit each.
__device__ inline uint32_t kept_of_four(const Draws& d, uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = d.stream[0],
           c3 = d.stream[1];
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53U} * c0, b = uint64_t{0xCD9E8D57U} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ d.keys[round][0];
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ d.keys[round][1];
    c3 = static_cast<uint32_t>(a);
  }
  return (c0 >= d.threshold ? 1U : 0U) | (c1 >= d.threshold ? 2U : 0U) | (c2 >= d.threshold ? 4U : 0U) |
         (c3 >= d.threshold ? 8U : 0U);
}

// One pass over X [rows, cols], which begins at a row chunk:
//   low[n, r] = round(factor * sum_c X[n, c] w[r, c])                     when w is given
//   partials[chunk, c, r] = sum over the chunk's rows n of X[n, c] other[n, r]    when other is given
struct AdapterPass {
  DType dtype = DType::bf16;
  const void* x = nullptr;
  int64_t rows = 0, cols = 0, R = 0, padded = 0;
  const void* w = nullptr;  // [padded, cols]
  float factor = 1;
  void* low = nullptr;          // [rows, padded]
  float* sums = nullptr;        // adapter_pass_sums floats of scratch, for low
  const void* other = nullptr;  // [rows, padded]
  float* partials = nullptr;    // [chunks, cols, padded]
};
int64_t adapter_pass_sums(bool hopper, int64_t rows, int64_t padded);
// `hopper`: the kernel for sm_90a; X is bf16, at 16 bytes, cols a multiple of 8.
void adapter_pass(const Context& ctx, bool hopper, const AdapterPass& pass);

// dA[r, i] += partials_a[chunk, i, r], dB[o, r] += partials_b[chunk, o, r], in the order of the chunks.
struct Partials {
  int chunks = 0, R = 0, padded = 0, in = 0, out = 0;
  float *a = nullptr, *b = nullptr, *da = nullptr, *db = nullptr;
};
void add_partials(const Context& ctx, const Partials& partials);

// What one of `threads` threads does of it: four ranks of a column at a time. Within 40 registers.
__device__ inline void add_partials(const Partials& p, int thread, int threads) {
  const int quads = p.padded / 4;
  for (int item = thread; item < (p.in + p.out) * quads; item += threads) {
    const bool is_a = item < p.in * quads;
    const int i = is_a ? item : item - p.in * quads, stride = (is_a ? p.in : p.out) * quads;
    const int col = i / quads, r = (i - col * quads) * 4, step = is_a ? p.in : 1, ranks = p.R - r;
    const auto* from = reinterpret_cast<const float4*>(is_a ? p.a : p.b) + i;
    float* const to = is_a ? p.da + (int64_t{r} * p.in + col) : p.db + (int64_t{col} * p.R + r);
    float4 sum = make_float4(0, 0, 0, 0);
    if (ranks > 0) sum.x = to[0];
    if (ranks > 1) sum.y = to[step];
    if (ranks > 2) sum.z = to[int64_t{2} * step];
    if (ranks > 3) sum.w = to[int64_t{3} * step];
#pragma unroll 2
    for (int chunk = 0; chunk < p.chunks; ++chunk, from += stride) {
      const float4 v = *from;
      sum = make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
    }
    if (ranks > 0) to[0] = sum.x;
    if (ranks > 1) to[step] = sum.y;
    if (ranks > 2) to[int64_t{2} * step] = sum.z;
    if (ranks > 3) to[int64_t{3} * step] = sum.w;
  }
}

}  // namespace sluice::cuda
