#include "train/verify_adapter.h"

#include <fmt/format.h>

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

}  // namespace sluice
