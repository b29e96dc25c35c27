// Gated activations as plain loops: the specification. T is float, double or std::complex<double>.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/activation/activation.h"

namespace sluice::ref {

constexpr double gelu_sqrt_2_over_pi = 0.79788456080286535588, gelu_cubic = 0.044715;

template <class T>
T activate(Activation activation, T z) {
  using std::exp, std::tanh;
  if (activation == Activation::silu) return z / (T(1) + exp(-z));
  return z / T(2) * (T(1) + tanh(T(gelu_sqrt_2_over_pi) * (z + T(gelu_cubic) * z * z * z)));
}

template <class T>
T activate_derivative(Activation activation, T z) {
  using std::exp, std::tanh;
  if (activation == Activation::silu) {
    const T s = T(1) / (T(1) + exp(-z));
    return s + z * s * (T(1) - s);
  }
  const T t = tanh(T(gelu_sqrt_2_over_pi) * (z + T(gelu_cubic) * z * z * z));
  const T du = T(gelu_sqrt_2_over_pi) * (T(1) + T(3 * gelu_cubic) * z * z);
  return (T(1) + t) / T(2) + z / T(2) * (T(1) - t * t) * du;
}

template <class T>
void gated_forward(Activation activation, int64_t count, const T* a, const T* b, T* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = activate(activation, a[i]) * b[i];
}

template <class T>
void gated_backward(Activation activation, int64_t count, const T* a, const T* b, const T* dy, T* da, T* db) {
  for (int64_t i = 0; i < count; ++i) {
    da[i] = dy[i] * b[i] * activate_derivative(activation, a[i]);
    db[i] = dy[i] * activate(activation, a[i]);
  }
}

}  // namespace sluice::ref
