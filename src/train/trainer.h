// A fine-tuning run, from its settings to the saved adapter.
//
//   ConsoleProgress progress;
//   RunResult result = train(read_config("config.yaml", {}), progress);
//
// What it leaves in adapter_path (docs/formats.md, nothing when it is refused): config.resolved.yaml, plan.json, data_report.json, metrics.jsonl,
// training.svg, step-*/, last, best, and with a reference policy reference_logps.safetensors. A run
// that is killed at any moment and started again with `resume: true` ends with the same bytes. Throws Error: bad_config and bad_file before the
// first step; out_of_memory when no plan fits, saying what would; device when a loss or gradient is not finite, no step had a gradient, or the
// adapter has not changed, after which the checkpoints that were saved are whole; cancelled when `stop` was asked or max_hours are over.
// It installs no signal handler.
//
// A step whose gradient is zero in every number (a satisfied margin, probabilities of one) is counted and changes nothing: neither parameters,
// which would decay, nor moments, nor AdamW's count of updates. The learning rate follows the steps, skipped ones included.
//
// `best` is a checkpoint that was scored: among those of save_every and the last, those whose step had a validation, by the number that
// metric_for_best_model names; in a run without validations all of them, by the mean training loss of the steps since the one before. What an
// interrupted run saves between them is for its resumption alone.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "data/model_text.h"
#include "model/model.h"
#include "train/batch_order.h"
#include "train/config.h"
#include "train/objective.h"
#include "train/plan.h"
#include "train/progress.h"
#include "train/reference.h"
#include "train/run_rows.h"
#include "train/stop_request.h"
#include "train/validation_task.h"

namespace sluice {

struct RunResult {
  int64_t steps = 0;
  double first_eval_loss = 0, last_eval_loss = 0, best_eval_loss = 0;
  double train_loss = 0;       // of the last report
  int64_t skipped_steps = 0;   // without a gradient
  std::string adapter_folder;  // the last checkpoint
  int64_t arena_planned = 0, arena_used = 0;
};

// `make_task` makes what config.eval_task names; without it such a setting is refused.
RunResult train(const TrainConfig& config, Progress& progress, const TaskMaker& make_task = {},
                const StopRequest* stop = nullptr);

// Fills what a plan takes from the settings and the machine.
void set_machine(PlanRequest& request, const TrainConfig& config, int num_threads);

// Everything up to the first step, for `sluice plan` and for embedding a trainer.
class Run {
 public:
  Run(const TrainConfig& config, Progress& progress, const TaskMaker& make_task = {},
      const StopRequest* stop = nullptr);
  ~Run();

  const Model& model() const { return *model_; }
  const Plan& plan() const { return plan_; }
  const AdapterLayout& layout() const { return layout_; }
  std::vector<Plan> candidates() const;

  RunResult train();

 private:
  struct State;
  PlanRequest plan_request() const;
  void load_data();
  void order_rows();
  void find_lengths();
  void plan_memory();
  void start();
  void take_folder();
  bool try_resume();
  void set_length();
  std::string why_stop() const;     // the run must end after this step; empty: it goes on
  void leave_before_steps() const;  // throw Error(cancelled) when asked to stop
  void leave_at_once() const;
  std::string last_whole() const;
  void validate();
  void step();
  double run_microbatch(int64_t index, double count, double kl);
  void update(double count);
  void apply_gradient();
  void skip_step();
  void report();
  void save(bool scheduled);
  void finish();
  std::vector<int64_t> rows_of(int64_t index) const { return batches_->rows_of(index); }  // of a microbatch
  // Of microbatches: what the loss is a mean over, weights of targets (sft) or rows.
  double count_in(int64_t begin, int64_t end) const;
  bool scored_by_validation() const;
  std::optional<double> score_of_checkpoint() const;
  bool is_better(double metric, double than) const;
  bool take_as_best();
  void observe_metric(double metric);
  bool stops_early() const;
  void note_early_stop();
  void check_that_it_learned();
  void warn_of_a_worse_end();
  void find_reference();
  std::vector<PairReference> reference_of(const std::vector<PairReference>& all,
                                          const std::vector<int64_t>& rows) const;
  double kl_sum(const RunRows& rows, const std::vector<int64_t>& picked, const std::vector<PairReference>& reference);
  void after_validation(const PreferenceMetrics& metrics);
  void warn_of_displacement();
  Json identity() const;
  void note(const std::string& text);  // nothing when it is empty
  int64_t held_bytes() const;
  [[noreturn]] void fail(const std::string& what);

  TrainConfig config_;
  Progress& progress_;
  const StopRequest* stop_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::unique_ptr<Model> model_;
  std::unique_ptr<ModelText> text_;
  Objective objective_;
  RunRows train_rows_, valid_rows_;
  std::optional<ReferencePolicy> policy_;  // where the objective needs one
  ReferenceLogps reference_;
  std::string base_hash_;  // taken before the weights leave for the device
  Json data_reports_;
  AdapterLayout layout_;
  std::optional<BatchOrder> batches_;
  int64_t total_microbatches_ = 0, total_steps_ = 0;
  std::unique_ptr<ThreadPool> pool_;
  std::optional<ValidationTask> task_;  // where eval_task names one
  std::vector<BatchShape> train_shapes_, valid_shapes_;
  Plan plan_;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
