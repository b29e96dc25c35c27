#include "model/dora.h"

#include "ops/dora/dora.h"
#include "ops/rows/rows.h"

namespace sluice {

void refresh_norms(Context& ctx, const Model& model, const Adapter& adapter) {
  if (adapter.empty() || adapter.layout().num_norms() == 0) return;
  SLUICE_ASSERT(!adapter.norms().empty());
  for (const AdapterLayout::Entry& e : adapter.layout().entries()) {
    const Lora lora = adapter.lora(e.layer, e.module);
    adapted_row_norms(ctx, {.weight = linear_of(model, e.layer, e.module).weight,
                            .lora_a = lora.a,
                            .lora_b = lora.b,
                            .scale = lora.scale,
                            .norm = lora.norm});
  }
}

void start_magnitudes(Context& ctx, const Model& model, const Adapter& adapter) {
  if (adapter.layout().num_norms() == 0) return;
  refresh_norms(ctx, model, adapter);
  const int64_t begin = adapter.layout().magnitude_begin(), count = adapter.layout().num_norms();
  scale_into(ctx, {.x = adapter.norms(), .y = adapter.flat().rows(begin, count)});
}

void refresh_norms(ThreadPool& pool, const Model& model, LoadedAdapter& loaded) {
  if (loaded.layout.num_norms() == 0) return;
  loaded.norms.assign(static_cast<size_t>(loaded.layout.num_norms()), 0.0F);
  Arena arena = Arena::counting(Device::cpu());
  for (bool counting : {true, false}) {
    if (!counting) arena = Arena::allocate(Device::cpu(), arena.peak());
    Context ctx{.arena = arena, .pool = pool};
    refresh_norms(ctx, model, loaded.view());
  }
}

}  // namespace sluice
