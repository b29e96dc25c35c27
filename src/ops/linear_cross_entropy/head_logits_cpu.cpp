// Logits for generation. Few rows read the weight once in its stored form; many rows go by panels and matrix products.
#include <immintrin.h>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include "ops/common/cpu_simd.h"
#include "ops/linear_cross_entropy/head_panels.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr int64_t most_matvec_rows = 16;
constexpr int64_t narrow_elements = int64_t{1} << 18;  // a panel in one core's cache

template <class T>
void logits_by_panels(Context& ctx, const HeadLogits& args) {
  ArenaScope scratch(ctx.arena);
  const Panels panels = panels_of(args.weight, narrow_elements);
  const bool in_place = usable_in_place(args.weight, args.h.dtype);
  const auto product = [&](int64_t p, const T* panel) {
    Gemm g = logits_product(args.h.shape[0], panels.columns(p), panels.C, args.h.as<T>(), panel,
                            args.logits.as<float>() + panels.begin(p));
    g.ldc = panels.V;
    return g;
  };
  const int64_t panel_elements = in_place ? 0 : round_up(panels.width * panels.C, Arena::alignment);
  const int64_t product_bytes = round_up(at_least(gemm_scratch_bytes(ctx, product(0, nullptr)),
                                                  gemm_scratch_bytes(ctx, product(panels.count - 1, nullptr))),
                                         Arena::alignment);
  T* buffers = ctx.arena.array<T>(panel_elements * ctx.pool.num_threads());
  auto* products = ctx.arena.array<std::byte>(product_bytes * ctx.pool.num_threads());
  if (ctx.counting()) return;
  ctx.pool.parallel_for(panels.count, [&](int64_t p, int worker) {
    const T* panel = reinterpret_cast<const T*>(args.weight.data) + panels.begin(p) * panels.C;
    if (!in_place) {
      T* buffer = buffers + worker * panel_elements;
      dequantize_rows(ctx, args.weight, panels.begin(p), panels.columns(p), buffer);
      panel = buffer;
    }
    gemm_on_this_thread(ctx, product(p, panel), products + worker * product_bytes);
  });
}

}  // namespace

void head_logits(Context& ctx, const HeadLogits& args) {
  const int64_t M = args.h.shape[0], V = args.weight.rows;
  if (M == 0) return;
  if (M <= most_matvec_rows) SLUICE_CPU::weight_matvec(ctx, {.weight = args.weight, .x = args.h, .y = args.logits});
  else if (args.h.dtype == DType::bf16) logits_by_panels<bf16>(ctx, args);
  else logits_by_panels<float>(ctx, args);
  if (args.softcap == 0 || ctx.counting()) return;
  constexpr int64_t per_item = 8192;
  float* z = args.logits.as<float>();
  ctx.pool.parallel_for((M * V + per_item - 1) / per_item, [&](int64_t item, int) {
    cap_logits(z + item * per_item, at_most(per_item, M * V - item * per_item), args.softcap);
  });
}

}  // namespace sluice::SLUICE_CPU
