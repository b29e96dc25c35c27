#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/attention.h"
#include "ops/attention/attention_schedule.h"
#include "ops/attention/attention_turns.h"
#include "ops/gemm/gemm.h"
#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {
namespace {

using attention::FailGuard;
using attention::grain;
using attention::key_block;
using attention::query_block;
using attention::Schedule;
using attention::Turns;
using attention::Visit;

constexpr int64_t tile_stride = key_block;  // elements between rows of a score tile
constexpr float log2_e = 1.44269504F;
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// 2^(x c) for x <= 0, c > 0; exactly 1 at 0, exactly 0 below 2^-127, NaN for NaN. x c = n + f, |f| <= 1/2; the minimax polynomial of 2^f
// has a relative error of 2.6e-9 and is 1 at 0. Larger x are fine up to x c < 127.
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

// Hands out parts of a block of memory; from address 0 it only counts.
struct Carve {
  uintptr_t at;
  template <class T>
  T* take(int64_t count) {
    T* part = reinterpret_cast<T*>(at);
    at += static_cast<uintptr_t>(attention::round_up(count * static_cast<int64_t>(sizeof(T)), 64));
    return part;
  }
};

// Rows of q, k, v or do_ for one head.
template <class T>
struct Rows {
  const T* data;
  int64_t ld;
};

// Rows [begin, begin + padded) of a head of x; those past `end` are zeros in a copy.
template <class T>
Rows<T> rows_or_copy(const Tensor& x, int64_t head, int64_t D, int64_t begin, int64_t end, int64_t padded, T* copy) {
  const int64_t ld = x.shape[1], rows = std::min(padded, end - begin);
  const T* data = x.as<T>() + begin * ld + head * D;
  if (rows == padded) return {data, ld};
  for (int64_t r = 0; r < rows; ++r) std::memcpy(copy + r * D, data + r * ld, static_cast<size_t>(D) * sizeof(T));
  std::memset(copy + rows * D, 0, static_cast<size_t>((padded - rows) * D) * sizeof(T));
  return {copy, D};
}

// The products of one tile: rows [m, D] or [n, D] of operands, scores [m, n].
template <class T>
struct Products {
  const Context& ctx;
  int64_t D;
  std::byte* scratch;

  static constexpr DType dtype = dtype_of<T>::value;

