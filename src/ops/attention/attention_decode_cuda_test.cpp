// Long caches, many sequences and every width of a head on CUDA.
#include <doctest/doctest.h>

#include <deque>

#include "support/attention_problem.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

// Row r of the keys and values of a sequence, from its own numbers.
struct LongCaches {
  AttentionShape shape;
  std::vector<float> q;
  std::deque<Buffer> caches;
  std::vector<AttentionDecode::Sequence> sequences;
  std::vector<std::vector<float>> k, v;

  LongCaches(AttentionShape s, const std::vector<int64_t>& rows, const std::vector<DType>& dtypes) : shape(s) {
    const int64_t narrow = s.num_kv_heads * s.head_dim;
    for (size_t b = 0; b < rows.size(); ++b) {
      const auto count = static_cast<size_t>(rows[b] * narrow);
      const auto seed = static_cast<uint32_t>(2 * b);
      k.push_back(random_values(count, seed));
      v.push_back(random_values(count, seed + 1));
      const DType dtype = dtypes[b % dtypes.size()];
      const Buffer& keys = caches.emplace_back(dtype, Shape{rows[b], narrow}, k.back());
      const Buffer& values = caches.emplace_back(dtype, Shape{rows[b], narrow}, v.back());
      sequences.push_back({.k = keys, .v = values, .begin = 0, .end = rows[b]});
    }
    q = random_values(rows.size() * static_cast<size_t>(s.num_heads * s.head_dim), 78);
  }

  template <class T>
  std::vector<T> reference() const {
    const int64_t wide = shape.num_heads * shape.head_dim;
    std::vector<T> o(q.size()), lse(static_cast<size_t>(shape.num_heads));
    for (size_t b = 0; b < sequences.size(); ++b) {
      const auto begin = static_cast<int64_t>(b) * wide;
      const std::vector<T> qb(q.begin() + begin, q.begin() + begin + wide);
      const std::vector<T> kb(k[b].begin(), k[b].end()), vb(v[b].begin(), v[b].end());
      const int64_t rows = sequences[b].end;
      ref::attention_forward(shape, Spans::one(rows), rows - 1, 1, qb.data(), kb.data(), vb.data(), o.data() + begin,
                             lse.data());
    }
    return o;
  }
};

void check(const LongCaches& p) {
  const auto exact = p.reference<double>(), plain = to_double(p.reference<float>());
  const Shape wide{static_cast<int64_t>(p.sequences.size()), p.shape.num_heads * p.shape.head_dim};
  TestContext context(Isa::avx2);
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Buffer query(dtype, wide, p.q), out(dtype, wide);
    fill(out, std::numeric_limits<float>::quiet_NaN());
    attention_decode(context, {.shape = p.shape, .sequences = p.sequences, .q = query, .o = out});
    check_close(to_double(out), exact, plain, dtype);
  }
}

}  // namespace

TEST_CASE("attention_decode on CUDA: every width of a head and count of heads to a kv head") {
  if (!on_cuda()) return;
  for (int64_t head_dim : {64, 80, 128, 256, 512}) {
    for (auto [heads, kv_heads] : {std::pair<int64_t, int64_t>{2, 2}, {6, 2}, {8, 1}, {10, 1}}) {
      CAPTURE(head_dim);
      CAPTURE(heads);
      const AttentionShape shape{
          .num_heads = heads, .num_kv_heads = kv_heads, .head_dim = head_dim, .scale = 1 / std::sqrt(float(head_dim))};
      for (DType dtype : {DType::f32, DType::bf16}) check(LongCaches(shape, {63, 1500, 130}, {dtype}));
    }
  }
}

TEST_CASE("attention_decode on CUDA: more splits than a warp has lanes, and a split's largest size") {
  if (!on_cuda()) return;
  const AttentionShape shape{.num_heads = 2, .num_kv_heads = 1, .head_dim = 64, .scale = 0.125F};
  check(LongCaches(shape, {4097, 40001}, {DType::bf16}));
}

TEST_CASE("attention_decode on CUDA: more sequences than one table holds, with caches of both kinds") {
  if (!on_cuda()) return;
  const AttentionShape shape{.num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .scale = 0.25F};
  std::vector<int64_t> rows;
  for (int64_t b = 0; b < 151; ++b) rows.push_back(1 + b * 7 % 300);
  check(LongCaches(shape, rows, {DType::f32, DType::bf16, DType::bf16}));
}
