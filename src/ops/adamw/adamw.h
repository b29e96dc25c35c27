// AdamW with decoupled weight decay, and the norm of a gradient.
//
//   p *= 1 - lr * weight_decay      m = b1 m + (1-b1) g      v = b2 v + (1-b2) g^2
//   p -= lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//
// Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101. All f32; elementwise, deterministic.
#pragma once

#include "core/tensor.h"
#include "ops/common/dispatch.h"

namespace sluice {

struct AdamW {
  Tensor p, m, v;        // [n] f32 in and out
  Tensor g;              // [n] f32 in
  float grad_scale = 1;  // multiplies g first (clipping, accumulation)
  float lr = 0, beta1 = 0.9F, beta2 = 0.999F, eps = 1e-8F, weight_decay = 0;
  int64_t t = 1;  // 1 for the first update
};
void adamw(Context& ctx, const AdamW& args);

// result[0] = sum of g^2, in float64 over fixed blocks in order; result[1] = number of elements that are not finite.
struct SumOfSquares {
  Tensor g;        // [n] f32 in
  double* result;  // [2] host memory, sum
};
void sum_of_squares(Context& ctx, const SumOfSquares& args);

SLUICE_BACKENDS(adamw, AdamW)
SLUICE_BACKENDS(sum_of_squares, SumOfSquares)

}  // namespace sluice