  static Gemm scores_of(int64_t m, int64_t n, int64_t D, Rows<T> a, Rows<T> b, float* c) {  // C = A B^T
    return {.m = m,
            .n = n,
            .k = D,
            .dtype = dtype,
            .a = a.data,
            .lda = a.ld,
            .b = b.data,
            .ldb = b.ld,
            .transpose_b = true,
            .c = c,
            .ldc = tile_stride};
  }
  static Gemm rows_of(int64_t m, int64_t n, int64_t D, const T* p, Rows<T> b, float* c, int64_t ldc,
                      Write write) {  // C = P B
    return {.m = m,
            .n = D,
            .k = n,
            .dtype = dtype,
            .a = p,
            .lda = tile_stride,
            .b = b.data,
            .ldb = b.ld,
            .c = c,
            .ldc = ldc,
            .write = write};
  }
  static Gemm columns_of(int64_t m, int64_t n, int64_t D, const T* p, Rows<T> b, float* c) {  // C += P^T B
    return {.m = n,
            .n = D,
            .k = m,
            .dtype = dtype,
            .a = p,
            .lda = tile_stride,
            .transpose_a = true,
            .b = b.data,
            .ldb = b.ld,
            .c = c,
            .ldc = D,
            .write = Write::add};
  }
  void run(const Gemm& gemm) const { gemm_on_this_thread(ctx, gemm, scratch); }
};

// f(m, n, ld of the query rows, ld of the key rows) for every shape of tile that a schedule can visit.
template <class F>
void for_each_tile_shape(const Schedule& schedule, int64_t D, int64_t query_ld, int64_t key_ld, F f) {
  const int64_t blocks = schedule.num_query_blocks();
  const int64_t last = attention::round_up(schedule.block_rows(blocks - 1), grain);
  for (int64_t m : {query_block, last}) {
    if (m == query_block && last != m && blocks == 1) continue;
    for (int64_t n = grain; n <= key_block; n += grain) {
      for (int64_t ldq : {query_ld, D}) {
        for (int64_t ldk : {key_ld, D}) f(m, n, ldq, ldk);
      }
    }
  }
}

void cap_scores(float* s, int64_t rows, int64_t n, float scale, float softcap) {
  for (int64_t r = 0; r < rows; ++r, s += tile_stride) {
    for (int64_t j = 0; j < n; j += lanes) store(s + j, softcap * tanh(load(s + j) * (scale / softcap)));
  }
}

// Scores that are hidden become -inf.
void hide_scores(const Schedule& schedule, int64_t block, const Visit& visit, float* s) {
  if (schedule.all_visible(block, visit)) return;
  schedule.for_each_hidden(block, visit, [&](int64_t row, int64_t from, int64_t to) {
    float* const line = s + row * tile_stride - visit.begin;
    for (int64_t j = from; j < to; ++j) line[j] = minus_infinity;
  });
}

template <class T>
void zero_rows(T* tile, int64_t from, int64_t to) {
  if (from < to) std::memset(tile + from * tile_stride, 0, static_cast<size_t>((to - from) * tile_stride) * sizeof(T));
}

// One row of scores against its running maximum and sum (of exp of score times `scale`): p = exp(scale (s - max)). Returns the
// factor that what was summed before must take.
template <class T>
SLUICE_INLINE float softmax_row(const float* s, int64_t n, float scale, float& row_max, float& row_sum, T* p) {
  F32 top = load(s);
  for (int64_t j = lanes; j < n; j += lanes) top = max(top, load(s + j));
  const float before = row_max, now = std::max(before, reduce_max(top));
  const float base = now == minus_infinity ? 0.0F : now;  // nothing seen yet: all exponentials are 0
  const float c = scale * log2_e, lowest = -127.0F / c;
  F32 sum{};
  for (int64_t j = 0; j < n; j += lanes) {
    const F32 e = exp2_scaled(load(s + j) - base, c, lowest);
    sum += e;
    store(p + j, e);
  }
  const float factor = before == now ? 1.0F : exp2_scaled(splat(before - base), c, lowest)[0];
  row_max = now;
  row_sum = row_sum * factor + reduce_add(sum);
  return factor;
}

SLUICE_INLINE void multiply_row(float* x, int64_t n, float factor) {
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) store(x + j, load(x + j) * factor);
  if (j < n) store_part(x + j, load_part(x + j, n - j) * factor, n - j);
}

template <class T>
SLUICE_INLINE void store_row(T* y, const float* x, int64_t n, float factor) {
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) store(y + j, load(x + j) * factor);
  if (j < n) store_part(y + j, load_part(x + j, n - j) * factor, n - j);
}

template <class T>
struct ForwardScratch {
  float *s, *o, *row_max, *row_sum;
  T *p, *q, *k, *v;
  std::byte* gemm;
  uintptr_t end;
  ForwardScratch(uintptr_t memory, int64_t D, int64_t gemm_bytes) {
    Carve carve{memory};
    s = carve.take<float>(query_block * tile_stride);
    p = carve.take<T>(query_block * tile_stride);
    o = carve.take<float>(query_block * D);
    row_max = carve.take<float>(query_block);
    row_sum = carve.take<float>(query_block);
    q = carve.take<T>(query_block * D);
    k = carve.take<T>(key_block * D);
    v = carve.take<T>(key_block * D);
    gemm = carve.take<std::byte>(gemm_bytes);
    end = carve.at;
  }
};

template <class T>
int64_t forward_gemm_bytes(const Context& ctx, const AttentionForward& args, const Schedule& schedule) {
  const int64_t D = args.shape.head_dim;
  int64_t bytes = 0;
  for_each_tile_shape(
      schedule, D, args.q.shape[1], args.k.shape[1], [&](int64_t m, int64_t n, int64_t ldq, int64_t ldk) {
        bytes = std::max(
            bytes, gemm_scratch_bytes(ctx, Products<T>::scores_of(m, n, D, {nullptr, ldq}, {nullptr, ldk}, nullptr)));
        for (Write write : {Write::set, Write::add}) {
          bytes = std::max(bytes, gemm_scratch_bytes(
                                      ctx, Products<T>::rows_of(m, n, D, nullptr, {nullptr, ldk}, nullptr, D, write)));
        }
      });
  return bytes;
}

