#include "train/planner.h"

#include <fmt/format.h>

#include "core/device.h"
#include "train/adapter_setup.h"
#include "train/trainer.h"

namespace sluice {

namespace {

// Planning of a run speaks through its result only.
class Silent : public Progress {
 public:
  void phase(const std::string&) override {}
  void note(const std::string&) override {}
  void tick(int64_t, int64_t, int64_t, int64_t) override {}
  void train(const TrainReport&) override {}
  void eval(const EvalReport&) override {}
  void saved(int64_t, const std::string&) override {}
};

}  // namespace

PlannedRun plan_run(const TrainConfig& config, int64_t tokens, int64_t targets, const TaskMaker& make_task) {
  if (tokens <= 0) {
    Silent silent;
    const Run run(config, silent, make_task);
    return {run.plan(), run.candidates(), rank_table(run.layout())};
  }
  check(!config.model.empty(), ErrorCode::bad_config, "model is not given; name a folder or a .gguf file");
  check(
      tokens >= 2 && targets < tokens, ErrorCode::bad_config,
      fmt::format("--tokens is {} and --targets {}; at least 2 tokens and fewer targets than tokens", tokens, targets));
  const std::unique_ptr<Model> model = load_model(open_model(config.model, {.allow_header_only = true}));
  model->device = parse_device(config.device);
  const AdapterLayout layout = adapter_layout(config, *model);
  PlanRequest request{.model = *model, .layout = layout};
  request.train = {{Spans::one(tokens), targets > 0 ? targets : tokens - 1}};
  set_machine(request, config, config.threads > 0 ? static_cast<int>(config.threads) : ThreadPool::default_threads());
  return {make_plan(request), candidate_plans(request), rank_table(layout)};
}

}  // namespace sluice
