#include "ops/attention/attention_append.h"

#include <doctest/doctest.h>

#include <cmath>
#include <deque>

#include "support/close.h"
#include "support/contexts.h"

namespace sluice {
namespace {

using namespace sluice::test;

struct AppendProblem {
  AttentionShape shape;
  int64_t B;
  bool norm_qk, norm_v, same_kv;
  std::vector<float> q, k, v, table, q_weight, k_weight;

  AppendProblem(int64_t H, int64_t K, int64_t D, int64_t B_, bool norm_qk_, bool norm_v_, bool same_kv_)
      : shape{.num_heads = H, .num_kv_heads = K, .head_dim = D},
        B(B_),
        norm_qk(norm_qk_),
        norm_v(norm_v_),
        same_kv(same_kv_),
        q(random_values(static_cast<size_t>(B * H * D), 1)),
        k(random_values(static_cast<size_t>(B * K * D), 2)),
        v(same_kv ? k : random_values(static_cast<size_t>(B * K * D), 3)),
        table(random_values(static_cast<size_t>(B * D), 4)),
        q_weight(random_values(static_cast<size_t>(D), 5)),
        k_weight(random_values(static_cast<size_t>(D), 6)) {}

  // q, then the rows of k, then those of v.
  std::vector<double> run(Context& ctx, DType cache, bool append) const {
    const int64_t H = shape.num_heads, K = shape.num_kv_heads, D = shape.head_dim;
    Buffer qb(DType::f32, {B, H * D}, q), kb(DType::f32, {B, K * D}, k), vb(DType::f32, {B, K * D}, v),
        tb(DType::f32, {B, D}, table), qw(DType::f32, {D}, q_weight), kw(DType::f32, {D}, k_weight);
    std::deque<Buffer> rows;
    std::vector<AttentionAppend::Row> targets;
    for (int64_t b = 0; b < B && append; ++b) {
      Tensor row[2];
      for (Tensor& t : row) {
        Buffer& buffer = rows.emplace_back(cache, Shape{1, K * D});
        fill(buffer, NAN);
        t = buffer;
      }
      targets.push_back({row[0], row[1]});
    }
    attention_append(ctx, {.shape = shape,
                           .rows = targets,
                           .q = qb,
                           .k = kb,
                           .v = same_kv ? kb : vb,
                           .table = tb,
                           .norm_qk = norm_qk,
                           .norm_v = norm_v,
                           .q_weight = qw,
                           .k_weight = kw,
                           .eps = 1e-5F,
                           .offset = 1});
    std::vector<double> all = to_double(qb.tensor);
    for (int i = 0; i < 2; ++i) {
      for (const AttentionAppend::Row& row : targets) {
        const std::vector<double> values = to_double(i == 0 ? row.k : row.v);
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  }

  template <class T>
  void head(const float* x, const float* weight, bool norm, const float* angles, std::vector<double>& out) const {
    const int64_t D = shape.head_dim;
    std::vector<T> h(x, x + D);
    if (norm) {
      T squares = 0;
      for (T value : h) squares += value * value;
      const T rstd = 1 / std::sqrt(squares / T(D) + T(1e-5F));
      for (int64_t d = 0; d < D; ++d) h[d] *= rstd * (weight != nullptr ? 1 + T(weight[d]) : T(1));
    }
    for (int64_t i = 0; i < D / 2 && angles != nullptr; ++i) {
      const T a = h[i], b = h[D / 2 + i], cosine = angles[i], sine = angles[D / 2 + i];
      h[i] = a * cosine - b * sine, h[D / 2 + i] = b * cosine + a * sine;
    }
    out.insert(out.end(), h.begin(), h.end());
  }
  template <class T>
  std::vector<double> reference(bool append) const {
    const int64_t H = shape.num_heads, K = shape.num_kv_heads, D = shape.head_dim;
    std::vector<double> out;
    for (int64_t i = 0; i < B * H; ++i)
      head<T>(q.data() + i * D, q_weight.data(), norm_qk, table.data() + i / H * D, out);
    for (int64_t i = 0; i < B * K && append; ++i)
      head<T>(k.data() + i * D, k_weight.data(), norm_qk, table.data() + i / K * D, out);
    for (int64_t i = 0; i < B * K && append; ++i) head<T>(v.data() + i * D, nullptr, norm_v, nullptr, out);
    return out;
  }
};

TEST_CASE("attention_append: heads are normed and turned, keys and values land in their rows, as plain loops do") {
  for (const AppendProblem& p :
       {AppendProblem(4, 2, 64, 3, false, false, false), AppendProblem(3, 3, 10, 1, true, false, false),
        AppendProblem(8, 1, 512, 2, true, true, true), AppendProblem(2, 1, 96, 70, false, true, false)}) {
    CAPTURE(p.shape.head_dim);
    for (DType cache : {DType::f32, DType::bf16}) {
      for (bool append : {true, false}) {
        const std::vector<double> exact = p.reference<double>(append);
        std::vector<double> plain = p.reference<float>(append);
        if (cache == DType::bf16) {
          for (size_t i = p.q.size(); i < plain.size(); ++i)
            plain[i] = static_cast<double>(static_cast<float>(bf16(static_cast<float>(plain[i]))));
        }
        for (Isa isa : built_isas()) {
          TestContext ctx(isa, 2, 4 << 20);
          const std::vector<double> y = p.run(ctx, cache, append);
          const auto part = [&](const std::vector<double>& all, bool of_q) {
            const auto middle = all.begin() + static_cast<ptrdiff_t>(p.q.size());
            return of_q ? std::vector<double>(all.begin(), middle) : std::vector<double>(middle, all.end());
          };
          check_close(part(y, true), part(exact, true), part(plain, true), DType::f32);
          if (append) check_close(part(y, false), part(exact, false), part(plain, false), cache);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice
