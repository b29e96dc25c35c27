// Moving rows and scaling whole tensors: what stands between the layers and the head.  All deterministic.
#pragma once

#include "core/tensor.h"
#include "ops/common/dispatch.h"
#include "ops/common/write.h"

namespace sluice {

// y[m] = x[index[m]]
struct GatherRows {
  Tensor x;      // [N, C] f32 or bf16 in
  Tensor index;  // [M] i32 in
  Tensor y;      // [M, C] dtype of x, out
};
void gather_rows(Context& ctx, const GatherRows& args);

// y = 0, then y[index[m]] += weight[m] * x[m], m in order, in float32, rounded once per row of y. An index may repeat if the
// repetitions are next to each other (the last token of a prompt predicts the first of each answer).
struct ScatterRows {
  Tensor x;       // [M, C] f32 or bf16 in
  Tensor weight;  // [M] f32 in
  Tensor index;   // [M] i32 in, ascending
  Tensor y;       // [N, C] f32 or bf16 out
};
void scatter_rows(Context& ctx, const ScatterRows& args);

// y = scale * x  (+ y when add), elementwise, converting dtypes.
struct ScaleInto {
  Tensor x;  // [...] f32 or bf16 in
  Tensor y;  // the same shape, f32 or bf16, out; may be x
  float scale = 1;
  Write write = Write::set;
};
void scale_into(Context& ctx, const ScaleInto& args);

// y[n] = x[n, begin : begin + y.shape[1]]
struct GatherColumns {
  Tensor x;  // [N, C] f32 or bf16 in
  int64_t begin = 0;
  Tensor y;  // [N, columns] dtype of x, out
};
void gather_columns(Context& ctx, const GatherColumns& args);

SLUICE_BACKENDS(gather_rows, GatherRows)
SLUICE_BACKENDS(gather_columns, GatherColumns)
SLUICE_BACKENDS(scatter_rows, ScatterRows)
SLUICE_BACKENDS(scale_into, ScaleInto)

}  // namespace sluice
