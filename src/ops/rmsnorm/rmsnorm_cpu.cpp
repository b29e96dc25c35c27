#include <algorithm>
#include <cmath>

#include "ops/rmsnorm/rmsnorm.h"

#include "ops/common/cpu_simd.h"
#include "ops/rope/rope_row.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr int64_t elements_per_item = 16384;  // a row depends on no other, so the split has no effect on results

// The factor of each column, f32, padded with zeros to whole vectors.
float* make_factor(Context& ctx, const Tensor& weight, int64_t C, float offset) {
  const int64_t padded = (C + lanes - 1) / lanes * lanes;
  float* factor = ctx.arena.array<float>(padded);
  if (ctx.counting()) return factor;
  const float* w = weight.as<float>();
  for (int64_t c = 0; c < padded; ++c) factor[c] = c >= C ? 0.0F : w != nullptr ? offset + w[c] : 1.0F;
  return factor;
}

// f(column, count) over one row: whole vectors, then the rest.
template <class F>
SLUICE_INLINE void for_columns(int64_t C, F f) {
  int64_t c = 0;
  for (; c + lanes <= C; c += lanes) f(c, int64_t{lanes});
  if (c < C) f(c, C - c);
}

template <class T>
SLUICE_INLINE F32 load_some(const T* p, int64_t count) {
  return count == lanes ? load(p) : load_part(p, count);
}
template <class T>
SLUICE_INLINE void store_some(T* p, F32 v, int64_t count) {
  if (count == lanes) store(p, v);
  else store_part(p, v, count);
}

SLUICE_INLINE float rstd_of(F32 squares, int64_t C, float eps) {
  return 1.0F / std::sqrt(reduce_add(squares) / static_cast<float>(C) + eps);
}

template <class T>
void forward_row(const T* x, const float* factor, const T* residual, T* y, int64_t C, float eps) {
  F32 squares = {};
  for_columns(
      C, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
        const F32 v = load_some(x + c, count);
        squares = squares + v * v;
      });
  const float rstd = rstd_of(squares, C, eps);
  for_columns(
      C, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
        F32 v = load_some(x + c, count) * rstd * load(factor + c);
        if (residual != nullptr) v = v + load_some(residual + c, count);
        store_some(y + c, v, count);
      });
}

template <class T, class TDy, class TDx>
void backward_row(const T* x, const float* factor, const TDy* dy, TDx* dx, Write write, int64_t C, float eps) {
  F32 squares = {}, dot = {};
  for_columns(
      C, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
        const F32 v = load_some(x + c, count);
        squares = squares + v * v;
        dot = dot + load_some(dy + c, count) * load(factor + c) * v;
      });
  const float rstd = rstd_of(squares, C, eps);
  const float k = reduce_add(dot) * rstd * rstd * rstd / static_cast<float>(C);
  for_columns(
      C, [&](int64_t c, int64_t count) __attribute__((always_inline)) {
        F32 v = load_some(dy + c, count) * load(factor + c) * rstd - load_some(x + c, count) * k;
        if (write == Write::add) v = v + load_some(dx + c, count);
        store_some(dx + c, v, count);
      });
}

// row(n, thread) for n < rows, in parallel.
template <class F>
void for_rows(Context& ctx, int64_t rows, int64_t C, F row) {
  const int64_t per_item = std::max<int64_t>(1, elements_per_item / std::max<int64_t>(1, C));
  ctx.pool.parallel_for((rows + per_item - 1) / per_item, [&](int64_t item, int thread) {
    const int64_t end = std::min(rows, (item + 1) * per_item);
    for (int64_t n = item * per_item; n < end; ++n) row(n, thread);
  });
}

// `turned` [threads, C]: dy of a row, turned back.
template <class T, class TDy, class TDx>
void backward(Context& ctx, const RmsNormBackward& args, const float* factor, float* turned, int64_t rows, int64_t C) {
  const T* x = args.x.as<T>();
  const TDy* dy = args.dy.as<TDy>();
  const float* table = args.table.as<float>();
  TDx* dx = args.dx.as<TDx>();
  for_rows(ctx, rows, C, [&](int64_t n, int thread) {
    if (table == nullptr) {
      backward_row(x + n * C, factor, dy + n * C, dx + n * C, args.write, C, args.eps);
    } else {
      float* const row = turned + thread * C;
      rotate_row(dy + n * C, table + n / args.groups * C, row, C, -1.0F);
      backward_row(x + n * C, factor, row, dx + n * C, args.write, C, args.eps);
    }
  });
}

template <class T>
void forward(Context& ctx, const RmsNormForward& args, const float* factor, int64_t rows, int64_t C) {
  const T* x = args.x.as<T>();
  const T* residual = args.residual.as<T>();
  const float* table = args.table.as<float>();
  T* y = args.y.as<T>();
  for_rows(ctx, rows, C, [&](int64_t n, int) {
    forward_row(x + n * C, factor, residual != nullptr ? residual + n * C : nullptr, y + n * C, C, args.eps);
    if (table != nullptr) rotate_row(y + n * C, table + n / args.groups * C, y + n * C, C, 1.0F);
  });
}

}  // namespace

void rmsnorm_forward(Context& ctx, const RmsNormForward& args) {
  ArenaScope scratch(ctx.arena);
  const int64_t C = args.x.shape[1] / args.groups, rows = args.x.shape[0] * args.groups;
  const float* factor = make_factor(ctx, args.weight, C, args.offset);
  if (ctx.counting()) return;
  if (args.x.dtype == DType::bf16) forward<bf16>(ctx, args, factor, rows, C);
  else forward<float>(ctx, args, factor, rows, C);
}

void rmsnorm_backward(Context& ctx, const RmsNormBackward& args) {
  ArenaScope scratch(ctx.arena);
  const int64_t C = args.x.shape[1] / args.groups, rows = args.x.shape[0] * args.groups;
  const float* factor = make_factor(ctx, args.weight, C, args.offset);
  float* turned = args.table.empty() ? nullptr : scratch.array<float>(ctx.pool.num_threads() * C);
  if (ctx.counting()) return;
  const bool dy_f32 = args.dy.dtype == DType::f32, dx_f32 = args.dx.dtype == DType::f32;
  if (args.x.dtype == DType::f32) backward<float, float, float>(ctx, args, factor, turned, rows, C);
  else if (dy_f32 && dx_f32) backward<bf16, float, float>(ctx, args, factor, turned, rows, C);
  else if (dy_f32) backward<bf16, float, bf16>(ctx, args, factor, turned, rows, C);
  else if (dx_f32) backward<bf16, bf16, float>(ctx, args, factor, turned, rows, C);
  else backward<bf16, bf16, bf16>(ctx, args, factor, turned, rows, C);
}

}  // namespace sluice::SLUICE_CPU
