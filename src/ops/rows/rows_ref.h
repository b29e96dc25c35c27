// Moving rows and scaling as plain loops: the specification.
#pragma once

#include <cstdint>

namespace sluice::ref {

template <class T>
void gather_rows(int64_t M, int64_t C, const T* x, const int32_t* index, T* y) {
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t c = 0; c < C; ++c) y[m * C + c] = x[index[m] * C + c];
  }
}

template <class T>
void gather_columns(int64_t N, int64_t C, const T* x, int64_t begin, int64_t count, T* y) {
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t c = 0; c < count; ++c) y[n * count + c] = x[n * C + begin + c];
  }
}

template <class T>
void scatter_rows(int64_t M, int64_t N, int64_t C, const T* x, const T* weight, const int32_t* index, T* y) {
  for (int64_t i = 0; i < N * C; ++i) y[i] = 0;
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t c = 0; c < C; ++c) y[index[m] * C + c] += weight[m] * x[m * C + c];
  }
}

template <class T>
void scale_into(int64_t count, const T* x, T scale, bool add, T* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = scale * x[i] + (add ? y[i] : T(0));
}

}  // namespace sluice::ref
