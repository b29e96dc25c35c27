#include <algorithm>
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {
namespace {

using Sequence = AttentionDecode::Sequence;

constexpr int64_t split_rows = 256;  // of the cache; the parts of a sequence are combined in order
constexpr int64_t heads_at_once = 4, vectors_at_once = 4;

int64_t splits_of(const Sequence& s) { return (s.end - s.begin + split_rows - 1) / split_rows; }

// What one split of one sequence gives for one head: the largest score, the sum of exponentials, and sum_j exp(S_j - max) v_j.
struct Parts {
  float *top, *sum, *acc;  // [parts], [parts], [parts, D]
};

// Rows [begin, begin + count) of one kv head of a cache.
template <class T>
struct CacheRows {
  const T* data;  // of row 0
  int64_t ld, begin, ring;
  const T* row(int64_t r) const { return data + (ring > 0 ? (begin + r) % ring : begin + r) * ld; }
};

template <class T>
CacheRows<T> rows_of(const Sequence& s, const Tensor& x, int64_t kv_head, int64_t D, int64_t begin) {
  return {x.as<T>() + kv_head * D, x.shape[1], begin, s.ring};
}

// s[g, r] = q[g] . k[r], the rows of s split_rows apart.
template <class T>
void dot_rows(const float* q, int64_t G, int64_t D, const CacheRows<T>& k, int64_t rows, float* s) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = k.row(r);
    for (int64_t g = 0; g < G; ++g) {
      F32 sum{};
      int64_t d = 0;
      for (; d + lanes <= D; d += lanes) sum += load(q + g * D + d) * load(row + d);
      if (d < D) sum += load_part(q + g * D + d, D - d) * load_part(row + d, D - d);
      s[g * split_rows + r] = reduce_add(sum);
    }
  }
}

// acc[g, d] = sum_r p[g, r] v[r, d] for `heads` heads and `vectors` vectors of d, the last of them with `tail` elements.
template <int heads, int vectors, class T>
void sum_rows(const float* p, int64_t D, const CacheRows<T>& v, int64_t rows, int64_t d, int64_t tail, float* acc) {
  F32 sums[heads][vectors] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = v.row(r) + d;
    for (int x = 0; x < vectors; ++x) {
      const F32 value = x == vectors - 1 && tail < lanes ? load_part(row + x * lanes, tail) : load(row + x * lanes);
      for (int g = 0; g < heads; ++g) sums[g][x] += p[g * split_rows + r] * value;
    }
  }
  for (int g = 0; g < heads; ++g) {
    for (int x = 0; x < vectors; ++x) {
      if (x == vectors - 1 && tail < lanes) store_part(acc + g * D + d + x * lanes, sums[g][x], tail);
      else store(acc + g * D + d + x * lanes, sums[g][x]);
    }
  }
}

template <int heads, class T>
void sum_heads(const float* p, int64_t D, const CacheRows<T>& v, int64_t rows, float* acc) {
  int64_t d = 0;
  for (; d + vectors_at_once * lanes <= D; d += vectors_at_once * lanes) {
    sum_rows<heads, vectors_at_once>(p, D, v, rows, d, lanes, acc);
  }
  for (; d < D; d += lanes) sum_rows<heads, 1>(p, D, v, rows, d, std::min<int64_t>(lanes, D - d), acc);
}

// Scores of one head become exp(S - max); hidden and missing rows do not occur here.
void softmax(float* s, int64_t rows, const AttentionShape& shape, float& top, float& sum) {
  top = -INFINITY;
  for (int64_t r = 0; r < rows; ++r) {
    s[r] *= shape.scale;
    if (shape.softcap > 0) s[r] = shape.softcap * std::tanh(s[r] / shape.softcap);
    top = s[r] > top ? s[r] : top;
  }
  const int64_t padded = (rows + lanes - 1) / lanes * lanes;
  for (int64_t r = rows; r < padded; ++r) s[r] = -INFINITY;
  F32 sums{};
  for (int64_t r = 0; r < padded; r += lanes) {
    const F32 e = exp(load(s + r) - top);
    store(s + r, e);
    sums += e;
  }
  sum = reduce_add(sums);
}

