// Weights in the form they lie on disk: dequantising a panel, gathering rows, and matrix-vector products.
//
// Formats: core/weight.h. Every format is read bit for bit as its owner writes it: GGUF blocks as ggml
// (ggml-common.h), affine groups as MLX (w = scale * code + bias). Values are formed in float32 and rounded once to the
// output's dtype. Weight::interleaved_head_dim is honoured: row r is read from stored_row(r). Deterministic.
#pragma once

#include "core/tensor.h"
#include "core/weight.h"
#include "ops/common/dispatch.h"
#include "ops/common/write.h"

namespace sluice {

// Asserts that shape, format and groups fit each other.
void check_weight(const Weight& weight);

// out[i, j] = W[row_begin + i, col_begin + j].  col_begin and the panel's width are multiples of the format's block
// (affine: of 32), or reach to the last column.
struct Dequantize {
  const Weight& weight;
  int64_t row_begin = 0, col_begin = 0;
  Tensor out;  // [rows, cols] f32 or bf16, out
};
void dequantize(Context& ctx, const Dequantize& args);

// y[n] = scale * W[ids[n]]: the embedding. Only the rows asked for are read, so a mapped table never becomes resident.
// Ids are checked: Error(bad_config) for one outside [0, rows).
struct GatherWeightRows {
  const Weight& table;
  Tensor ids;       // [N] i32, in
  float scale = 1;  // applied in float32 before rounding
  Tensor y;         // [N, C] f32 or bf16, out
};
void gather_weight_rows(Context& ctx, const GatherWeightRows& args);

// y[n, o] = sum_i x[n, i] W[o, i], for few rows (decoding): the quantised form is read once for a few rows (on the CPU
// up to 16, on CUDA up to 8 of bf16 or 2 of float32) and decoded in registers; products and sums are float32. A row's
// result does not depend on the other rows.
struct WeightMatvec {
  const Weight& weight;  // [out, in]
  Tensor x;              // [N, in] f32 or bf16, in; N small (1-16 is what it is tuned for; any N works)
  Tensor y;              // [N, out] f32 or bf16, out
};
void weight_matvec(Context& ctx, const WeightMatvec& args);

SLUICE_BACKENDS(dequantize, Dequantize)
SLUICE_BACKENDS(gather_weight_rows, GatherWeightRows)
SLUICE_BACKENDS(weight_matvec, WeightMatvec)

}  // namespace sluice
