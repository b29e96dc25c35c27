// Root-mean-square normalisation over the last axis, with a learned scale.
//
//   rstd[n] = 1 / sqrt(mean_c x[n,c]^2 + eps)          y[n,c] = x[n,c] * rstd[n] * (offset + weight[c])
//
// Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4; eps as in Llama; offset is 1 for Gemma 2 and 3 from safetensors, else
// 0; without a weight the factor is 1. Rows are [N, groups * C]: each group of C is normalised by itself with the same
// weight (q and k norms over the heads). Backward: docs/math/rmsnorm.md. x and y share one dtype, f32 or bf16; weight
// is f32; everything inside is f32, rounded once. The backward recomputes rstd. Deterministic.
//
// With a `table` (ops/rope/rope.h) each group is a head that RoPE turns after it is normalised (q and k of Gemma 3 and 4 and of
// Qwen3): y = rope(norm(x)), norm(x) rounded to its dtype in between as Hugging Face does. The backward turns dy back in f32.
#pragma once

#include "core/tensor.h"
#include "ops/common/dispatch.h"
#include "ops/common/write.h"

namespace sluice {

struct RmsNormForward {
  Tensor x;         // [N, G * C]  in
  Tensor weight;    // [C] f32     in    may be empty: factor 1
  Tensor residual;  // [N, G * C]  in    may be empty; added to the result before rounding (Gemma's post-norms)
  Tensor table;     // [N, C] f32  in    may be empty; the rows of these tokens; not with a residual
  Tensor y;         // [N, G * C]  out   may be x or residual
  int64_t groups = 1;
  float eps = 1e-6F;  // > 0
  float offset = 0;
};
void rmsnorm_forward(Context& ctx, const RmsNormForward& args);

struct RmsNormBackward {
  Tensor x, weight, table;  // as in the forward pass
  Tensor dy;                // [N, G * C]  in    f32 or the dtype of x
  Tensor dx;                // [N, G * C]  out, by `write`; f32 or the dtype of x; may be dy when the dtypes agree
  Write write = Write::set;
  int64_t groups = 1;
  float eps = 1e-6F;
  float offset = 0;
};
void rmsnorm_backward(Context& ctx, const RmsNormBackward& args);

SLUICE_BACKENDS(rmsnorm_forward, RmsNormForward)
SLUICE_BACKENDS(rmsnorm_backward, RmsNormBackward)

}  // namespace sluice
