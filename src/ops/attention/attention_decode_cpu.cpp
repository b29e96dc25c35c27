#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "ops/attention/attention.h"
#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {
namespace {

using Sequence = AttentionDecode::Sequence;

// The cache is read front to back, once: an item is `split_rows` rows of one sequence with all their heads, a vector's worth of
// rows at a time. The splits of a sequence are combined in order.
constexpr int64_t split_rows = 128;
constexpr int rows_at_once = 4;
#if defined(SLUICE_ISA_AVX512)
constexpr int most_heads = 4;  // whose sums fit the registers
#else
constexpr int most_heads = 2;
#endif
// Elements of a row that are widened together. A bf16 chunk becomes its even elements and its odd ones, a shift and a mask away; q
// and what is summed lie in the same order (place_of).
constexpr int64_t chunk = 2 * lanes;

int64_t splits_of(const Sequence& s) { return (s.end - s.begin + split_rows - 1) / split_rows; }
int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <class T>
int64_t place_of(int64_t d) {
  if (std::is_same_v<T, float>) return d;
  return d / chunk * chunk + d % 2 * lanes + d % chunk / 2;
}

struct Pair {
  F32 v[2];
};
SLUICE_INLINE Pair load_chunk(const float* p) { return {load(p), load(p + lanes)}; }
SLUICE_INLINE Pair load_chunk(const bf16* p) {
  const U32 u = load_raw<U32>(p);
  return {(F32)(u << 16), (F32)(u & 0xffff0000U)};
}
template <class T>
SLUICE_INLINE Pair load_chunk(const T* p, int64_t count) {
  if (count >= chunk) return load_chunk(p);
  T part[chunk] = {};
  std::memcpy(part, p, static_cast<size_t>(count) * sizeof(T));
  return load_chunk(part);
}

// f(std::integral_constant<int, n>) for n in 1 … most; more count as most.
template <int most, class F>
SLUICE_INLINE void with_constant(int64_t n, F f) {
  if constexpr (most > 1) {
    if (n < most) return with_constant<most - 1>(n, f);
  }
  f(std::integral_constant<int, most>{});
}

// Where `lanes` rows of a cache lie; past the last one it is repeated.
template <class T>
struct RowBlock {
  const T* rows[lanes];
  RowBlock(const Sequence& s, const Tensor& x, int64_t first) {
    for (int64_t r = 0; r < lanes; ++r) {
      const int64_t row = std::min(first + r, s.end - 1);
      rows[r] = x.as<T>() + (s.ring > 0 ? row % s.ring : row) * x.shape[1];
    }
  }
};

// The lanes' sums of `lanes` vectors, as one vector in their order: each step folds the groups of two vectors to half their width.
template <int width, int... l>
SLUICE_INLINE F32 fold(F32 a, F32 b, std::integer_sequence<int, l...>) {
  // Lane l of the result belongs to group l / width: the even ones come from a, the odd ones from b.
  const F32 low = __builtin_shufflevector(a, b, (l / width % 2 * lanes + l / width / 2 * 2 * width + l % width)...);
  const F32 high =
      __builtin_shufflevector(a, b, (l / width % 2 * lanes + l / width / 2 * 2 * width + l % width + width)...);
  return low + high;
}
template <int width>
SLUICE_INLINE void fold_all(F32* v) {
  for (int i = 0; i < width; ++i) v[i] = fold<width>(v[i], v[i + width], std::make_integer_sequence<int, lanes>{});
  if constexpr (width > 1) fold_all<width / 2>(v);
}

// s[g, 0 … lanes) = q[g] . rows, the heads of s split_rows apart; the kv head lies at `offset` of each row.
template <int heads, class T>
void dot_rows(const float* q, int64_t depth, const RowBlock<T>& k, int64_t offset, int64_t D, float* s) {
  F32 sums[heads][lanes];
  for (int first = 0; first < lanes; first += rows_at_once) {
    F32 part[heads][rows_at_once] = {};
    for (int64_t d = 0; d < D; d += chunk) {
      Pair x[rows_at_once];
      for (int r = 0; r < rows_at_once; ++r) x[r] = load_chunk(k.rows[first + r] + offset + d, D - d);
      for (int g = 0; g < heads; ++g) {
        for (int half = 0; half < 2; ++half) {
          const F32 y = load(q + g * depth + d + half * lanes);
          for (int r = 0; r < rows_at_once; ++r) part[g][r] += y * x[r].v[half];
        }
      }
    }
    for (int g = 0; g < heads; ++g) {
      for (int r = 0; r < rows_at_once; ++r) sums[g][first + r] = part[g][r];
    }
  }
  for (int g = 0; g < heads; ++g) {
    fold_all<lanes / 2>(sums[g]);
    store(s + g * split_rows, sums[g][0]);
  }
}

// acc[g, d …] += sum_r p[g, r] rows[r, d …] for `chunks` chunks, of which the last may have fewer elements.
template <int heads, int chunks, class T>
SLUICE_INLINE void add_chunks(const float* p, const RowBlock<T>& v, int64_t offset, int64_t depth, int64_t d, int64_t D,
                              float* acc) {
  F32 sums[heads][2 * chunks];
  for (int g = 0; g < heads; ++g) {
    for (int x = 0; x < 2 * chunks; ++x) sums[g][x] = load(acc + g * depth + d + x * lanes);
  }
  for (int r = 0; r < lanes; ++r) {
    for (int c = 0; c < chunks; ++c) {
      const Pair value = load_chunk(v.rows[r] + offset + d + c * chunk, D - d - c * chunk);
      for (int g = 0; g < heads; ++g) {
        for (int half = 0; half < 2; ++half) sums[g][2 * c + half] += p[g * split_rows + r] * value.v[half];
      }
    }
  }
  for (int g = 0; g < heads; ++g) {
    for (int x = 0; x < 2 * chunks; ++x) store(acc + g * depth + d + x * lanes, sums[g][x]);
  }
}

template <int heads, class T>
void add_rows(const float* p, const RowBlock<T>& v, int64_t offset, int64_t depth, int64_t D, float* acc) {
  int64_t d = 0;
  for (; d + 2 * chunk <= D; d += 2 * chunk) add_chunks<heads, 2>(p, v, offset, depth, d, D, acc);
  for (; d < D; d += chunk) add_chunks<heads, 1>(p, v, offset, depth, d, D, acc);
}

// The scores of one head become exp(S - max), those past `rows` 0.
void softmax(float* s, int64_t rows, const AttentionShape& shape, float& top, float& sum) {
  const int64_t padded = round_up(rows, lanes);
  for (int64_t r = 0; r < padded; r += lanes) {
    const F32 x = load(s + r) * shape.scale;
    store(s + r, shape.softcap > 0 ? shape.softcap * tanh(x / shape.softcap) : x);
  }
  for (int64_t r = rows; r < padded; ++r) s[r] = -INFINITY;
  F32 tops = load(s), sums{};
  for (int64_t r = lanes; r < padded; r += lanes) tops = max(tops, load(s + r));
  top = reduce_max(tops);
  for (int64_t r = 0; r < padded; r += lanes) {
    const F32 e = exp(load(s + r) - top);
    store(s + r, e);
    sums += e;
  }
  sum = reduce_add(sums);
}

// What one split gives for each head: the largest score, the sum of exponentials, and sum_j exp(S_j - max) v_j.
struct Parts {
  float *top, *sum, *acc;  // [parts, H], [parts, H], [parts, H, depth]
};

// q: [H, depth] with zeros past D; s: [H, split_rows] scratch.
template <class T>
void decode_split(const AttentionShape& shape, const Sequence& sequence, const float* q, int64_t split, float* s,
                  const Parts& parts, int64_t part) {
  const int64_t H = shape.num_heads, K = shape.num_kv_heads, D = shape.head_dim, group = H / K,
                depth = round_up(D, chunk);
  const int64_t begin = sequence.begin + split * split_rows, rows = std::min(split_rows, sequence.end - begin);
  const auto for_each_heads = [&](auto f) {  // f(how many, the first, where their kv head lies in a row)
    for (int64_t kv_head = 0; kv_head < K; ++kv_head) {
      for (int64_t head = kv_head * group, end = head + group; head < end; head += most_heads) {
        with_constant<most_heads>(end - head, [&](auto heads) { f(heads, head, kv_head * D); });
      }
    }
  };
  for (int64_t r = 0; r < rows; r += lanes) {
    const RowBlock<T> k(sequence, sequence.k, begin + r);
    for_each_heads([&](auto heads, int64_t head, int64_t offset) {
      dot_rows<heads>(q + head * depth, depth, k, offset, D, s + head * split_rows + r);
    });
  }
  float* const acc = parts.acc + part * H * depth;
  for (int64_t h = 0; h < H; ++h)
    softmax(s + h * split_rows, rows, shape, parts.top[part * H + h], parts.sum[part * H + h]);
  for (int64_t i = 0; i < H * depth; i += lanes) store(acc + i, F32{});
  for (int64_t r = 0; r < rows; r += lanes) {
    const RowBlock<T> v(sequence, sequence.v, begin + r);
    for_each_heads([&](auto heads, int64_t head, int64_t offset) {
      add_rows<heads>(s + head * split_rows + r, v, offset, depth, D, acc + head * depth);
    });
  }
}

float element(const Tensor& x, int64_t i) {
  return x.dtype == DType::bf16 ? static_cast<float>(x.as<bf16>()[i]) : x.as<float>()[i];
}

// o = sum over splits of exp(top - max) acc, over the same of the sums; `part` is the first split's. C: the caches' element.
template <class C>
void combine(const AttentionDecode& args, const Parts& parts, int64_t part, int64_t splits, int64_t b, int64_t head,
             float* total) {
  const int64_t H = args.shape.num_heads, D = args.shape.head_dim, depth = round_up(D, chunk), row = (b * H + head) * D;
  float top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < splits; ++i) top = std::max(top, parts.top[(part + i) * H + head]);
  for (int64_t d = 0; d < depth; d += lanes) store(total + d, F32{});
  for (int64_t i = 0; i < splits; ++i) {
    const int64_t at = (part + i) * H + head;
    const float factor = std::exp(parts.top[at] - top);
    sum += factor * parts.sum[at];
    for (int64_t d = 0; d < depth; d += lanes)
      store(total + d, load(total + d) + factor * load(parts.acc + at * depth + d));
  }
  for (int64_t d = 0; d < D; ++d) {
    const float value = total[place_of<C>(d)] / sum;
    if (args.o.dtype == DType::bf16) args.o.as<bf16>()[row + d] = bf16(value);
    else args.o.as<float>()[row + d] = value;
  }
}

