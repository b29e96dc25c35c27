#include <algorithm>
#include <cstring>

#include "ops/rows/rows.h"

#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr int64_t elements_per_item = 1 << 15;

template <class X, class Y>
void scale(const X* x, Y* y, int64_t count, float factor, bool add) {
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(y + i, add ? load(y + i) + factor * load(x + i) : factor * load(x + i));
  if (i < count) {
    const F32 scaled = factor * load_part(x + i, count - i);
    store_part(y + i, add ? load_part(y + i, count - i) + scaled : scaled, count - i);
  }
}

template <class Body>
void by_dtypes(DType x, DType y, Body body) {
  const auto with = [&](auto* from) {
    if (y == DType::bf16) body(from, static_cast<bf16*>(nullptr));
    else body(from, static_cast<float*>(nullptr));
  };
  if (x == DType::bf16) with(static_cast<const bf16*>(nullptr));
  else with(static_cast<const float*>(nullptr));
}

}  // namespace

void gather_rows(Context& ctx, const GatherRows& args) {
  if (ctx.counting() || args.y.numel() == 0) return;
  const int64_t M = args.y.shape[0], row_bytes = args.y.shape[1] * size_of(args.y.dtype);
  const int32_t* index = args.index.as<int32_t>();
  for (int64_t m = 0; m < M; ++m) {
    SLUICE_ASSERT(index[m] >= 0 && index[m] < args.x.shape[0]);
    std::memcpy(static_cast<std::byte*>(args.y.data) + m * row_bytes, static_cast<const std::byte*>(args.x.data) + index[m] * row_bytes,
                static_cast<size_t>(row_bytes));
  }
}

// One output row sums its run of inputs in float32 and is rounded once; runs are next to each other.
void scatter_rows(Context& ctx, const ScatterRows& args) {
  const int64_t C = args.y.shape[1];
  ArenaScope scope(ctx.arena);
  float* sum = scope.array<float>(C);
  if (ctx.counting()) return;
  std::memset(args.y.data, 0, static_cast<size_t>(args.y.size_bytes()));
  const int64_t M = args.x.shape[0];
  const int32_t* index = args.index.as<int32_t>();
  const float* weight = args.weight.as<float>();
  by_dtypes(args.x.dtype, args.y.dtype, [&](auto* from, auto* to) {
    const auto* x = static_cast<decltype(from)>(args.x.data);
    auto* y = static_cast<decltype(to)>(args.y.data);
    for (int64_t m = 0; m < M;) {
      const int64_t row = index[m];
      SLUICE_ASSERT(row >= 0 && row < args.y.shape[0] && (m == 0 || row > index[m - 1]));
      std::memset(sum, 0, static_cast<size_t>(C) * sizeof(float));
      for (; m < M && index[m] == row; ++m) scale(x + m * C, sum, C, weight[m], true);
      scale(sum, y + row * C, C, 1.0F, false);
    }
  });
}

void scale_into(Context& ctx, const ScaleInto& args) {
  if (ctx.counting() || args.x.numel() == 0) return;
  const int64_t n = args.x.numel(), items = (n + elements_per_item - 1) / elements_per_item;
  by_dtypes(args.x.dtype, args.y.dtype, [&](auto* from, auto* to) {
    const auto* x = static_cast<decltype(from)>(args.x.data);
    auto* y = static_cast<decltype(to)>(args.y.data);
    ctx.pool.parallel_for(items, [&](int64_t item, int) {
      const int64_t begin = item * elements_per_item, count = std::min(elements_per_item, n - begin);
      scale(x + begin, y + begin, count, args.scale, args.write == Write::add);
    });
  });
}

}  // namespace sluice::SLUICE_CPU
