// The row norms of an adapted weight as plain loops. T is float, double or std::complex<double>.
#pragma once

#include <cmath>
#include <cstdint>

namespace sluice::ref {

// weight [out, in], lora_a [R, in], lora_b [out, R]; R may be 0
template <class T>
void adapted_row_norms(int64_t out, int64_t in, int64_t R, const T* weight, const T* lora_a, const T* lora_b, T scale,
                       T* norm) {
  using std::sqrt;
  for (int64_t o = 0; o < out; ++o) {
    T squares = 0;
    for (int64_t i = 0; i < in; ++i) {
      T delta = 0;
      for (int64_t r = 0; r < R; ++r) delta += lora_b[o * R + r] * lora_a[r * in + i];
      const T w = weight[o * in + i] + scale * delta;
      squares += w * w;
    }
    norm[o] = sqrt(squares);
  }
}

}  // namespace sluice::ref