template <class T>
void decode_split(const AttentionDecode& args, const Sequence& sequence, const float* q, int64_t kv_head, int64_t split,
                  float* s, const Parts& parts, int64_t part) {
  const int64_t D = args.shape.head_dim, G = args.shape.num_heads / args.shape.num_kv_heads;
  const int64_t begin = sequence.begin + split * split_rows, rows = std::min(split_rows, sequence.end - begin);
  dot_rows(q, G, D, rows_of<T>(sequence, sequence.k, kv_head, D, begin), rows, s);
  for (int64_t g = 0; g < G; ++g)
    softmax(s + g * split_rows, rows, args.shape, parts.top[part + g], parts.sum[part + g]);
  const auto v = rows_of<T>(sequence, sequence.v, kv_head, D, begin);
  int64_t g = 0;
  for (; g + heads_at_once <= G; g += heads_at_once) {
    sum_heads<heads_at_once>(s + g * split_rows, D, v, rows, parts.acc + (part + g) * D);
  }
  for (; g < G; ++g) sum_heads<1>(s + g * split_rows, D, v, rows, parts.acc + (part + g) * D);
}

// o = sum over splits of exp(top - max) acc, over the same of the sums. Parts of one head lie `stride` apart.
template <class T>
void combine(const Parts& parts, int64_t part, int64_t stride, int64_t splits, int64_t D, float* total, T* o) {
  float top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < splits; ++i) top = std::max(top, parts.top[part + i * stride]);
  for (int64_t d = 0; d < D; ++d) total[d] = 0;
  for (int64_t i = 0; i < splits; ++i) {
    const int64_t at = part + i * stride;
    const float factor = std::exp(parts.top[at] - top);
    sum += factor * parts.sum[at];
    for (int64_t d = 0; d < D; ++d) total[d] += factor * parts.acc[at * D + d];
  }
  for (int64_t d = 0; d < D; ++d) o[d] = T(total[d] / sum);
}

}  // namespace

void attention_decode(Context& ctx, const AttentionDecode& args) {
  const int64_t H = args.shape.num_heads, K = args.shape.num_kv_heads, D = args.shape.head_dim, G = H / K;
  const auto B = static_cast<int64_t>(args.sequences.size());
  ArenaScope scope(ctx.arena);
  int64_t num_parts = 0;  // of all kv heads: G heads each
  for (const Sequence& s : args.sequences) num_parts += splits_of(s) * K;
  const Parts parts{scope.array<float>(num_parts * G), scope.array<float>(num_parts * G),
                    scope.array<float>(num_parts * G * D)};
  auto* const first_part = scope.array<int64_t>(B + 1);
  float* const q = scope.array<float>(B * H * D);
  const int64_t per_worker = G * split_rows + D;
  float* const scratch = scope.array<float>(ctx.pool.num_threads() * per_worker);
  if (ctx.counting()) return;

  first_part[0] = 0;
  for (int64_t b = 0; b < B; ++b)
    first_part[b + 1] = first_part[b] + splits_of(args.sequences[static_cast<size_t>(b)]) * K;
  for (int64_t i = 0; i < B * H * D; ++i) {
    q[i] = args.q.dtype == DType::bf16 ? static_cast<float>(args.q.as<bf16>()[i]) : args.q.as<float>()[i];
  }
  ctx.pool.parallel_for(num_parts, [&](int64_t item, int worker) {
    const int64_t b = std::upper_bound(first_part, first_part + B + 1, item) - first_part - 1,
                  at = item - first_part[b];
    const Sequence& sequence = args.sequences[static_cast<size_t>(b)];
    const auto run = [&](auto element) {
      decode_split<decltype(element)>(args, sequence, q + (b * H + at % K * G) * D, at % K, at / K,
                                      scratch + worker * per_worker, parts, item * G);
    };
    if (sequence.k.dtype == DType::bf16) run(bf16{});
    else run(float{});
  });
  ctx.pool.parallel_for(B * H, [&](int64_t item, int worker) {
    const int64_t b = item / H, h = item % H;
    const int64_t part = first_part[b] * G + h, splits = splits_of(args.sequences[static_cast<size_t>(b)]);
    float* const total = scratch + worker * per_worker + G * split_rows;
    if (args.o.dtype == DType::bf16) combine(parts, part, K * G, splits, D, total, args.o.as<bf16>() + item * D);
    else combine(parts, part, K * G, splits, D, total, args.o.as<float>() + item * D);
  });
}

}  // namespace sluice::SLUICE_CPU
