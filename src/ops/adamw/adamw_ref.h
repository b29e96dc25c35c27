// The specification of AdamW as plain loops, for any scalar type.
#pragma once

#include <cmath>
#include <cstdint>

namespace sluice::ref {

template <class T>
void adamw(int64_t n, T* p, T* m, T* v, const T* g, T grad_scale, T lr, T beta1, T beta2, T eps, T weight_decay,
           int64_t t) {
  using std::pow;
  using std::sqrt;
  const T correction1 = T(1) - pow(beta1, T(t)), correction2 = T(1) - pow(beta2, T(t));
  for (int64_t i = 0; i < n; ++i) {
    const T gradient = grad_scale * g[i];
    p[i] *= T(1) - lr * weight_decay;
    m[i] = beta1 * m[i] + (T(1) - beta1) * gradient;
    v[i] = beta2 * v[i] + (T(1) - beta2) * gradient * gradient;
    p[i] -= lr * (m[i] / correction1) / (sqrt(v[i] / correction2) + eps);
  }
}

}  // namespace sluice::ref