// One head of one block of queries, over the blocks of keys that it sees in ascending order.
template <class T>
void forward_block(const Context& ctx, const AttentionForward& args, const Schedule& schedule, int64_t block,
                   int64_t head, const ForwardScratch<T>& t) {
  const AttentionShape& shape = args.shape;
  const int64_t D = shape.head_dim, kv_head = head / (shape.num_heads / shape.num_kv_heads);
  const int64_t rows = schedule.block_rows(block), m = attention::round_up(rows, grain),
                num_keys = args.query_begin + args.q.shape[0];
  const int64_t first_row = block * query_block;
  const float scale = shape.softcap > 0 ? 1.0F : shape.scale;
  const Products<T> products{ctx, D, t.gemm};
  const Rows<T> q = rows_or_copy(args.q, head, D, first_row, args.q.shape[0], m, t.q);
  for (int64_t r = 0; r < rows; ++r) t.row_max[r] = minus_infinity, t.row_sum[r] = 0;
  zero_rows(t.p, rows, m);
  for (Visit visit = schedule.first_visit(block); visit.key_block >= 0; visit = schedule.next_visit(block, visit)) {
    const int64_t n = visit.size();
    const Rows<T> k = rows_or_copy(args.k, kv_head, D, visit.begin, num_keys, n, t.k);
    const Rows<T> v = rows_or_copy(args.v, kv_head, D, visit.begin, num_keys, n, t.v);
    products.run(Products<T>::scores_of(m, n, D, q, k, t.s));
    if (shape.softcap > 0) cap_scores(t.s, rows, n, shape.scale, shape.softcap);
    hide_scores(schedule, block, visit, t.s);
    for (int64_t r = 0; r < rows; ++r) {
      const float factor =
          softmax_row(t.s + r * tile_stride, n, scale, t.row_max[r], t.row_sum[r], t.p + r * tile_stride);
      if (visit.index > 0 && factor != 1.0F) multiply_row(t.o + r * D, D, factor);
    }
    products.run(Products<T>::rows_of(m, n, D, t.p, v, t.o, D, visit.index == 0 ? Write::set : Write::add));
  }
  for (int64_t r = 0; r < rows; ++r) {
    store_row(args.o.as<T>() + (first_row + r) * args.o.shape[1] + head * D, t.o + r * D, D, 1.0F / t.row_sum[r]);
    args.lse.as<float>()[(first_row + r) * shape.num_heads + head] = t.row_max[r] * scale + std::log(t.row_sum[r]);
  }
}

template <class T>
void forward(Context& ctx, const AttentionForward& args) {
  const int64_t D = args.shape.head_dim, H = args.shape.num_heads;
  ArenaScope scope(ctx.arena);
  const Schedule schedule(scope, ctx.counting(), args.spans, args.shape.window, args.query_begin, args.q.shape[0]);
  const int64_t gemm_bytes = forward_gemm_bytes<T>(ctx, args, schedule);
  const int64_t bytes = static_cast<int64_t>(ForwardScratch<T>(0, D, gemm_bytes).end);
  const auto memory = reinterpret_cast<uintptr_t>(scope.array<std::byte>(ctx.pool.num_threads() * bytes));
  if (ctx.counting()) return;
  const int64_t blocks = schedule.num_query_blocks();
  ctx.pool.parallel_for(blocks * H, [&](int64_t item, int worker) {
    const ForwardScratch<T> scratch(memory + static_cast<uintptr_t>(worker * bytes), D, gemm_bytes);
    forward_block(ctx, args, schedule, blocks - 1 - item / H, item % H, scratch);  // the longest first
  });
}

template <class T>
struct BackwardScratch {
  float *s, *dp, *dk, *dv, *dq;
  T *p, *ds, *q, *do_, *k, *v;
  std::byte* gemm;
  uintptr_t end;
  BackwardScratch(uintptr_t memory, int64_t D, int64_t gemm_bytes) {
    Carve carve{memory};
    s = carve.take<float>(query_block * tile_stride);
    dp = carve.take<float>(query_block * tile_stride);
    p = carve.take<T>(query_block * tile_stride);
    ds = carve.take<T>(query_block * tile_stride);
    dk = carve.take<float>(key_block * D);
    dv = carve.take<float>(key_block * D);
    dq = carve.take<float>(query_block * D);
    q = carve.take<T>(query_block * D);
    do_ = carve.take<T>(query_block * D);
    k = carve.take<T>(key_block * D);
    v = carve.take<T>(key_block * D);
    gemm = carve.take<std::byte>(gemm_bytes);
    end = carve.at;
  }
};

