// Root-mean-square normalisation as plain loops: the specification. T is float, double or std::complex<double>.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/rope/rope_ref.h"

namespace sluice::ref {

// rows counts groups: N * G rows of C. `weight` and `residual` may be null.
template <class T>
void rmsnorm_forward(int64_t rows, int64_t C, const T* x, const T* weight, const T* residual, double offset, double eps,
                     T* y) {
  using std::sqrt;
  for (int64_t n = 0; n < rows; ++n) {
    T squares = 0;
    for (int64_t c = 0; c < C; ++c) squares += x[n * C + c] * x[n * C + c];
    const T rstd = T(1) / sqrt(squares / T(C) + T(eps));
    for (int64_t c = 0; c < C; ++c) {
      const T factor = weight != nullptr ? T(offset) + weight[c] : T(1);
      y[n * C + c] = x[n * C + c] * rstd * factor;
      if (residual != nullptr) y[n * C + c] += residual[n * C + c];
    }
  }
}

template <class T>
void rmsnorm_backward(int64_t rows, int64_t C, const T* x, const T* weight, const T* dy, double offset, double eps,
                      T* dx) {
  using std::sqrt;
  for (int64_t n = 0; n < rows; ++n) {
    T squares = 0, dot = 0;  // sum_c x^2, sum_c dy factor x
    for (int64_t c = 0; c < C; ++c) {
      const T factor = weight != nullptr ? T(offset) + weight[c] : T(1);
      squares += x[n * C + c] * x[n * C + c];
      dot += dy[n * C + c] * factor * x[n * C + c];
    }
    const T rstd = T(1) / sqrt(squares / T(C) + T(eps));
    const T k = dot * rstd * rstd * rstd / T(C);
    for (int64_t c = 0; c < C; ++c) {
      const T factor = weight != nullptr ? T(offset) + weight[c] : T(1);
      dx[n * C + c] = dy[n * C + c] * factor * rstd - k * x[n * C + c];
    }
  }
}

// Heads [N, G, C], normalised and then turned by table [N, C].
template <class T, class U>
void rmsnorm_rope_forward(int64_t N, int64_t G, int64_t C, const T* x, const T* weight, const U* table, double offset,
                          double eps, T* y) {
  rmsnorm_forward(N * G, C, x, weight, static_cast<const T*>(nullptr), offset, eps, y);
  rope(N, G, C, y, table, false, y);
}

template <class T, class U>
void rmsnorm_rope_backward(int64_t N, int64_t G, int64_t C, const T* x, const T* weight, const U* table, const T* dy,
                           double offset, double eps, T* dx) {
  std::vector<T> turned(static_cast<size_t>(N * G * C));
  rope(N, G, C, dy, table, true, turned.data());
  rmsnorm_backward(N * G, C, x, weight, turned.data(), offset, eps, dx);
}

}  // namespace sluice::ref
