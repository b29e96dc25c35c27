#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/attention/attention_schedule.h"
#include "ops/attention/attention_tile.h"
#include "ops/attention/attention_turns.h"
#include "ops/gemm/gemm.h"
#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {
namespace {

using attention::Carve;
using attention::FailGuard;
using attention::grain;
using attention::Grouping;
using attention::round_up;
using attention::Schedule;
using attention::Tile;
using attention::Turns;
using attention::Visit;

constexpr float log2_e = 1.44269504F;
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// 2^(x c) for x <= 0, c > 0; exactly 1 at 0, exactly 0 below 2^-127, NaN for NaN. x c = n + f, |f| <= 1/2; the minimax polynomial of
// 2^f has a relative error of 2.6e-9 and is 1 at 0. Larger x are fine up to x c < 127.
SLUICE_INLINE F32 exp2_scaled(F32 x, float c, float lowest) {  // lowest = -127 / c
  x = x < lowest ? splat(lowest) : x;
  const F32 shifted = x * c + 12582912.0F;  // 1.5 * 2^23: rounds to an integer in the low bits
  const F32 f = x * c - (shifted - 12582912.0F);
  F32 p = splat(1.55946782e-4F);
  p = p * f + 1.34066439e-3F;
  p = p * f + 9.61769297e-3F;
  p = p * f + 5.55031055e-2F;
  p = p * f + 2.40226528e-1F;
  p = p * f + 6.93147215e-1F;
  p = p * f + 1.0F;
  return p * (F32)(((I32)shifted << 23) + 0x3f800000);  // n = -127 gives the factor 0
}

// The sum and the maximum of the lanes, as a tree.
using F32x8 = float __attribute__((vector_size(32)));
using F32x4 = float __attribute__((vector_size(16)));
template <class Op>
SLUICE_INLINE float reduce(F32 v, Op op) {
#if defined(SLUICE_ISA_AVX512)
  const F32x8 h = op(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  const F32x8 h = v;
#endif
  const F32x4 q = op(__builtin_shufflevector(h, h, 0, 1, 2, 3), __builtin_shufflevector(h, h, 4, 5, 6, 7));
  const F32x4 d = op(q, __builtin_shufflevector(q, q, 2, 3, 0, 1));
  return op(d, __builtin_shufflevector(d, d, 1, 0, 3, 2))[0];
}
struct Add {
  template <class V>
  V operator()(V a, V b) const {
    return a + b;
  }
};
struct Max {
  template <class V>
  V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

// Rounds to nearest even as store() does, without its case for a NaN: one that comes from bf16 values stays a NaN.
SLUICE_INLINE void store_rounded(bf16* p, F32 v) {
  const U32 u = (U32)v;
  const U16 h = __builtin_convertvector((u + 0x7fffU + ((u >> 16) & 1U)) >> 16, U16);
  std::memcpy(p, &h, sizeof h);
}
SLUICE_INLINE void store_rounded(float* p, F32 v) { store(p, v); }

// Copies a row and asks for what will be read next, `ahead` elements further.
template <class T>
SLUICE_INLINE void copy_row(T* to, const T* from, int64_t n, int64_t ahead) {
  constexpr int64_t step = 64 / sizeof(T);  // a cache line
  int64_t i = 0;
  for (; i + step <= n; i += step) {
    __builtin_prefetch(from + ahead + i);
    std::memcpy(to + i, from + i, 64);
  }
  if (i < n) std::memcpy(to + i, from + i, static_cast<size_t>(n - i) * sizeof(T));
}

// Packs rows [begin, begin + rows_each) of `heads` heads of x, head after head; zeros past `end` and past head_dim.
template <class T>
void gather(const Tensor& x, int64_t first_head, int64_t heads, int64_t head_dim, int64_t begin, int64_t end,
            int64_t rows_each, T* to) {
  const int64_t depth = attention::padded_depth(head_dim), ld = x.shape[1], rows = std::min(rows_each, end - begin);
  if (depth != head_dim) std::memset(to, 0, static_cast<size_t>(heads * rows_each * depth) * sizeof(T));
  for (int64_t h = 0; h < heads; ++h, to += rows_each * depth) {
    const T* from = x.as<T>() + begin * ld + (first_head + h) * head_dim;
    for (int64_t r = 0; r < rows; ++r) copy_row(to + r * depth, from + r * ld, head_dim, rows_each * ld);
    if (rows < rows_each)
      std::memset(to + rows * depth, 0, static_cast<size_t>((rows_each - rows) * depth) * sizeof(T));
  }
}

void cap_scores(float* s, int64_t count, float scale, float softcap) {
  for (int64_t i = 0; i < count; i += lanes) store(s + i, softcap * tanh(load(s + i) * (scale / softcap)));
}

// Scores that are hidden become -inf.
void hide_scores(const Schedule& schedule, int64_t block, const Visit& visit, const Tile& tile, float* s) {
  if (schedule.all_visible(block, visit)) return;
  const int64_t n = visit.size();
  schedule.for_each_hidden(block, visit, [&](int64_t row, int64_t from, int64_t to) {
    for (int64_t h = 0; h < tile.heads; ++h) {
      float* const line = s + (h * tile.rows_each + row) * n;
      std::fill(line + from - visit.begin, line + to - visit.begin, minus_infinity);
    }
  });
}

// Rows that are padding, of every head.
template <class T>
void zero_padding(const Tile& tile, int64_t n, T* p) {
  if (tile.rows == tile.rows_each) return;
  for (int64_t h = 0; h < tile.heads; ++h) {
    std::memset(p + (h * tile.rows_each + tile.rows) * n, 0,
                static_cast<size_t>((tile.rows_each - tile.rows) * n) * sizeof(T));
  }
}

constexpr int rows_at_once = 4;  // so that the reductions of several rows overlap; divides `grain`

// Some rows of scores against their running maxima and sums (of exp of score times `scale`): p = exp(scale (s - max)). `factors` are
// what was summed before must take.
template <class T>
SLUICE_INLINE void softmax_rows(const float* s, int64_t n, float scale, float* row_max, float* row_sum, float* factors,
                                T* p) {
  const float c = scale * log2_e, lowest = -127.0F / c;
  float base[rows_at_once];
  for (int r = 0; r < rows_at_once; ++r) {
    F32 top = load(s + r * n);
    for (int64_t j = lanes; j < n; j += lanes) top = max(top, load(s + r * n + j));
    base[r] = std::max(row_max[r], reduce(top, Max{}));
  }
  for (int r = 0; r < rows_at_once; ++r) {
    const float before = row_max[r], now = base[r];
    row_max[r] = now;
    if (now == minus_infinity) base[r] = 0.0F;  // nothing seen yet: all exponentials are 0
    factors[r] = before == now ? 1.0F : exp2_scaled(splat(before - base[r]), c, lowest)[0];
  }
  for (int r = 0; r < rows_at_once; ++r) {
    F32 sum{};
    for (int64_t j = 0; j < n; j += lanes) {
      const F32 e = exp2_scaled(load(s + r * n + j) - base[r], c, lowest);
      sum += e;
      store_rounded(p + r * n + j, e);
    }
    row_sum[r] = row_sum[r] * factors[r] + reduce(sum, Add{});
  }
}

template <class T>
struct ForwardScratch {
  float *s, *o, *row_max, *row_sum;
  T *p, *q, *k, *v;
  std::byte* gemm;
  uintptr_t end;
  ForwardScratch(uintptr_t memory, const Grouping& grouping, int64_t head_dim, int64_t gemm_bytes) {
    const int64_t m = grouping.heads * grouping.blocks.queries, keys = grouping.blocks.keys,
                  depth = attention::padded_depth(head_dim);
    Carve carve{memory};
    s = carve.take<float>(m * keys);
    p = carve.take<T>(m * keys);
    o = carve.take<float>(m * depth);
    q = carve.take<T>(m * depth);
    k = carve.take<T>(keys * depth);
    v = carve.take<T>(keys * depth);
    row_max = carve.take<float>(m);
    row_sum = carve.take<float>(m);
    gemm = carve.take<std::byte>(gemm_bytes);
    end = carve.at;
  }
};

template <class T>
int64_t forward_gemm_bytes(const Context& ctx, const Schedule& schedule, const Grouping& grouping, int64_t head_dim) {
  const int64_t depth = attention::padded_depth(head_dim);
  int64_t bytes = 0;
  const auto need = [&](const Gemm& gemm) { bytes = std::max(bytes, gemm_scratch_bytes(ctx, gemm)); };
  for_each_tile_shape(schedule, grouping, [&](int64_t m, int64_t n) {
    need(attention::scores_product<T>(m, n, depth, nullptr, nullptr, nullptr));
    for (Write write : {Write::set, Write::add})
      need(attention::rows_product<T>(m, n, depth, nullptr, nullptr, nullptr, write));
  });
  return bytes;
}

template <class T>
void softmax_tile(const Tile& tile, const Visit& visit, float scale, const ForwardScratch<T>& t) {
  const int64_t n = visit.size();
  for (int64_t first = 0; first < tile.m(); first += rows_at_once) {
    float factors[rows_at_once];
    softmax_rows(t.s + first * n, n, scale, t.row_max + first, t.row_sum + first, factors, t.p + first * n);
    for (int r = 0; r < rows_at_once; ++r) {
      if (visit.index == 0 || factors[r] == 1.0F) continue;
      float* const o = t.o + (first + r) * tile.depth;
      for (int64_t d = 0; d < tile.depth; d += lanes) store(o + d, load(o + d) * factors[r]);
    }
  }
}

template <class T>
void store_output(const AttentionForward& args, const Tile& tile, int64_t first_row, int64_t first_head, float scale,
                  const ForwardScratch<T>& t) {
  const int64_t D = args.shape.head_dim, H = args.shape.num_heads;
  for (int64_t h = 0; h < tile.heads; ++h) {
    for (int64_t row = 0; row < tile.rows; ++row) {
      const int64_t r = h * tile.rows_each + row, at = (first_row + row) * H + first_head + h;
      const float* const x = t.o + r * tile.depth;
      T* const o = args.o.as<T>() + at * D;
      const float factor = 1.0F / t.row_sum[r];
      int64_t d = 0;
      for (; d + lanes <= D; d += lanes) store(o + d, load(x + d) * factor);
      if (d < D) store_part(o + d, load(x + d) * factor, D - d);
      args.lse.as<float>()[at] = t.row_max[r] * scale + std::log(t.row_sum[r]);
    }
  }
}

// A block of queries, some heads, over the blocks of keys that it sees in ascending order.
template <class T>
void forward_block(const Context& ctx, const AttentionForward& args, const Schedule& schedule, const Grouping& grouping,
                   int64_t block, int64_t first_head, const ForwardScratch<T>& t) {
  const AttentionShape& shape = args.shape;
  const int64_t D = shape.head_dim, kv_head = first_head / (shape.num_heads / shape.num_kv_heads);
  const int64_t first_row = schedule.first_row(block), num_keys = args.query_begin + args.q.shape[0];
  const Tile tile = attention::tile_of(schedule, grouping, block, D);
  const int64_t m = tile.m(), depth = tile.depth;
  const float scale = shape.softcap > 0 ? 1.0F : shape.scale;
  gather(args.q, first_head, tile.heads, D, first_row, args.q.shape[0], tile.rows_each, t.q);
  for (int64_t r = 0; r < m; ++r) t.row_max[r] = minus_infinity, t.row_sum[r] = 0;
  for (Visit visit = schedule.first_visit(block); visit.key_block >= 0; visit = schedule.next_visit(block, visit)) {
    const int64_t n = visit.size();
    gather(args.k, kv_head, 1, D, visit.begin, num_keys, n, t.k);
    gather(args.v, kv_head, 1, D, visit.begin, num_keys, n, t.v);
    gemm_on_this_thread(ctx, attention::scores_product(m, n, depth, t.q, t.k, t.s), t.gemm);
    if (shape.softcap > 0) cap_scores(t.s, m * n, shape.scale, shape.softcap);
    hide_scores(schedule, block, visit, tile, t.s);
    softmax_tile(tile, visit, scale, t);
    const Write write = visit.index == 0 ? Write::set : Write::add;
    gemm_on_this_thread(ctx, attention::rows_product(m, n, depth, t.p, t.v, t.o, write), t.gemm);
  }
  store_output(args, tile, first_row, first_head, scale, t);
}

template <class T>
void forward(Context& ctx, const AttentionForward& args) {
  const int64_t D = args.shape.head_dim;
  const Grouping grouping = attention::grouping_of(args.shape, 128);
  ArenaScope scope(ctx.arena);
  const Schedule schedule(scope, ctx.counting(), args.spans, args.shape.window,
                          {.begin = args.query_begin, .count = args.q.shape[0]}, grouping.blocks);
  const int64_t gemm_bytes = forward_gemm_bytes<T>(ctx, schedule, grouping, D);
  const auto bytes = static_cast<int64_t>(ForwardScratch<T>(0, grouping, D, gemm_bytes).end);
  const auto memory = reinterpret_cast<uintptr_t>(scope.array<std::byte>(ctx.pool.num_threads() * bytes));
  if (ctx.counting()) return;
  const int64_t blocks = schedule.num_query_blocks(), groups = args.shape.num_heads / grouping.heads;
  ctx.pool.parallel_for(blocks * groups, [&](int64_t item, int worker) {
    const ForwardScratch<T> scratch(memory + static_cast<uintptr_t>(worker * bytes), grouping, D, gemm_bytes);
    const int64_t block = blocks - 1 - item / groups;  // the longest first
    forward_block(ctx, args, schedule, grouping, block, item % groups * grouping.heads, scratch);
  });
}

template <class T>
struct BackwardScratch {
  float *s, *dp, *dk, *dv, *dq;
  T *p, *ds, *q, *do_, *k, *v;
  std::byte* gemm;
  uintptr_t end;
  BackwardScratch(uintptr_t memory, const Grouping& grouping, int64_t head_dim, int64_t gemm_bytes) {
    const int64_t m = grouping.heads * grouping.blocks.queries, keys = grouping.blocks.keys,
                  depth = attention::padded_depth(head_dim);
    Carve carve{memory};
    s = carve.take<float>(m * keys);
    dp = carve.take<float>(m * keys);
    p = carve.take<T>(m * keys);
    ds = carve.take<T>(m * keys);
    q = carve.take<T>(m * depth);
    do_ = carve.take<T>(m * depth);
    k = carve.take<T>(keys * depth);
    v = carve.take<T>(keys * depth);
    dk = carve.take<float>(keys * depth);
    dv = carve.take<float>(keys * depth);
    dq = carve.take<float>(m * depth);
    gemm = carve.take<std::byte>(gemm_bytes);
    end = carve.at;
  }
};

template <class T>
int64_t backward_gemm_bytes(const Context& ctx, const Schedule& schedule, const Grouping& grouping, int64_t head_dim) {
  const int64_t depth = attention::padded_depth(head_dim);
  int64_t bytes = 0;
  const auto need = [&](const Gemm& gemm) { bytes = std::max(bytes, gemm_scratch_bytes(ctx, gemm)); };
  for_each_tile_shape(schedule, grouping, [&](int64_t m, int64_t n) {
    need(attention::scores_product<T>(m, n, depth, nullptr, nullptr, nullptr));
    need(attention::columns_product<T>(m, n, depth, nullptr, nullptr, nullptr));
    need(attention::rows_product<T>(m, n, depth, nullptr, nullptr, nullptr, Write::set));
  });
  return bytes;
}

// p = exp(S - lse) and ds = scale p (dp - delta) (1 - (S / softcap)^2) of one row.
template <bool capped, class T>
SLUICE_INLINE void score_gradient_row(const float* s, const float* dp, int64_t n, float lse, float delta,
                                      const AttentionShape& shape, T* p, T* ds) {
  constexpr float lowest = -127.0F / log2_e;
  const float scale = shape.scale, scaled_delta = delta * scale, per_cap = capped ? 1.0F / shape.softcap : 0.0F;
  for (int64_t j = 0; j < n; j += lanes) {
    const F32 score = load(s + j);
    F32 scaled = capped ? score : score * scale;
    __asm__(
        ""
        : "+v"(
            scaled));  // no fused subtraction: where one key has all the weight, lse is this rounded product and p is 1
    const F32 e = exp2_scaled(scaled - lse, log2_e, lowest);
    F32 d = e * (load(dp + j) * scale - scaled_delta);
    if constexpr (capped) {
      const F32 t = e > 0.0F ? score * per_cap : F32{};  // hidden scores are -inf
      d = d * (1.0F - t * t);
    }
    store_rounded(p + j, e);
    store_rounded(ds + j, d);
  }
}

template <class T>
void score_gradient_tile(const AttentionBackward& args, const float* delta, const Tile& tile, int64_t n,
                         int64_t first_row, int64_t first_head, const BackwardScratch<T>& t) {
  const AttentionShape& shape = args.shape;
  for (int64_t h = 0; h < tile.heads; ++h) {
    for (int64_t row = 0; row < tile.rows; ++row) {
      const int64_t at = (h * tile.rows_each + row) * n, stat = (first_row + row) * shape.num_heads + first_head + h;
      const float lse = args.lse.as<float>()[stat];
      if (shape.softcap > 0)
        score_gradient_row<true>(t.s + at, t.dp + at, n, lse, delta[stat], shape, t.p + at, t.ds + at);
      else score_gradient_row<false>(t.s + at, t.dp + at, n, lse, delta[stat], shape, t.p + at, t.ds + at);
    }
  }
  zero_padding(tile, n, t.p);
  zero_padding(tile, n, t.ds);
}

// to (+)= from
SLUICE_INLINE void write_row(float* to, const float* from, int64_t n, Write write) {
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    store(to + i, write == Write::add ? load(to + i) + load(from + i) : load(from + i));
  for (; i < n; ++i) to[i] = write == Write::add ? to[i] + from[i] : from[i];
}

void write_dq(const Tensor& dq, int64_t head_dim, const Tile& tile, int64_t first_row, int64_t first_head, Write write,
              const float* from) {
  for (int64_t h = 0; h < tile.heads; ++h) {
    float* const to = dq.as<float>() + first_row * dq.shape[1] + (first_head + h) * head_dim;
    for (int64_t r = 0; r < tile.rows; ++r) {
      write_row(to + r * dq.shape[1], from + (h * tile.rows_each + r) * tile.depth, head_dim, write);
    }
  }
}

// What the items of one backward pass share.
struct BackwardPass {
  const Context& ctx;
  const AttentionBackward& args;
  const Schedule& schedule;
  const Grouping& grouping;
  const float* delta;  // [N, H]
  Turns& turns;        // of dq, by kv head and query block
};

// Some heads of a block of queries against a block of keys: adds to t.dk and t.dv, leaves the part of dq in t.dq.
template <class T>
void backward_tile(const BackwardPass& pass, int64_t block, const Visit& visit, const Tile& tile, int64_t first_head,
                   const BackwardScratch<T>& t) {
  const AttentionShape& shape = pass.args.shape;
  const int64_t D = shape.head_dim, m = tile.m(), n = visit.size(), depth = tile.depth, N = pass.args.q.shape[0];
  const int64_t first_row = pass.schedule.first_row(block), offset = visit.begin % pass.grouping.blocks.keys * depth;
  const auto run = [&](const Gemm& gemm) { gemm_on_this_thread(pass.ctx, gemm, t.gemm); };
  gather(pass.args.q, first_head, tile.heads, D, first_row, N, tile.rows_each, t.q);
  gather(pass.args.do_, first_head, tile.heads, D, first_row, N, tile.rows_each, t.do_);
  run(attention::scores_product(m, n, depth, t.q, t.k + offset, t.s));
  run(attention::scores_product(m, n, depth, t.do_, t.v + offset, t.dp));
  if (shape.softcap > 0) cap_scores(t.s, m * n, shape.scale, shape.softcap);
  hide_scores(pass.schedule, block, visit, tile, t.s);
  score_gradient_tile(pass.args, pass.delta, tile, n, first_row, first_head, t);
  run(attention::columns_product(m, n, depth, t.p, t.do_, t.dv + offset));
  run(attention::columns_product(m, n, depth, t.ds, t.q, t.dk + offset));
  run(attention::rows_product(m, n, depth, t.ds, t.k + offset, t.dq, Write::set));
}

// One key block of one kv head: all the queries that see it, in ascending order. Stops early when another item failed.
template <class T>
void backward_block(const BackwardPass& pass, int64_t kb, int64_t kv_head, const BackwardScratch<T>& t) {
  const AttentionBackward& args = pass.args;
  const Schedule& schedule = pass.schedule;
  const int64_t D = args.shape.head_dim, group = args.shape.num_heads / args.shape.num_kv_heads, N = args.q.shape[0];
  const int64_t keys = pass.grouping.blocks.keys, first_key = kb * keys, depth = attention::padded_depth(D);
  gather(args.k, kv_head, 1, D, first_key, N, keys, t.k);
  gather(args.v, kv_head, 1, D, first_key, N, keys, t.v);
  for (float* sum : {t.dk, t.dv}) std::memset(sum, 0, static_cast<size_t>(keys * depth) * sizeof(float));
  for (int64_t block = schedule.first_seen_by(kb); block <= schedule.last_seen_by(kb); ++block) {
    const Visit visit = schedule.visit(block, kb);
    if (visit.key_block < 0) continue;
    const int64_t place = kv_head * schedule.num_query_blocks() + block;
    const Tile tile = attention::tile_of(schedule, pass.grouping, block, D);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head += tile.heads) {
      backward_tile(pass, block, visit, tile, head, t);
      if (!pass.turns.wait(place, visit.index)) return;
      write_dq(args.dq, D, tile, schedule.first_row(block), head, visit.index == 0 ? Write::set : Write::add, t.dq);
    }
    pass.turns.done(place);
  }
  for (int64_t r = 0; r < std::min(keys, N - first_key); ++r) {
    const int64_t at = (first_key + r) * args.dk.shape[1] + kv_head * D;
    write_row(args.dk.as<float>() + at, t.dk + r * depth, D, Write::add);
    write_row(args.dv.as<float>() + at, t.dv + r * depth, D, Write::add);
  }
}

// delta[i,h] = sum_d do[i,h,d] o[i,h,d]
template <class T>
void fill_delta(Context& ctx, const AttentionBackward& args, float* delta) {
  constexpr int64_t rows_per_item = 128;
  const int64_t H = args.shape.num_heads, D = args.shape.head_dim, N = args.q.shape[0];
  ctx.pool.parallel_for((N + rows_per_item - 1) / rows_per_item, [&](int64_t part, int) {
    const int64_t end = std::min(N, (part + 1) * rows_per_item) * H;
    for (int64_t i = part * rows_per_item * H; i < end; ++i) {
      const T *o = args.o.as<T>() + i * D, *d_o = args.do_.as<T>() + i * D;
      F32 sum{};
      int64_t d = 0;
      for (; d + lanes <= D; d += lanes) sum += load(o + d) * load(d_o + d);
      if (d < D) sum += load_part(o + d, D - d) * load_part(d_o + d, D - d);
      delta[i] = reduce(sum, Add{});
    }
  });
}

template <class T>
void backward(Context& ctx, const AttentionBackward& args) {
  const int64_t D = args.shape.head_dim, K = args.shape.num_kv_heads, N = args.q.shape[0];
  const Grouping grouping = attention::grouping_of(args.shape, 256);
  ArenaScope scope(ctx.arena);
  const Schedule schedule(scope, ctx.counting(), args.spans, args.shape.window, {.begin = 0, .count = N},
                          grouping.blocks);
  float* const delta = scope.array<float>(N * args.shape.num_heads);
  const int64_t places = K * schedule.num_query_blocks();
  void* const counters = scope.array<std::byte>(places * Turns::bytes_each);
  const int64_t gemm_bytes = backward_gemm_bytes<T>(ctx, schedule, grouping, D);
  const auto bytes = static_cast<int64_t>(BackwardScratch<T>(0, grouping, D, gemm_bytes).end);
  const auto memory = reinterpret_cast<uintptr_t>(scope.array<std::byte>(ctx.pool.num_threads() * bytes));
  if (ctx.counting()) return;
  fill_delta<T>(ctx, args, delta);
  Turns turns(counters, places);
  const BackwardPass pass{ctx, args, schedule, grouping, delta, turns};
  ctx.pool.parallel_for(schedule.num_key_blocks() * K, [&](int64_t item, int worker) {
    const FailGuard guard(turns);
    const BackwardScratch<T> scratch(memory + static_cast<uintptr_t>(worker * bytes), grouping, D, gemm_bytes);
    backward_block(pass, item / K, item % K, scratch);
  });
}

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& args) {
  if (args.q.dtype == DType::bf16) forward<bf16>(ctx, args);
  else forward<float>(ctx, args);
}

void attention_backward(Context& ctx, const AttentionBackward& args) {
  if (args.q.dtype == DType::bf16) backward<bf16>(ctx, args);
  else backward<float>(ctx, args);
}

}  // namespace sluice::SLUICE_CPU
