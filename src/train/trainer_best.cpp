// The part of a run that judges it: steps that cannot learn, which checkpoint is best, when to stop early, what to say at the end.
#include <fmt/format.h>

#include "train/objective_config.h"
#include "train/run_state.h"

namespace sluice {

// The gradient of this step is zero in every number.
void Run::skip_step() {
  State& s = *state_;
  if (++s.now.skipped_steps == 1) {
    progress_.note(
        fmt::format("step {}: the gradient is zero, as after a satisfied margin or where probabilities are one; such a "
                    "step changes "
                    "nothing, and skipped_steps counts it",
                    s.now.step + 1));
  }
}

void Run::check_that_it_learned() {
  State& s = *state_;
  if (s.now.skipped_steps == s.now.step)
    fail(
        fmt::format("none of {} steps had a gradient, so nothing was learned; is every margin satisfied at the start "
                    "(a smaller beta asks for a larger one), or every answer certain?",
                    s.now.step));
  if (s.parameter_hash() == s.start_hash) fail("the adapter is the same bytes as at the start: nothing was learned");
}

// Otherwise the training loss tells which checkpoint is best.
bool Run::scored_by_validation() const {
  return !valid_rows_.empty() && (config_.val_batches != 0 || best_metric(config_) != "eval_loss");
}

std::optional<double> Run::score_of_checkpoint() const {
  const State& s = *state_;
  if (!scored_by_validation()) return s.now.window_loss / s.now.window_count;
  return s.scored_step == s.now.step ? std::optional(s.score) : std::nullopt;
}

bool Run::is_better(double metric, double than) const {
  return greater_is_better(config_) ? metric > than : metric < than;
}

// Of a scheduled checkpoint about to be saved: whether it is the best so far. It ends the window of the training loss.
bool Run::take_as_best() {
  TrainState& now = state_->now;
  const std::optional<double> score = score_of_checkpoint();
  now.window_loss = 0;
  now.window_count = 0;
  if (!score || (now.best_step >= 0 && !is_better(*score, now.best_metric))) return false;
  now.best_metric = *score;
  now.best_step = now.step;
  return true;
}

// Of a validation, whether or not its step is saved.
void Run::observe_metric(double metric) {
  State& s = *state_;
  s.score = metric;
  s.scored_step = s.now.step;
  const bool better = !s.now.best_eval || is_better(metric, *s.now.best_eval);
  if (better) s.now.best_eval = metric;
  s.now.evals_since_best = better ? 0 : s.now.evals_since_best + 1;
}

bool Run::stops_early() const {
  return config_.early_stopping_patience > 0 && state_->now.evals_since_best >= config_.early_stopping_patience;
}

void Run::note_early_stop() {
  const TrainState& now = state_->now;
  progress_.note(fmt::format("stopped early after step {}: {} validations in a row without a better {} than {:.4g}",
                             now.step, now.evals_since_best, best_metric(config_), *now.best_eval));
}

// One line, also where training went on to its end without a complaint. A single step's training loss is noisy, a validation's is not.
void Run::warn_of_a_worse_end() {
  const State& s = *state_;
  const bool validated = s.now.first_eval_loss && s.now.last_eval_loss;
  const std::optional<double> first = validated ? s.now.first_eval_loss : s.now.first_train_loss;
  const double last = validated ? *s.now.last_eval_loss : s.result.train_loss, noise = validated ? 0.1 : 0.5;
  if (!first || !(last > *first + noise * (1 + std::abs(*first)))) return;
  progress_.note(
      fmt::format("warning: the {} loss ended at {:.3f}, far above the {:.3f} it began with; lower learning_rate{}",
                  validated ? "validation" : "training", last, *first,
                  s.now.best_step >= 0 && s.now.best_step != s.now.step
                      ? fmt::format(", or take best, which is step {}", s.now.best_step)
                      : std::string()));
}

}  // namespace sluice
