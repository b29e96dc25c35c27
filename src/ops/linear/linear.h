// A frozen linear layer with an optional LoRA adapter.
//
//   xd = dropout(x)          xa = xd A^T          y = x W^T + bias + scale * xa B^T  (+ residual)
//
// Hu et al. 2021, arXiv:2106.09685. Backward: docs/math/linear.md:
//   dyb = scale * dy B       dA += dyb^T xd       dB += scale * dy^T xa       dx = dy W + mask(dyb A) / (1 - p)
//
// With a magnitude (DoRA: Liu et al. 2024, arXiv:2402.09353, as PEFT computes it; docs/math/dora.md), c = magnitude / norm for each output:
//
//   y = c * (x W^T + scale * xa B^T) + bias (+ residual)
//   dy' = c * dy takes dy's place above     dmagnitude[o] += sum_n dy[n,o] (x W^T + scale * xa B^T)[n,o] / norm[o]
//
// where norm, the length of each row of W + scale B A (ops/dora/dora.h), is a constant of the backward.
//
// x, y, dy are bf16 or f32 (one dtype, the operands' dtype of every product); sums are float32; y is rounded once. W is in any
// storage format and is dequantised panel-wise. Sums over tokens (dA, dB) run over chunks of `row_chunk` rows in order, so
// tiles of a multiple of row_chunk give the same bits as the whole. A row's y and dx depend on no other row. Deterministic; the
// same for any number of threads. Throws Error(device) when oneDNN refuses.
#pragma once

#include "core/tensor.h"
#include "core/weight.h"
#include "ops/common/dispatch.h"
#include "ops/common/write.h"

namespace sluice {

// Element (token n, input c) of one module is kept when random_uniform(seed, stream, (row_begin + n) * in + c) >= p.
struct Dropout {
  float p = 0;            // 0: none
  uint64_t seed = 0;      // of the run
  uint64_t stream = 0;    // from (step, microbatch, module): core/rng.h, stream_of
  int64_t row_begin = 0;  // index in the batch of the first row given
};

// Columns of xa: the rank, in whole 16 bytes.
constexpr int64_t xa_columns(int64_t rank) { return (rank + 7) / 8 * 8; }

struct LinearForward {
  const Weight& weight;  // [out, in]
  Tensor bias;           // [out] f32, in       may be empty
  Tensor lora_a;         // [R, in] f32, in     empty: no adapter
  Tensor lora_b;         // [out, R] f32, in
  Tensor magnitude;      // [out] f32, in       empty: no DoRA
  Tensor norm;           // [out] f32, in       with magnitude
  float scale = 1;
  Dropout dropout;
  Tensor x;         // [N, in]
  Tensor residual;  // [N, out] in         may be empty, may be y
  Tensor y;         // [N, out] out
  Tensor xa;  // [N, xa_columns(R)] out   may be empty; for the backward, in x's dtype; columns from R on are nobody's
};
void linear_forward(Context& ctx, const LinearForward& args);

struct LinearBackward {
  const Weight& weight;
  Tensor lora_a, lora_b, magnitude, norm;  // as in the forward pass
  float scale = 1;
  Dropout dropout;
  Tensor x;   // [N, in]  in        not read without an adapter
  Tensor xa;  // in                 of the forward pass; formed again from x when empty, to the same bits
  Tensor dy;  // [N, out] in
  Tensor dx;  // [N, in]  out, by `write`; may be empty; f32 or the dtype of dy
  Write write = Write::set;
  Tensor dlora_a;     // [R, in] f32 sum    empty without an adapter
  Tensor dlora_b;     // [out, R] f32 sum
  Tensor dmagnitude;  // [out] f32 sum     with magnitude
};
void linear_backward(Context& ctx, const LinearBackward& args);

SLUICE_BACKENDS(linear_forward, LinearForward)
SLUICE_BACKENDS(linear_backward, LinearBackward)

}  // namespace sluice
