// The specification of gemm as plain loops: C = op(A) op(B) (+ C), for any scalar type.
#pragma once

#include <cstdint>

#include "ops/common/write.h"

namespace sluice::ref {

// `transpose_a`: A lies as [k, m]; `transpose_b`: B lies as [n, k]. Leading dimensions as in Gemm.
template <class T>
void gemm(int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, bool transpose_a, const T* b, int64_t ldb,
          bool transpose_b, T* c, int64_t ldc, Write write) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t p = 0; p < k; ++p) {
        sum += (transpose_a ? a[p * lda + i] : a[i * lda + p]) * (transpose_b ? b[j * ldb + p] : b[p * ldb + j]);
      }
      c[i * ldc + j] = write == Write::add ? c[i * ldc + j] + sum : sum;
    }
  }
}

}  // namespace sluice::ref
