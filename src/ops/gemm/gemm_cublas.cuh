// The matrix product where ops/gemm/gemm_sm90.cuh does not apply: float32, GPUs other than Hopper, and shapes that its
// loads refuse.
//
//   C[m, n] = op(A)[m, k] op(B)[k, n]  (+ C)          C float32
//
// Operands are bf16 or f32 (one dtype; f32 stays f32, no tf32). An element's bits depend on its row of A, its column of
// B and k alone: cuBLASLt is asked for one algorithm for each (n, k, …) whatever m is, never with split sums; small or
// unaligned products go to a plain kernel. Runs on the context's stream, takes no scratch. Throws Error(device).
#pragma once

#include <cstdint>

#include "core/context.h"

namespace sluice::cuda {

struct PlainGemm {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f32;  // of A and B
  const void* a = nullptr;
  int64_t lda = 0;           // elements between rows of A as it lies in memory
  bool transpose_a = false;  // A lies as [k, m]
  const void* b = nullptr;
  int64_t ldb = 0;
  bool transpose_b = false;  // B lies as [n, k]: a weight
  float* c = nullptr;
  int64_t ldc = 0;
  bool add = false;
  int64_t batch = 1;  // products, `stride_…` elements apart; more than one always goes to the plain kernel
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;
};
void plain_gemm(const Context& ctx, const PlainGemm& args);

}  // namespace sluice::cuda
