#include "model/dora.h"

#include "core/device.h"
#include "ops/common/copy.h"
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

void prepare_adapter(ThreadPool& pool, const Model& model, LoadedAdapter& loaded) {
  const int64_t size = loaded.layout.size(), num_norms = loaded.layout.num_norms();
  if (num_norms > 0) loaded.norms.assign(static_cast<size_t>(num_norms), 0.0F);
  if (model.device.type == DeviceType::cuda) {
    loaded.on_device.emplace(Arena::allocate(model.device, (size + num_norms) * 4 + 2 * Arena::alignment));
    loaded.device_flat = loaded.on_device->tensor(DType::f32, {size});
    if (num_norms > 0) loaded.device_norms = loaded.on_device->tensor(DType::f32, {num_norms});
    Context ctx{.arena = *loaded.on_device, .pool = pool, .device = model.device};
    copy_from_host(ctx, {.host = loaded.flat.data(), .tensor = loaded.device_flat});
  }
  if (num_norms == 0) return;
  Arena arena = Arena::counting(model.device);
  for (bool counting : {true, false}) {
    if (!counting) arena = Arena::allocate(model.device, arena.peak());
    Context ctx{.arena = arena, .pool = pool, .device = model.device};
    refresh_norms(ctx, model, loaded.view());
    if (!counting) synchronize(model.device);
  }
}

}  // namespace sluice
