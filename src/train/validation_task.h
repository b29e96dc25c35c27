// A task that a validation scores besides its loss: the model generates, and the answers are judged. `train` knows no task itself; who calls it
// gives the maker (eval/chunk_task.h has the one there is).
#pragma once

#include <functional>
#include <string>

#include "data/model_text.h"
#include "model/lora.h"
#include "model/model.h"
#include "train/config.h"

namespace sluice {

struct ValidationTask {
  std::string name;                             // its number is eval_<name>_score
  int64_t bytes = 0;                            // what score takes while it runs; the plan counts them
  std::function<double(const Adapter&)> score;  // greater is better. Deterministic
};

// For config.eval_task, which is not "none". Model, text and pool outlive the task. Throws Error.
using TaskMaker = std::function<ValidationTask(const TrainConfig&, const Model&, const ModelText&, ThreadPool&)>;

}  // namespace sluice
