// Gated activations: y = act(a) * b, with act silu (Llama) or gelu_tanh (Gemma).
//
//   silu(z) = z / (1 + exp(-z))           gelu_tanh(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))
//
// Shazeer 2020, arXiv:2002.05202, eq. 5-6. Backward: docs/math/activation.md. One dtype, f32 or bf16; float32 inside.
// Deterministic.
#pragma once

#include "core/tensor.h"
#include "ops/common/dispatch.h"

namespace sluice {

enum class Activation : uint8_t { silu, gelu_tanh };

struct GatedForward {
  Activation activation = Activation::silu;
  Tensor a, b;  // [N, F] in
  Tensor y;     // [N, F] out   may be a or b
};
void gated_forward(Context& ctx, const GatedForward& args);

struct GatedBackward {
  Activation activation = Activation::silu;
  Tensor a, b;    // [N, F] in
  Tensor dy;      // [N, F] in
  Tensor da, db;  // [N, F] out   da may be a or dy, db may be b or dy; db may be empty (b is a constant)
};
void gated_backward(Context& ctx, const GatedBackward& args);

SLUICE_BACKENDS(gated_forward, GatedForward)
SLUICE_BACKENDS(gated_backward, GatedBackward)

}  // namespace sluice
