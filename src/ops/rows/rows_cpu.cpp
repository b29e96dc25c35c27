#include <algorithm>

#include "core/error.h"
#include "ops/rows/rows.h"
#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {
namespace {

constexpr int64_t elements_per_item = 16384;

// Calls f(begin, end) for blocks of rows of about elements_per_item elements.
template <class F>
void for_row_blocks(Context& ctx, int64_t rows, int64_t cols, F f) {
  const int64_t block = std::max<int64_t>(1, elements_per_item / std::max<int64_t>(1, cols));
  ctx.pool.parallel_for((rows + block - 1) / block,
                        [&](int64_t item, int) { f(item * block, std::min(rows, (item + 1) * block)); });
}

// Calls f(data of x, data of y) with the pointers typed.
template <class F>
void typed(const Tensor& x, const Tensor& y, F f) {
  const bool x16 = x.dtype == DType::bf16, y16 = y.dtype == DType::bf16;
  if (x16 && y16) f(x.as<bf16>(), y.as<bf16>());
  else if (x16) f(x.as<bf16>(), y.as<float>());
  else if (y16) f(x.as<float>(), y.as<bf16>());
  else f(x.as<float>(), y.as<float>());
}

// y [C] = sum over m in [begin, end) of weight[m] * x[m], in order
template <class X, class Y>
void weighted_sum(int64_t begin, int64_t end, int64_t C, const X* x, const float* weight, Y* y) {
  for (int64_t c = 0; c < C; c += lanes) {
    const int64_t count = std::min<int64_t>(lanes, C - c);
    F32 sum = {};
    for (int64_t m = begin; m < end; ++m) {
      const X* p = x + m * C + c;
      sum += weight[m] * (count == lanes ? load(p) : load_part(p, count));
    }
    if (count == lanes) store(y + c, sum);
    else store_part(y + c, sum, count);
  }
}

template <bool add, class X, class Y>
void scale_block(int64_t begin, int64_t end, const X* x, float scale, Y* y) {
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const F32 v = scale * load(x + i);
    store(y + i, add ? v + load(y + i) : v);
  }
  if (i == end) return;
  const F32 v = scale * load_part(x + i, end - i);
  store_part(y + i, add ? v + load_part(y + i, end - i) : v, end - i);
}

}  // namespace

void gather_rows(Context& ctx, const GatherRows& args) {
  if (ctx.counting()) return;
  const int64_t row_bytes = args.x.shape[1] * size_of(args.x.dtype);
  const int32_t* index = args.index.as<int32_t>();
  const auto* x = static_cast<const std::byte*>(args.x.data);
  auto* y = static_cast<std::byte*>(args.y.data);
  for_row_blocks(ctx, args.index.shape[0], args.x.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      SLUICE_ASSERT(index[m] >= 0 && index[m] < args.x.shape[0]);
      std::memcpy(y + m * row_bytes, x + index[m] * row_bytes, static_cast<size_t>(row_bytes));
    }
  });
}

void scatter_rows(Context& ctx, const ScatterRows& args) {
  if (ctx.counting()) return;
  const int64_t M = args.x.shape[0], N = args.y.shape[0], C = args.y.shape[1];
  const int32_t* index = args.index.as<int32_t>();
  SLUICE_ASSERT(std::is_sorted(index, index + M));
  SLUICE_ASSERT(M == 0 || (index[0] >= 0 && index[M - 1] < N));
  typed(args.x, args.y, [&](const auto* x, auto* y) {
    for_row_blocks(ctx, N, C, [&](int64_t begin, int64_t end) {
      int64_t m = std::lower_bound(index, index + M, begin) - index;
      for (int64_t n = begin; n < end; ++n) {
        const int64_t first = m;
        while (m < M && index[m] == n) ++m;
        weighted_sum(first, m, C, x, args.weight.as<float>(), y + n * C);
      }
    });
  });
}

void scale_into(Context& ctx, const ScaleInto& args) {
  if (ctx.counting()) return;
  typed(args.x, args.y, [&](const auto* x, auto* y) {
    for_row_blocks(ctx, args.x.numel(), 1, [&](int64_t begin, int64_t end) {
      if (args.write == Write::add) scale_block<true>(begin, end, x, args.scale, y);
      else scale_block<false>(begin, end, x, args.scale, y);
    });
  });
}

void gather_columns(Context& ctx, const GatherColumns& args) {
  if (ctx.counting() || args.y.numel() == 0) return;
  const int64_t size = size_of(args.y.dtype), from = args.x.shape[1] * size, to = args.y.shape[1] * size;
  const auto* x = static_cast<const std::byte*>(args.x.data) + args.begin * size;
  auto* y = static_cast<std::byte*>(args.y.data);
  for_row_blocks(ctx, args.y.shape[0], args.y.shape[1], [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) std::memcpy(y + n * to, x + n * from, static_cast<size_t>(to));
  });
}

}  // namespace sluice::SLUICE_CPU
