// From the settings to an adapter: its modules, ranks and scales, and its numbers before the first step.
#pragma once

#include "model/dora.h"
#include "model/rank_policy.h"
#include "train/config.h"

namespace sluice {

// Throws Error(bad_config) as AdapterLayout and with_ranks do.
AdapterLayout adapter_layout(const TrainConfig& config, const Model& model);

// A from the seed, B = 0, magnitudes the base's row norms; or, with resume_adapter_file, the numbers of that adapter, which must have the layout's modules,
// ranks and scales: Error(bad_file) lists what differs. Norms are not refreshed.
// Returns what the user should be told of that adapter, or nothing.
std::string start_adapter(Context& ctx, const Model& model, const TrainConfig& config, const Adapter& adapter);

// Bytes of what a run keeps of its adapter: parameters, gradient, two moments, and the norms of DoRA.
int64_t resident_bytes(const AdapterLayout& layout);

}  // namespace sluice
