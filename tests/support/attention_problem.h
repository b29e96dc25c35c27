// An attention problem with its inputs, and runs of it on a backend and on the reference.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/attention_ref.h"
#include "support/close.h"
#include "support/contexts.h"

namespace sluice::test {

struct AttentionProblem {
  AttentionShape shape;
  Spans spans;
  std::vector<float> q, k, v, do_;

  int64_t N() const { return spans.num_tokens(); }
  int64_t wide() const { return shape.num_heads * shape.head_dim; }
  int64_t narrow() const { return shape.num_kv_heads * shape.head_dim; }
};

inline AttentionProblem attention_problem(AttentionShape shape, Spans spans, uint32_t seed = 1) {
  AttentionProblem p{shape, std::move(spans), {}, {}, {}, {}};
  const auto wide = static_cast<size_t>(p.N() * p.wide()), narrow = static_cast<size_t>(p.N() * p.narrow());
  p.q = random_values(wide, seed), p.do_ = random_values(wide, seed + 1);
  p.k = random_values(narrow, seed + 2), p.v = random_values(narrow, seed + 3);
  return p;
}

template <class T>
struct AttentionValues {
  std::vector<T> o, lse, dq, dk, dv;
};

struct RoundToBf16 {
  template <class T>
  T operator()(T x) const {
    return T(static_cast<float>(bf16(static_cast<float>(x))));
  }
};

constexpr float attention_gradient_before = 0.25F;  // dk and dv start from it: they are sums

// Everything on the reference. With RoundToBf16, o is rounded, too: it is what the backward pass reads.
template <class T, class Round = ref::Exact>
AttentionValues<T> reference_attention(const AttentionProblem& p, Round round = {}) {
  const auto cast = [](const std::vector<float>& x) { return std::vector<T>(x.begin(), x.end()); };
  const auto q = cast(p.q), k = cast(p.k), v = cast(p.v), do_ = cast(p.do_);
  AttentionValues<T> r;
  r.o.resize(q.size()), r.dq.resize(q.size());
  r.lse.resize(static_cast<size_t>(p.N() * p.shape.num_heads));
  r.dk.assign(k.size(), T(attention_gradient_before)), r.dv = r.dk;
  ref::attention_forward(p.shape, p.spans, 0, p.N(), q.data(), k.data(), v.data(), r.o.data(), r.lse.data(), round);
  for (T& x : r.o) x = round(x);
  ref::attention_backward(p.shape, p.spans, q.data(), k.data(), v.data(), r.o.data(), r.lse.data(), do_.data(),
                          r.dq.data(), r.dk.data(), r.dv.data(), round);
  return r;
}

struct AttentionRun {
  Buffer q, k, v, do_, o, lse, dq, dk, dv;

  AttentionRun(const AttentionProblem& p, DType dtype)
      : q(dtype, {p.N(), p.wide()}, p.q),
        k(dtype, {p.N(), p.narrow()}, p.k),
        v(dtype, {p.N(), p.narrow()}, p.v),
        do_(dtype, {p.N(), p.wide()}, p.do_),
        o(dtype, {p.N(), p.wide()}),
        lse(DType::f32, {p.N(), p.shape.num_heads}),
        dq(DType::f32, {p.N(), p.wide()}),
        dk(DType::f32, {p.N(), p.narrow()}),
        dv(DType::f32, {p.N(), p.narrow()}) {
    for (const Buffer* out : {&o, &lse, &dq}) fill(*out, std::numeric_limits<float>::quiet_NaN());
    for (const Buffer* sum : {&dk, &dv}) fill(*sum, attention_gradient_before);
  }

  // Queries in tiles of so many rows; each sees only the keys up to its own end. 0: all at once.
  void forward(Context& ctx, const AttentionProblem& p, int64_t tile = 0) {
    if (tile == 0) tile = p.N();
    for (int64_t begin = 0; begin < p.N(); begin += tile) {
      const int64_t rows = std::min(tile, p.N() - begin);
      attention_forward(ctx, {.shape = p.shape,
                              .spans = p.spans,
                              .query_begin = begin,
                              .q = q.tensor.rows(begin, rows),
                              .k = k.tensor.rows(0, begin + rows),
                              .v = v.tensor.rows(0, begin + rows),
                              .o = o.tensor.rows(begin, rows),
                              .lse = lse.tensor.rows(begin, rows)});
    }
  }
  void backward(Context& ctx, const AttentionProblem& p) {
    attention_backward(ctx, {.shape = p.shape,
                             .spans = p.spans,
                             .q = q,
                             .k = k,
                             .v = v,
                             .o = o,
                             .lse = lse,
                             .do_ = do_,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv});
  }
};

inline std::string bytes_of(const Tensor& t) {
  return {static_cast<const char*>(t.data), static_cast<size_t>(t.size_bytes())};
}

}  // namespace sluice::test
