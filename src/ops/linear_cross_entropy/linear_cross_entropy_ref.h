// The head as plain loops: the specification. T is float, double or std::complex<double>.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

namespace sluice::ref {

// Values are compared by their real parts, so that the functions are analytic for the complex step.
template <class T>
auto real_part(const T& value) {
  return std::real(value);
}

template <class T, class W>
T head_logit(int64_t C, const T* h, const W* weight_row, double softcap) {
  using std::tanh;
  T z = 0;
  for (int64_t c = 0; c < C; ++c) z += h[c] * T(weight_row[c]);
  return softcap > 0 ? T(softcap) * tanh(z / T(softcap)) : z;
}

// h [M, C], weight [V, C] -> logp, lse [M]
template <class T, class W>
void linear_cross_entropy(int64_t M, int64_t V, int64_t C, const T* h, const W* weight, const int32_t* targets,
                          double softcap, T* logp, T* lse) {
  using std::exp, std::log;
  std::vector<T> l(static_cast<size_t>(V));
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t v = 0; v < V; ++v) l[v] = head_logit(C, h + m * C, weight + v * C, softcap);
    T largest = l[0];
    for (const T& value : l) {
      if (real_part(value) > real_part(largest)) largest = value;
    }
    T sum = 0;
    for (const T& value : l) sum += exp(value - largest);
    lse[m] = largest + log(sum);
    logp[m] = l[targets[m]] - lse[m];
  }
}

// hit[m]: 1 where no logit z[m, v], before the soft cap, is larger than the target's.
template <class T, class W>
void linear_cross_entropy_hits(int64_t M, int64_t V, int64_t C, const T* h, const W* weight, const int32_t* targets,
                               T* hit) {
  for (int64_t m = 0; m < M; ++m) {
    const T at_target = head_logit(C, h + m * C, weight + targets[m] * C, 0.0);
    hit[m] = 1;
    for (int64_t v = 0; v < V; ++v)
      if (head_logit(C, h + m * C, weight + v * C, 0.0) > at_target) hit[m] = 0;
  }
}

// dh[m] = g[m] d logp[m] / dh[m]; g may be null: 1. `round` is applied to each coefficient: what the operands' dtype
// does.
template <class T, class W, class Round>
void linear_cross_entropy_backward(int64_t M, int64_t V, int64_t C, const T* h, const W* weight, const int32_t* targets,
                                   double softcap, const T* lse, const T* g, T* dh, Round round) {
  using std::exp;
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t c = 0; c < C; ++c) dh[m * C + c] = 0;
    for (int64_t v = 0; v < V; ++v) {
      const T l = head_logit(C, h + m * C, weight + v * C, softcap);
      T coefficient = T(v == targets[m] ? 1 : 0) - exp(l - lse[m]);
      if (softcap > 0) coefficient *= T(1) - (l / T(softcap)) * (l / T(softcap));
      if (g != nullptr) coefficient *= g[m];
      coefficient = round(coefficient);
      for (int64_t c = 0; c < C; ++c) dh[m * C + c] += coefficient * T(weight[v * C + c]);
    }
  }
}

}  // namespace sluice::ref