template <class T>
int64_t backward_gemm_bytes(const Context& ctx, const AttentionBackward& args, const Schedule& schedule) {
  using P = Products<T>;
  const int64_t D = args.shape.head_dim;
  int64_t bytes = 0;
  const auto need = [&](const Gemm& gemm) { bytes = std::max(bytes, gemm_scratch_bytes(ctx, gemm)); };
  for_each_tile_shape(schedule, D, args.q.shape[1], args.k.shape[1],
                      [&](int64_t m, int64_t n, int64_t ldq, int64_t ldk) {
                        need(P::scores_of(m, n, D, {nullptr, ldq}, {nullptr, ldk}, nullptr));
                        need(P::columns_of(m, n, D, nullptr, {nullptr, ldq}, nullptr));
                        for (int64_t ldc : {args.q.shape[1], D}) {
                          need(P::rows_of(m, n, D, nullptr, {nullptr, ldk}, nullptr, ldc, Write::set));
                          if (ldc != D) need(P::rows_of(m, n, D, nullptr, {nullptr, ldk}, nullptr, ldc, Write::add));
                        }
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
    const F32 e = exp2_scaled(capped ? score - lse : score * scale - lse, log2_e, lowest);
    F32 d = e * (load(dp + j) * scale - scaled_delta);
    if constexpr (capped) {
      const F32 t = e > 0.0F ? score * per_cap : F32{};  // hidden scores are -inf
      d = d * (1.0F - t * t);
    }
    store(p + j, e);
    store(ds + j, d);
  }
}

// Adds a tile's dS K to dq, in its turn among the key blocks. Whole tiles go straight into dq, the last rows by way of a copy.
template <class T>
void add_dq(const AttentionBackward& args, const Products<T>& products, int64_t first_row, int64_t rows, int64_t m,
            int64_t head, const Visit& visit, Rows<T> k, const BackwardScratch<T>& t) {
  const int64_t D = products.D, ld = args.dq.shape[1];
  const Write write = visit.index == 0 ? Write::set : Write::add;
  float* const dq = args.dq.as<float>() + first_row * ld + head * D;
  if (rows == m) return products.run(Products<T>::rows_of(m, visit.size(), D, t.ds, k, dq, ld, write));
  products.run(Products<T>::rows_of(m, visit.size(), D, t.ds, k, t.dq, D, Write::set));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < D; ++d) dq[r * ld + d] = (write == Write::add ? dq[r * ld + d] : 0.0F) + t.dq[r * D + d];
  }
}

