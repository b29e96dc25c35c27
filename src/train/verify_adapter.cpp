#include "train/verify_adapter.h"

#include <fmt/format.h>

#include "data/batch.h"
#include "model/adapter_file.h"
#include "ops/common/copy.h"

namespace sluice {

void verify_saved_adapter(Context& ctx, const Model& model, const Adapter& adapter, const std::string& folder, const Sample& row,
                          const StepSettings& settings) {
  const LoadedAdapter saved = load_adapter(folder, model.config);
  const Batch batch = pack({&row});
  const StepBatch step{.ids = batch.ids, .spans = batch.spans, .rows = batch.rows, .targets = batch.targets};
  const std::vector<float> trained = forward_logps(ctx, model, adapter, step, settings);
  // The loaded numbers take the place of the trained ones: the arenas hold one adapter.
  std::vector<float> kept(static_cast<size_t>(adapter.flat().numel()));
  check(saved.flat.size() == kept.size(), ErrorCode::bad_file, folder + ": the saved adapter has another size than the trained one");
  copy_to_host(ctx, {.tensor = adapter.flat(), .host = kept.data()});
  copy_from_host(ctx, {.host = saved.flat.data(), .tensor = adapter.flat()});
  const std::vector<float> reloaded = forward_logps(ctx, model, adapter, step, settings);
  copy_from_host(ctx, {.host = kept.data(), .tensor = adapter.flat()});
  check(trained == reloaded, ErrorCode::bad_file,
        fmt::format("{}: the saved adapter gives other log-probabilities than the trained one; the disk may be damaged", folder));
}

}  // namespace sluice
