// attention.h as plain loops: the specification. T is float, double or std::complex<double>; never tuned.
// `Round` is what happens to P and dS where they enter a product: nothing here, rounding to bf16 in the twin of the bf16 kernels.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "core/spans.h"
#include "ops/attention/attention.h"

namespace sluice::ref {

struct Exact {
  template <class T>
  T operator()(T x) const {
    return x;
  }
};

inline bool visible(const Spans& spans, int64_t window, int64_t query, int64_t key) {
  const int64_t distance = spans.position(query) - spans.position(key);
  if (distance < 0 || (window > 0 && distance >= window)) return false;
  for (int64_t a : spans.ancestors(spans.span_of(query))) {
    if (key >= spans[a].begin && key < spans[a].end()) return true;
  }
  return false;
}

template <class T>
double real_part(T x) {
  return std::real(std::complex<double>(x));
}

// S of one query row and one key row.
template <class T>
T attention_score(const AttentionShape& shape, const T* q, const T* k) {
  T s = 0;
  for (int64_t d = 0; d < shape.head_dim; ++d) s += q[d] * k[d];
  s *= T(shape.scale);
  return shape.softcap > 0 ? T(shape.softcap) * std::tanh(s / T(shape.softcap)) : s;
}

// q, o [Nq, H * D], k, v [N, K * D], lse [Nq, H]; the queries are the tokens from query_begin on.
template <class T, class Round = Exact>
void attention_forward(const AttentionShape& shape, const Spans& spans, int64_t query_begin, int64_t num_queries,
                       const T* q, const T* k, const T* v, T* o, T* lse, Round round = {}) {
  const int64_t H = shape.num_heads, K = shape.num_kv_heads, D = shape.head_dim;
  for (int64_t i = 0; i < num_queries; ++i) {
    std::vector<int64_t> keys;
    for (int64_t j = 0; j <= query_begin + i; ++j) {
      if (visible(spans, shape.window, query_begin + i, j)) keys.push_back(j);
    }
    for (int64_t h = 0; h < H; ++h) {
      const int64_t kv_head = h / (H / K);
      T* out = o + (i * H + h) * D;
      std::vector<T> s;
      T largest = 0;
      for (int64_t j : keys) {
        s.push_back(attention_score(shape, q + (i * H + h) * D, k + (j * K + kv_head) * D));
        if (s.size() == 1 || real_part(s.back()) > real_part(largest)) largest = s.back();
      }
      T sum = 0;
      for (int64_t d = 0; d < D; ++d) out[d] = 0;
      for (size_t n = 0; n < keys.size(); ++n) {
        const T p = std::exp(s[n] - largest);
        sum += p;
        for (int64_t d = 0; d < D; ++d) out[d] += round(p) * v[(keys[n] * K + kv_head) * D + d];
      }
      for (int64_t d = 0; d < D; ++d) out[d] /= sum;
      lse[i * H + h] = largest + std::log(sum);
    }
  }
}

// dq is overwritten, dk and dv are added to.
template <class T, class Round = Exact>
void attention_backward(const AttentionShape& shape, const Spans& spans, const T* q, const T* k, const T* v, const T* o,
                        const T* lse, const T* do_, T* dq, T* dk, T* dv, Round round = {}) {
  const int64_t N = spans.num_tokens(), H = shape.num_heads, K = shape.num_kv_heads, D = shape.head_dim;
  for (int64_t i = 0; i < N * H * D; ++i) dq[i] = 0;
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      if (!visible(spans, shape.window, i, j)) continue;
      for (int64_t h = 0; h < H; ++h) {
        const int64_t row = (i * H + h) * D, col = (j * K + h / (H / K)) * D;
        const T s = attention_score(shape, q + row, k + col), p = std::exp(s - lse[i * H + h]);
        T dp = 0, delta = 0;
        for (int64_t d = 0; d < D; ++d) {
          dp += do_[row + d] * v[col + d];
          delta += do_[row + d] * o[row + d];
        }
        T ds = p * (dp - delta);
        if (shape.softcap > 0) ds *= T(1) - (s / T(shape.softcap)) * (s / T(shape.softcap));  // d tanh = 1 - tanh^2
        for (int64_t d = 0; d < D; ++d) {
          dq[row + d] += T(shape.scale) * round(ds) * k[col + d];
          dk[col + d] += T(shape.scale) * round(ds) * q[row + d];
          dv[col + d] += round(p) * do_[row + d];
        }
      }
    }
  }
}

}  // namespace sluice::ref
