// Rotary position embedding as plain loops: the specification. T is float, double or std::complex<double>.
#pragma once

#include <cmath>
#include <cstdint>

namespace sluice::ref {

// table [N, D]: D/2 cosines, then D/2 sines.
template <class T>
void rope_table(int64_t N, int64_t D, const double* frequencies, double factor, const int32_t* positions, T* table) {
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t i = 0; i < D / 2; ++i) {
      const double angle = static_cast<double>(positions[n]) * frequencies[i];
      table[n * D + i] = static_cast<T>(factor * std::cos(angle));
      table[n * D + D / 2 + i] = static_cast<T>(factor * std::sin(angle));
    }
  }
}

template <class T, class U>
void rope(int64_t N, int64_t heads, int64_t D, const T* x, const U* table, bool inverse, T* y) {
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t row = (n * heads + h) * D;
      for (int64_t i = 0; i < D / 2; ++i) {
        const T cosine = T(table[n * D + i]),
                sine = inverse ? -T(table[n * D + D / 2 + i]) : T(table[n * D + D / 2 + i]);
        const T a = x[row + i], b = x[row + D / 2 + i];
        y[row + i] = a * cosine - b * sine;
        y[row + D / 2 + i] = b * cosine + a * sine;
      }
    }
  }
}

}  // namespace sluice::ref
