#include <doctest/doctest.h>

#include <deque>

#include "support/attention_problem.h"

using namespace sluice;
using namespace sluice::test;

namespace {

// Caches of several sequences, some of them rings, and what plain loops make of the visible rows.
struct DecodeProblem {
  AttentionShape shape;
  std::vector<float> q;
  std::deque<Buffer> caches;
  std::vector<AttentionDecode::Sequence> sequences;
  std::vector<std::vector<float>> k, v;  // the visible rows of each sequence

  DecodeProblem(AttentionShape s, DType dtype) : shape(s) {
    struct Extent {
      int64_t begin, end, ring;
    };
    const Extent extents[] = {{0, 1, 0}, {0, 255, 0}, {3, 260, 0}, {700, 1300, 600}, {0, 1025, 0}, {5, 12, 9}};
    const int64_t narrow = shape.num_kv_heads * shape.head_dim;
    uint32_t seed = 1;
    for (const Extent& e : extents) {
      const int64_t capacity = e.ring > 0 ? e.ring : e.end + 3, rows = e.end - e.begin;
      std::vector<float>* all[] = {&k.emplace_back(random_values(static_cast<size_t>(rows * narrow), seed++)),
                                   &v.emplace_back(random_values(static_cast<size_t>(rows * narrow), seed++))};
      Tensor cache[2];
      for (int i = 0; i < 2; ++i) {
        std::vector<float> stored(static_cast<size_t>(capacity * narrow), 1e4F);  // hidden rows would be seen at once
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t at = e.ring > 0 ? (e.begin + r) % e.ring : e.begin + r;
          std::copy_n(all[i]->data() + r * narrow, narrow, stored.data() + at * narrow);
        }
        cache[i] = caches.emplace_back(dtype, Shape{capacity, narrow}, stored);
      }
      sequences.push_back({.k = cache[0], .v = cache[1], .begin = e.begin, .end = e.end, .ring = e.ring});
    }
    q = random_values(sequences.size() * static_cast<size_t>(shape.num_heads * shape.head_dim), 77);
  }

  template <class T>
  std::vector<T> reference() const {
    const int64_t wide = shape.num_heads * shape.head_dim;
    std::vector<T> o(q.size());
    for (size_t b = 0; b < sequences.size(); ++b) {
      const auto rows = static_cast<int64_t>(k[b].size()) / (shape.num_kv_heads * shape.head_dim);
      const std::vector<T> qb(q.begin() + static_cast<int64_t>(b) * wide,
                              q.begin() + static_cast<int64_t>(b + 1) * wide);
      const std::vector<T> kb(k[b].begin(), k[b].end()), vb(v[b].begin(), v[b].end());
      std::vector<T> lse(static_cast<size_t>(shape.num_heads));
      AttentionShape whole = shape;
      whole.window = 0;  // applied by the caller
      ref::attention_forward(whole, Spans::one(rows), rows - 1, 1, qb.data(), kb.data(), vb.data(),
                             o.data() + static_cast<int64_t>(b) * wide, lse.data());
    }
    return o;
  }

  std::string run(Context& ctx, const Buffer& out, DType dtype) const {
    const Buffer query(dtype, {static_cast<int64_t>(sequences.size()), shape.num_heads * shape.head_dim}, q);
    fill(out, std::numeric_limits<float>::quiet_NaN());
    attention_decode(ctx, {.shape = shape, .sequences = sequences, .q = query, .o = out});
    return bytes_of(out);
  }
};

const AttentionShape shapes[] = {{.num_heads = 9, .num_kv_heads = 3, .head_dim = 64, .scale = 0.125F},
                                 {.num_heads = 3, .num_kv_heads = 3, .head_dim = 10, .scale = 0.3F, .softcap = 2.0F},
                                 {.num_heads = 8, .num_kv_heads = 1, .head_dim = 34, .scale = 0.2F, .window = 5},
                                 {.num_heads = 4, .num_kv_heads = 2, .head_dim = 512, .scale = 1.0F}};

}  // namespace

TEST_CASE("attention_decode: each backend is as close to f64 as plain loops, over plain and ring caches") {
  for (const AttentionShape& shape : shapes) {
    for (DType cache : {DType::f32, DType::bf16}) {
      const DecodeProblem p(shape, cache);
      const auto exact = p.reference<double>(), plain = to_double(p.reference<float>());
      for (DType dtype : {DType::f32, DType::bf16}) {
        const Buffer out(dtype, {static_cast<int64_t>(p.sequences.size()), shape.num_heads * shape.head_dim});
        for (Isa isa : built_isas()) {
          TestContext context(isa, 2, 8 << 20);
          p.run(context, out, dtype);
          check_close(to_double(out), exact, plain, dtype);
        }
      }
    }
  }
}

TEST_CASE("attention_decode: a sequence's bits depend neither on the threads nor on its neighbours in the batch") {
  const DecodeProblem p(shapes[0], DType::bf16);
  const int64_t wide = p.shape.num_heads * p.shape.head_dim;
  const Buffer out(DType::bf16, {static_cast<int64_t>(p.sequences.size()), wide});
  for (Isa isa : built_isas()) {
    TestContext one(isa, 1, 8 << 20), two(isa, 2, 8 << 20), three(isa, 3, 8 << 20);
    const std::string bytes = p.run(one, out, DType::bf16);
    CHECK(p.run(two, out, DType::bf16) == bytes);
    CHECK(p.run(three, out, DType::bf16) == bytes);
    for (int64_t b = 0; b < static_cast<int64_t>(p.sequences.size()); ++b) {
      DecodeProblem alone(shapes[0], DType::bf16);
      alone.sequences = {alone.sequences[static_cast<size_t>(b)]};
      alone.q = std::vector<float>(p.q.begin() + b * wide, p.q.begin() + (b + 1) * wide);
      const Buffer row(DType::bf16, {1, wide});
      CHECK(alone.run(two, row, DType::bf16) ==
            bytes.substr(static_cast<size_t>(b * wide * 2), static_cast<size_t>(wide * 2)));
    }
  }
}
