// A plan without a run: from settings and data, or from a model's shapes and a length alone.
#pragma once

#include "train/config.h"
#include "train/plan.h"
#include "train/validation_task.h"

namespace sluice {

struct PlannedRun {
  Plan plan;
  std::vector<Plan> candidates;
  std::string ranks;  // by layer and module, a line for each run of layers
};

// tokens > 0: one sequence of that length with `targets` supervised tokens (0: all but the first); the model may be headers only and no data
// is read. Otherwise the data's batches. Throws as Run does.
PlannedRun plan_run(const TrainConfig& config, int64_t tokens, int64_t targets, const TaskMaker& make_task = {});

}  // namespace sluice
