#include <algorithm>
#include <cmath>

#include "ops/rope/rope.h"

#include "ops/common/cpu_simd.h"
#include "ops/rope/rope_row.h"

namespace sluice::SLUICE_CPU {

namespace {

template <class T, class U>
void rope_rows(Context& ctx, const Rope& args) {
  const int64_t N = args.x.shape[0], width = args.x.shape[1], D = args.head_dim;
  const T* x = args.x.as<T>();
  U* y = args.y.as<U>();
  const float* table = args.table.as<float>();
  const float sign = args.inverse ? -1.0F : 1.0F;
  const int64_t per_item = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
  ctx.pool.parallel_for((N + per_item - 1) / per_item, [&](int64_t item, int) {
    for (int64_t n = item * per_item; n < std::min(N, (item + 1) * per_item); ++n) {
      for (int64_t head = n * width; head < (n + 1) * width; head += D)
        rotate_row(x + head, table + n * D, y + head, D, sign);
    }
  });
}

}  // namespace

void rope_table(Context& ctx, const RopeTable& args) {
  if (ctx.counting()) return;
  const int64_t N = args.table.shape[0], D = args.table.shape[1], half = D / 2;
  const int32_t* positions = args.positions.as<int32_t>();
  float* table = args.table.as<float>();
  constexpr int64_t per_item = 64;
  ctx.pool.parallel_for((N + per_item - 1) / per_item, [&](int64_t item, int) {
    for (int64_t n = item * per_item; n < std::min(N, (item + 1) * per_item); ++n) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[n]) * args.frequencies[i];
        table[n * D + i] = static_cast<float>(args.factor * std::cos(angle));
        table[n * D + half + i] = static_cast<float>(args.factor * std::sin(angle));
      }
    }
  });
}

void rope(Context& ctx, const Rope& args) {
  if (ctx.counting()) return;
  const bool x_f32 = args.x.dtype == DType::f32, y_f32 = args.y.dtype == DType::f32;
  if (x_f32 && y_f32) rope_rows<float, float>(ctx, args);
  else if (x_f32) rope_rows<float, bf16>(ctx, args);
  else if (y_f32) rope_rows<bf16, float>(ctx, args);
  else rope_rows<bf16, bf16>(ctx, args);
}

}  // namespace sluice::SLUICE_CPU
