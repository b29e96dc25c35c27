// Rotary position embedding, half-split pairs (i, i + D/2).
//
//   (a, b) -> (a cos - b sin, b cos + a sin)        with cos, sin of position * frequency[i], times `factor`
//
// Su et al. 2021, arXiv:2104.09864. Angles are formed in float64, then rounded to a float32 table, once per batch:
// fp32 angles are off by up to 1e-2 rad near position 1e5. Backward: the rotation with negated angle. Deterministic.
#pragma once

#include "core/tensor.h"
#include "ops/common/dispatch.h"

namespace sluice {

struct RopeTable {
  const double* frequencies;  // [D / 2] host memory, in
  double factor = 1;          // on cos and sin (yarn)
  Tensor positions;           // [N] i32, in
  Tensor table;               // [N, D] f32, out: D/2 cosines, then D/2 sines
};
void rope_table(Context& ctx, const RopeTable& args);

struct Rope {
  Tensor x;      // [N, heads * D] f32 or bf16, in
  Tensor table;  // [N, D] f32, in: the rows of these tokens
  Tensor y;      // [N, heads * D] f32 or bf16, out; may be x
  int64_t head_dim = 0;
  bool inverse = false;  // the backward pass: dx = rotation by the negated angle
};
void rope(Context& ctx, const Rope& args);

SLUICE_BACKENDS(rope_table, RopeTable)
SLUICE_BACKENDS(rope, Rope)

}  // namespace sluice
