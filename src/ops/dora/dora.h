// What weight-decomposed adapters (DoRA) add to a linear layer: the norms of the adapted weight's rows, and their use in decoding.
//
//   norm[o] = || W[o] + scale * B[o] A ||_2          y'[n,o] = (magnitude[o] / norm[o]) * y[n,o]
//
// Liu et al. 2024, arXiv:2402.09353, eq. 5; the layer itself is ops/linear/linear.h, its derivation docs/math/dora.md. A row of norm 0 has the
// ratio 0. W is in any storage format, dequantised to f32 a panel at a time; W + scale B A is never formed whole. Sums are f32 in a fixed
// order. Deterministic; the same for any number of threads. Throws Error(device) when oneDNN refuses.
#pragma once

#include "core/tensor.h"
#include "core/weight.h"
#include "ops/common/dispatch.h"

namespace sluice {

struct AdaptedRowNorms {
  const Weight& weight;  // [out, in]
  Tensor lora_a;         // [R, in] f32, in    empty: the base's rows alone
  Tensor lora_b;         // [out, R] f32, in
  float scale = 1;
  Tensor norm;  // [out] f32, out
};
void adapted_row_norms(Context& ctx, const AdaptedRowNorms& args);

// For few rows, in float32: y before bias and residual.
struct ApplyMagnitude {
  Tensor magnitude, norm;  // [out] f32, in
  Tensor y;                // [N, out] f32, in and out
};
void apply_magnitude(Context& ctx, const ApplyMagnitude& args);

SLUICE_BACKENDS(adapted_row_norms, AdaptedRowNorms)
SLUICE_BACKENDS(apply_magnitude, ApplyMagnitude)

inline float magnitude_ratio(float magnitude, float norm) { return norm > 0 ? magnitude / norm : 0; }

}  // namespace sluice
