#include <algorithm>
#include <cmath>

#include "ops/dora/dora.h"
#include "ops/gemm/gemm.h"
#include "ops/linear/linear_work.h"
#include "ops/quant/quant.h"
#include "ops/common/cpu_simd.h"

// Panels of rows, dequantised by all threads; then an item is a few rows of the panel: their B A in f32 by a thin product, and the sum of
// squares of panel + scale * product.
namespace sluice::SLUICE_CPU {

namespace {

using namespace linear_work;

constexpr int64_t item_bytes = 256 << 10;  // of B A at a time: stays in L2

float norm_of(int64_t in, const float* w, const float* delta, float scale) {
  F32 sum{};
  int64_t i = 0;
  const auto add = [&](F32 wi, F32 di) {
    const F32 v = wi + scale * di;
    sum += v * v;
  };
  for (; i + lanes <= in; i += lanes) add(load(w + i), delta != nullptr ? load(delta + i) : F32{});
  if (i < in) add(load_part(w + i, in - i), delta != nullptr ? load_part(delta + i, in - i) : F32{});
  return std::sqrt(reduce_add(sum));
}

}  // namespace

void adapted_row_norms(Context& ctx, const AdaptedRowNorms& args) {
  const Weight& w = args.weight;
  const int64_t in = w.cols, R = args.lora_a.empty() ? 0 : args.lora_a.shape[0];
  ArenaScope scope(ctx.arena);
  const Cut panels{w.rows, std::clamp<int64_t>(panel_bytes / (in * 4) / 64 * 64, 64, round_up(w.rows, 64))};
  const int64_t item_rows = std::clamp<int64_t>(item_bytes / (in * 4), 1, 32);
  float* panel = scope.array<float>(panels.size(0) * in);
  const auto product = [&](int64_t m) {
    return Gemm{.m = m, .n = in, .k = R, .dtype = DType::f32, .lda = R, .ldb = in, .ldc = in};
  };
  int64_t gemm_bytes = 0;
  for (int64_t rows : panels.sizes()) {
    for (int64_t m : Cut{rows, item_rows}.sizes()) {
      if (R > 0) gemm_bytes = scratch_bytes(ctx, gemm_bytes, product(m));
    }
  }
  const int64_t delta_bytes = R > 0 ? round_up(item_rows * in * 4, Arena::alignment) : 0;
  const ThreadScratch scratch(ctx, delta_bytes + gemm_bytes);
  const auto load_panel = [&](int64_t p) {
    sluice::dequantize(ctx,
                       {.weight = w, .row_begin = panels.begin(p), .out = {panel, DType::f32, {panels.size(p), in}}});
  };
  if (ctx.counting()) return load_panel(0);
  for (int64_t p = 0; p < panels.count(); ++p) {
    load_panel(p);
    const Cut items{panels.size(p), item_rows};
    ctx.pool.parallel_for(items.count(), [&](int64_t item, int worker) {
      const int64_t first = items.begin(item), row = panels.begin(p) + first, m = items.size(item);
      float* delta = R > 0 ? scratch.as<float>(worker) : nullptr;
      if (R > 0) {
        Gemm g = product(m);
        g.a = args.lora_b.as<float>() + row * R;
        g.b = args.lora_a.as<float>();
        g.c = delta;
        gemm_on_this_thread(ctx, g, scratch.of(worker) + delta_bytes);
      }
      for (int64_t i = 0; i < m; ++i) {
        args.norm.as<float>()[row + i] =
            norm_of(in, panel + (first + i) * in, delta != nullptr ? delta + i * in : nullptr, args.scale);
      }
    });
  }
}

void apply_magnitude(Context& ctx, const ApplyMagnitude& args) {
  if (ctx.counting()) return;
  const int64_t N = args.y.shape[0], out = args.y.shape[1];
  const float *magnitude = args.magnitude.as<float>(), *norm = args.norm.as<float>();
  const Cut columns{out, 1024};
  ctx.pool.parallel_for(columns.count(), [&](int64_t item, int) {
    for (int64_t o = columns.begin(item); o < columns.begin(item) + columns.size(item); ++o) {
      const float ratio = magnitude_ratio(magnitude[o], norm[o]);
      for (int64_t n = 0; n < N; ++n) args.y.as<float>()[n * out + o] *= ratio;
    }
  });
}

}  // namespace sluice::SLUICE_CPU
