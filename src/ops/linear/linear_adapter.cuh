// What the CUDA forward and backward of the linear layer share: the adapter as operands, dropout, and passes over the
// rows of x or dy that form the thin products and the adapter's gradients.
#pragma once

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
  void* a = nullptr;       // [padded, in]
  void* b = nullptr;       // [out, padded] in the forward
  void* b_t = nullptr;     // [padded, out] in the backward
  float* ratio = nullptr;  // [out] magnitude / norm, in the forward with DoRA
};
struct AdapterWeights {
  Tensor lora_a, lora_b, magnitude, norm;
};
// Takes scratch from the arena; nothing is launched while it counts.
AdapterOperands adapter_operands(Context& ctx, const AdapterWeights& weights, float scale, float p, DType dtype,
                                 bool backward);

// Dropout: keep [rows, words], bit c % 32 of word c / 32 of a row, and xd = keep ? x : 0. Either may be null.
inline int64_t keep_words(int64_t cols) { return ceil_div(cols, 32); }
void drop(const Context& ctx, const Dropout& dropout, DType dtype, const void* x, int64_t rows, int64_t cols,
          uint32_t* keep, void* xd);

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
int64_t adapter_pass_sums(bool hopper, int64_t rows, int64_t cols, int64_t padded);
// `hopper`: the kernel for sm_90a; X is bf16, at 16 bytes, cols a multiple of 8.
void adapter_pass(const Context& ctx, bool hopper, const AdapterPass& pass);

// dA[r, i] += partials_a[chunk, i, r], dB[o, r] += partials_b[chunk, o, r], in the order of the chunks.
void add_partials(const Context& ctx, const AdapterOperands& ad, int64_t chunks, const float* partials_a,
                  const float* partials_b, float* da, float* db);

}  // namespace sluice::cuda
