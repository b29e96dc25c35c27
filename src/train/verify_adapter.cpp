#include "train/verify_adapter.h"

#include <fmt/format.h>

#include <cmath>

#include "data/batch.h"
#include "model/dora.h"
#include "ops/common/host_floats.h"

namespace sluice {

void verify_saved_adapter(Context& ctx, const Model& model, const Adapter& adapter, const std::string& folder,
                          Tensor scratch, const Sample& row, const StepSettings& settings) {
  const Batch batch = pack({&row});
  const StepBatch step{.ids = batch.ids, .spans = batch.spans, .rows = batch.rows, .targets = batch.targets};
  const std::vector<float> trained = forward_logps(ctx, model, adapter, step, settings);
  HostFloats loaded(ctx, scratch, HostFloats::Content::unread);
  load_adapter_into(folder, model.config, adapter.layout(), loaded.data());
  loaded.write_back();
  const Adapter saved(adapter.layout(), scratch, adapter.norms());
  refresh_norms(ctx, model, saved);
  const std::vector<float> reloaded = forward_logps(ctx, model, saved, step, settings);
  check(trained == reloaded, ErrorCode::bad_file,
        fmt::format("{}: the saved adapter gives other log-probabilities than the trained one; the disk may be damaged",
                    folder));
}

std::string find_not_finite(const AdapterLayout& layout, const float* parameters, const float* m, const float* v) {
  const auto first = [&](const float* values) -> int64_t {
    for (int64_t i = 0; i < layout.size(); ++i) {
      if (!std::isfinite(values[i])) return i;
    }
    return -1;
  };
  const auto part_of = [&](int64_t i) -> std::string {
    for (const AdapterLayout::Entry& e : layout.entries()) {
      if (i >= e.a_offset && i < e.a_offset + e.rank * e.in) return module_name(e.layer, e.module) + "/A";
      if (i >= e.b_offset && i < e.b_offset + e.out * e.rank) return module_name(e.layer, e.module) + "/B";
    }
    return "a magnitude";
  };
  for (const auto& [what, values] :
       {std::pair{"", parameters}, {"Adam's first moment of ", m}, {"Adam's second moment of ", v}}) {
    if (const int64_t i = first(values); i >= 0)
      return fmt::format("{}a number of {} is not finite ({})", what, part_of(i), values[i]);
  }
  return "";
}

}  // namespace sluice
