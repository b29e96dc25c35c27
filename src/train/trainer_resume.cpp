// The part of a run that knows its folder: who may write there, what a resumed run goes on from, and what is told when it ends early.
#include <fmt/format.h>

#include <filesystem>

#include "core/device.h"
#include "io/hash.h"
#include "model/adapter_file.h"
#include "train/run_identity.h"
#include "train/run_state.h"

namespace sluice {

namespace fs = std::filesystem;

std::optional<LoadedCheckpoint> checkpoint_for(const TrainConfig& config) {
  const std::string& out = config.adapter_path;
  check_links(out);
  std::optional<LoadedCheckpoint> found = find_checkpoint(out);
  check(!found || config.resume, ErrorCode::bad_config,
        fmt::format("{} holds a checkpoint already; go on from it with --resume, or give another adapter_path", out));
  if (config.resume && !found)
    throw Error(ErrorCode::bad_config,
                fmt::format("--resume: nothing to go on from in {}: looked for step-*/state.json, {}; start the run "
                            "without --resume, or give the adapter_path of the run that is meant",
                            out, instead_of_checkpoints(out)));
  return found;
}

Json Run::identity() const {
  const auto rows = [](const RunRows& all) {
    std::string bytes;
    all.append_to(bytes);
    return hash_of_text(bytes);
  };
  Json contents = {{"model", base_hash_}, {"data", rows(train_rows_)}};
  if (steered_by_validation(config_)) contents["valid.jsonl"] = rows(valid_rows_);
  if (policy_) contents["reference_adapter"] = policy_->key();
  // A program's own task may name what is no file.
  if (const std::string& cases = config_.eval_task_data; !cases.empty())
    contents["eval_task_data"] = fs::is_regular_file(cases) ? sha256_file(cases) : hash_of_text(cases);
  // A resumed run no longer needs the adapter that it started from: gone, it cannot be another.
  if (!config_.resume_adapter_file.empty() && (!config_.resume || fs::exists(config_.resume_adapter_file)))
    contents["resume_adapter_file"] = adapter_hash(load_adapter(config_.resume_adapter_file, model_->config));
  return run_identity(config_, std::move(contents));
}

void Run::take_folder() {
  std::error_code problem;
  fs::create_directories(config_.adapter_path, problem);
  check(!problem, ErrorCode::bad_file,
        fmt::format("{}: the folder cannot be made: {}; give another adapter_path", config_.adapter_path,
                    problem.message()));
  State& s = *state_;
  s.lock = std::make_unique<RunLock>(config_.adapter_path);
  if (!s.lock->works())
    progress_.note(fmt::format("{}: the file system has no locks, so a second run there would not be noticed",
                               config_.adapter_path));
  s.now.run = identity();
  s.now.total_steps = total_steps_;
}

bool Run::try_resume() {
  const std::optional<LoadedCheckpoint> found = checkpoint_for(config_);
  if (!found) return false;
  State& s = *state_;
  const Json run = s.now.run;
  const std::vector<std::string> differences = identity_differences(found->state.run, run);
  check(differences.empty(), ErrorCode::bad_config,
        fmt::format("{} is from a run with other settings or data: {}; resume with those it was started with, or give "
                    "another adapter_path",
                    found->folder, fmt::join(differences, "; ")));
  check(found->state.microbatches <= total_microbatches_, ErrorCode::bad_config,
        fmt::format("{} is after {} forward/backward passes and the run's length is {}; give a longer iters, max_steps "
                    "or num_epochs",
                    found->folder, found->state.microbatches, total_microbatches_));
  constexpr auto unread = HostFloats::Content::unread;
  HostFloats p(s.ctx, s.p, unread), m(s.ctx, s.m, unread), v(s.ctx, s.v, unread);
  load_checkpoint(*found, layout_, model_->config, p.data(), m.data(), v.data());
  for (HostFloats* part : {&p, &m, &v}) part->write_back();
  s.now = found->state;
  s.now.run = run;
  if (config_.orpo_lambda_mode == "adaptive") {
    s.lambda.restore(s.now.lambda);
    objective_.orpo_lambda = s.lambda.state().lambda;
  }
  progress_.note(fmt::format("resumed from {} after step {}", found->folder, s.now.step));
  set_length();
  return true;
}

// The last step of the run that is gone on with may have had fewer passes than the others.
void Run::set_length() {
  State& s = *state_;
  const int64_t left = total_microbatches_ - s.now.microbatches, each = config_.grad_accumulation_steps;
  total_steps_ = s.now.step + (left + each - 1) / each;
  s.lr.warmup = warmup_steps(config_.warmup, config_.warmup_ratio, total_steps_);
  s.lr.total = total_steps_;
  if (s.now.total_steps != total_steps_)
    progress_.note(fmt::format(
        "the run had {} steps and has {} now{}", s.now.total_steps, total_steps_,
        config_.lr_schedule == "constant" ? "" : "; the learning rate follows the new length from here on"));
  s.now.total_steps = total_steps_;
}

std::string Run::why_stop() const {
  if (stop_ != nullptr && stop_->asked()) return stop_->why();
  if (config_.max_hours > 0 && seconds_since(began_) >= 3600 * config_.max_hours)
    return fmt::format("max_hours: {} are over", config_.max_hours);
  return "";
}

void Run::leave_before_steps() const {
  if (stop_ == nullptr || !stop_->asked()) return;
  throw Error(ErrorCode::cancelled,
              fmt::format("stopped before a step was done ({}); nothing was saved", stop_->why()));
}

void Run::leave_at_once() const {
  if (stop_ == nullptr || !stop_->at_once()) return;
  throw Error(ErrorCode::cancelled, fmt::format("stopped inside step {} ({}), which is not saved; {}",
                                                state_->now.step + 1, stop_->why(), last_whole()));
}

std::string Run::last_whole() const {
  const std::optional<LoadedCheckpoint> last = find_checkpoint(config_.adapter_path);
  return last ? "the last whole checkpoint is " + last->folder : "no checkpoint was saved yet";
}

}  // namespace sluice
