#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "core/rng.h"
#include "ops/gemm/gemm.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_work.h"
#include "ops/quant/quant.h"
#include "ops/common/cpu_simd.h"

#include "ops/linear/linear_adapter.h"

// Panels over output rows; an item is one column block of a panel for one row chunk.
namespace sluice::SLUICE_CPU {

namespace {

// y[:, block] of one row chunk = [ratio *] c + bias + residual, rounded once.
template <class T>
void finish_forward(const LinearForward& args, const float* ratio, int64_t first, int64_t m, int64_t col, int64_t n,
                    const float* c) {
  const int64_t out = args.weight.rows;
  if (ratio != nullptr) ratio += col;
  const float* bias = args.bias.empty() ? nullptr : args.bias.as<float>() + col;
  for (int64_t i = 0; i < m; ++i, c += n) {
    T* y = args.y.as<T>() + (first + i) * out + col;
    const T* residual = args.residual.empty() ? nullptr : args.residual.as<T>() + (first + i) * out + col;
    for (int64_t j = 0; j < n; j += lanes) {
      if (j + lanes <= n) {
        F32 v = load(c + j);
        if (ratio != nullptr) v *= load(ratio + j);
        if (bias != nullptr) v += load(bias + j);
        if (residual != nullptr) v += load(residual + j);
        store(y + j, v);
      } else {
        const int64_t rest = n - j;
        F32 v = load_part(c + j, rest);
        if (ratio != nullptr) v *= load_part(ratio + j, rest);
        if (bias != nullptr) v += load_part(bias + j, rest);
        if (residual != nullptr) v += load_part(residual + j, rest);
        store_part(y + j, v, rest);
      }
    }
  }
}

template <class T>
void forward(Context& ctx, const LinearForward& args) {
  const Weight& w = args.weight;
  const DType dtype = dtype_of<T>::value;
  const int64_t N = args.x.shape[0], in = w.cols, out = w.rows;
  const int threads = ctx.pool.num_threads();
  ArenaScope scope(ctx.arena);
  const Adapter<T> ad(ctx.arena, args, N);
  const int64_t R = ad.R;
  const ThinProduct<T> low(ctx, N, in, R, true, ad.factor);
  T* xa = args.xa.empty() ? scope.array<T>(N * ad.ld) : args.xa.as<T>();

  const bool direct = used_directly(w, dtype);
  const Cut panels{out,
                   direct ? out : std::min(out, std::max<int64_t>(64, panel_bytes / (in * size_of(dtype)) / 64 * 64))};
  const Cut rows{N, row_chunk};
  const Cut blocks = cut_columns(panels.width, rows.count(), threads, 32);
  T* panel = scope.array<T>(direct ? 0 : panels.width * in);

  const auto main_gemm = [&](int64_t m, int64_t n) {
    return Gemm{.m = m, .n = n, .k = in, .dtype = dtype, .lda = in, .ldb = in, .transpose_b = true, .ldc = n};
  };
  const auto low_gemm = [&](int64_t m, int64_t n) {
    return Gemm{.m = m,
                .n = n,
                .k = R,
                .dtype = dtype,
                .lda = ad.ld,
                .ldb = R,
                .transpose_b = true,
                .ldc = n,
                .write = Write::add};
  };
  int64_t gemm_bytes = 0;
  for (int64_t panel_rows : panels.sizes()) {
    for (int64_t n : Cut{panel_rows, blocks.width}.sizes()) {
      for (int64_t m : rows.sizes()) {
        gemm_bytes = scratch_bytes(ctx, gemm_bytes, main_gemm(m, n));
        if (R > 0) gemm_bytes = scratch_bytes(ctx, gemm_bytes, low_gemm(m, n));
      }
    }
  }
  const int64_t c_bytes = round_up(rows.size(0) * blocks.size(0) * 4, 256);
  const int64_t thin_bytes = R > 0 ? low.scratch(ctx, ad.keep != nullptr) : 0;
  const ThreadScratch scratch(ctx, std::max(c_bytes + gemm_bytes, thin_bytes));
  const auto load_panel = [&](int64_t p) {
    if (!direct)
      sluice::dequantize(ctx, {.weight = w, .row_begin = panels.begin(p), .out = {panel, dtype, {panels.size(p), in}}});
  };
  if (ctx.counting()) return load_panel(0);

  if (R > 0) {
    prepare(ctx, args, N, ad);
    ctx.pool.parallel_for(low.rows().count(), [&](int64_t item, int worker) {
      low.run_item(ctx, item, args.x.as<T>(), ad.keep, ad.a, xa, scratch.of(worker));
    });
  }
  for (int64_t p = 0; p < panels.count(); ++p) {
    load_panel(p);
    const T* weights = direct ? reinterpret_cast<const T*>(w.data) : panel;
    const Cut cut{panels.size(p), blocks.width};
    ctx.pool.parallel_for(cut.count() * rows.count(), [&](int64_t item, int worker) {
      const int64_t block = item / rows.count(), chunk = item % rows.count();
      const int64_t first = rows.begin(chunk), m = rows.size(chunk), n = cut.size(block);
      const int64_t col = panels.begin(p) + cut.begin(block);
      auto* c = scratch.as<float>(worker);
      Gemm g = main_gemm(m, n);
      g.a = args.x.as<T>() + first * in;
      g.b = weights + cut.begin(block) * in;
      g.c = c;
      gemm_on_this_thread(ctx, g, scratch.of(worker) + c_bytes);
      if (R > 0) {
        g = low_gemm(m, n);
        g.a = xa + first * ad.ld;
        g.b = ad.b + col * R;
        g.c = c;
        gemm_on_this_thread(ctx, g, scratch.of(worker) + c_bytes);
      }
      finish_forward<T>(args, ad.ratio, first, m, col, n, c);
    });
  }
}

}  // namespace

void linear_forward(Context& ctx, const LinearForward& args) {
  if (args.x.dtype == DType::bf16) forward<bf16>(ctx, args);
  else forward<float>(ctx, args);
}

}  // namespace sluice::SLUICE_CPU