// A query as floats in the order of the chunks, zeros past head_dim.
template <class C>
void place_query(const AttentionDecode& args, int64_t b, float* q) {
  const int64_t H = args.shape.num_heads, D = args.shape.head_dim, depth = round_up(D, chunk);
  for (int64_t i = 0; i < H * depth; i += lanes) store(q + i, F32{});
  for (int64_t h = 0; h < H; ++h) {
    for (int64_t d = 0; d < D; ++d) q[h * depth + place_of<C>(d)] = element(args.q, (b * H + h) * D + d);
  }
}

}  // namespace

void attention_decode(Context& ctx, const AttentionDecode& args) {
  const AttentionShape& shape = args.shape;
  const int64_t H = shape.num_heads, depth = round_up(shape.head_dim, chunk);
  const auto B = static_cast<int64_t>(args.sequences.size());
  ArenaScope scope(ctx.arena);
  int64_t num_parts = 0;
  for (const Sequence& s : args.sequences) num_parts += splits_of(s);
  const Parts parts{scope.array<float>(num_parts * H), scope.array<float>(num_parts * H),
                    scope.array<float>(num_parts * H * depth)};
  auto* const first_part = scope.array<int64_t>(B + 1);
  float* const q = scope.array<float>(B * H * depth);
  const int64_t per_worker = H * split_rows + depth;
  float* const scratch = scope.array<float>(ctx.pool.num_threads() * per_worker);
  if (ctx.counting()) return;

  const auto sequence = [&](int64_t b) -> const Sequence& { return args.sequences[static_cast<size_t>(b)]; };
  const auto by_element = [&](int64_t b, auto f) {
    return sequence(b).k.dtype == DType::bf16 ? f(bf16{}) : f(float{});
  };
  first_part[0] = 0;
  for (int64_t b = 0; b < B; ++b) {
    first_part[b + 1] = first_part[b] + splits_of(sequence(b));
    by_element(b, [&](auto element) { place_query<decltype(element)>(args, b, q + b * H * depth); });
  }
  ctx.pool.parallel_for(num_parts, [&](int64_t part, int worker) {
    const int64_t b = std::upper_bound(first_part, first_part + B + 1, part) - first_part - 1;
    by_element(b, [&](auto element) {
      decode_split<decltype(element)>(shape, sequence(b), q + b * H * depth, part - first_part[b],
                                      scratch + worker * per_worker, parts, part);
    });
  });
  ctx.pool.parallel_for(B * H, [&](int64_t item, int worker) {
    const int64_t b = item / H, splits = first_part[b + 1] - first_part[b];
    by_element(b, [&](auto element) {
      combine<decltype(element)>(args, parts, first_part[b], splits, b, item % H,
                                 scratch + worker * per_worker + H * split_rows);
    });
  });
}

}  // namespace sluice::SLUICE_CPU