// One key block of one kv head: all the queries that see it, in ascending order. False when another item failed.
template <class T>
bool backward_block(const Context& ctx, const AttentionBackward& args, const Schedule& schedule, const float* delta,
                    Turns& turns, int64_t kb, int64_t kv_head, const BackwardScratch<T>& t) {
  using P = Products<T>;
  const AttentionShape& shape = args.shape;
  const int64_t D = shape.head_dim, H = shape.num_heads, group = H / shape.num_kv_heads, N = args.q.shape[0];
  const int64_t first_key = kb * key_block, keys = std::min(key_block, N - first_key);
  const P products{ctx, D, t.gemm};
  const Rows<T> k_block = rows_or_copy(args.k, kv_head, D, first_key, N, attention::round_up(keys, grain), t.k);
  const Rows<T> v_block = rows_or_copy(args.v, kv_head, D, first_key, N, attention::round_up(keys, grain), t.v);
  std::memset(t.dk, 0, static_cast<size_t>(key_block * D) * sizeof(float));
  std::memset(t.dv, 0, static_cast<size_t>(key_block * D) * sizeof(float));
  for (int64_t block = schedule.first_seen_by(kb); block <= schedule.last_seen_by(kb); ++block) {
    const Visit visit = schedule.visit(block, kb);
    if (visit.key_block < 0) continue;
    const int64_t rows = schedule.block_rows(block), m = attention::round_up(rows, grain), n = visit.size();
    const int64_t first_row = block * query_block, offset = visit.begin - first_key,
                  place = kv_head * schedule.num_query_blocks() + block;
    const Rows<T> k{k_block.data + offset * k_block.ld, k_block.ld}, v{v_block.data + offset * v_block.ld, v_block.ld};
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const Rows<T> q = rows_or_copy(args.q, head, D, first_row, N, m, t.q);
      const Rows<T> do_ = rows_or_copy(args.do_, head, D, first_row, N, m, t.do_);
      products.run(P::scores_of(m, n, D, q, k, t.s));
      products.run(P::scores_of(m, n, D, do_, v, t.dp));
      if (shape.softcap > 0) cap_scores(t.s, rows, n, shape.scale, shape.softcap);
      hide_scores(schedule, block, visit, t.s);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = r * tile_stride, stat = (first_row + r) * H + head;
        const float lse = args.lse.as<float>()[stat];
        if (shape.softcap > 0)
          score_gradient_row<true>(t.s + at, t.dp + at, n, lse, delta[stat], shape, t.p + at, t.ds + at);
        else score_gradient_row<false>(t.s + at, t.dp + at, n, lse, delta[stat], shape, t.p + at, t.ds + at);
      }
      zero_rows(t.p, rows, m);
      zero_rows(t.ds, rows, m);
      products.run(P::columns_of(m, n, D, t.p, do_, t.dv + offset * D));
      products.run(P::columns_of(m, n, D, t.ds, q, t.dk + offset * D));
      if (head == kv_head * group && !turns.wait(place, visit.index)) return false;
      add_dq(args, products, first_row, rows, m, head, visit, k, t);
    }
    turns.done(place);
  }
  for (int64_t r = 0; r < keys; ++r) {
    const int64_t at = (first_key + r) * args.dk.shape[1] + kv_head * D;
    for (int64_t d = 0; d < D; ++d) {
      args.dk.as<float>()[at + d] += t.dk[r * D + d];
      args.dv.as<float>()[at + d] += t.dv[r * D + d];
    }
  }
  return true;
}

// delta[i,h] = sum_d do[i,h,d] o[i,h,d]
template <class T>
void fill_delta(Context& ctx, const AttentionBackward& args, float* delta) {
  const int64_t H = args.shape.num_heads, D = args.shape.head_dim, N = args.q.shape[0];
  ctx.pool.parallel_for((N + query_block - 1) / query_block, [&](int64_t block, int) {
    const int64_t end = std::min(N, (block + 1) * query_block) * H;
    for (int64_t i = block * query_block * H; i < end; ++i) {
      const T *o = args.o.as<T>() + i * D, *d_o = args.do_.as<T>() + i * D;
      F32 sum{};
      int64_t d = 0;
      for (; d + lanes <= D; d += lanes) sum += load(o + d) * load(d_o + d);
      if (d < D) sum += load_part(o + d, D - d) * load_part(d_o + d, D - d);
      delta[i] = reduce_add(sum);
    }
  });
}

template <class T>
void backward(Context& ctx, const AttentionBackward& args) {
  const int64_t D = args.shape.head_dim, K = args.shape.num_kv_heads, N = args.q.shape[0];
  ArenaScope scope(ctx.arena);
  const Schedule schedule(scope, ctx.counting(), args.spans, args.shape.window, 0, N);
  float* const delta = scope.array<float>(N * args.shape.num_heads);
  const int64_t places = K * schedule.num_query_blocks();
  void* const counters = scope.array<std::byte>(places * Turns::bytes_each);
  const int64_t gemm_bytes = backward_gemm_bytes<T>(ctx, args, schedule);
  const int64_t bytes = static_cast<int64_t>(BackwardScratch<T>(0, D, gemm_bytes).end);
  const auto memory = reinterpret_cast<uintptr_t>(scope.array<std::byte>(ctx.pool.num_threads() * bytes));
  if (ctx.counting()) return;
  fill_delta<T>(ctx, args, delta);
  Turns turns(counters, places);
  ctx.pool.parallel_for(schedule.num_key_blocks() * K, [&](int64_t item, int worker) {
    const FailGuard guard(turns);
    const BackwardScratch<T> scratch(memory + static_cast<uintptr_t>(worker * bytes), D, gemm_bytes);
    backward_block(ctx, args, schedule, delta, turns, item / K, item % K, scratch);
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
