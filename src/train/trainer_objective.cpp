// The part of a run that knows its objective: the reference policy, validation, one microbatch.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/hash.h"
#include "train/objective_config.h"
#include "train/run_state.h"

namespace sluice {

namespace {

// A line for the user when chosen answers have become less likely by a tenth of their log-probability; else empty.
std::string displacement_warning(double start, double now) {
  if (now >= start - 0.1 * std::abs(start)) return "";
  return fmt::format(
      "warning: the log-probability of the chosen answers fell from {:.3f} to {:.3f}; a margin can grow while both "
      "answers become less likely: lower learning_rate, or use orpo or cpo, which train on the chosen answers too",
      start, now);
}

void add_hits(const PreferenceBatch& batch, const std::vector<float>& hits, TokenAccuracy& accuracy) {
  for (size_t m = 0; m < hits.size(); ++m) {
    if (!batch.labels.empty() && batch.labels[m].part != Part::chosen) continue;
    accuracy.hits += hits[m] > 0 ? 1 : 0;
    ++accuracy.tokens;
  }
}

}  // namespace

void Run::find_reference() {
  if (!policy_) return;
  std::vector<bool> reached(static_cast<size_t>(train_rows_.size()), false);
  for (int64_t i = 0; i < total_microbatches_; ++i) {
    for (int64_t row : rows_of(i)) reached[static_cast<size_t>(row)] = true;
  }
  std::string what = policy_->key() + config_.precision +
                     (state_->ctx.device.type == DeviceType::cuda ? "cuda"
                      : state_->ctx.isa == Isa::avx2              ? "avx2"
                                                                  : "avx512");
  what += text_->template_identity();
  for (bool row : reached) what += row ? '1' : '0';
  train_rows_.append_to(what);
  valid_rows_.append_to(what);
  const std::string key = sha256(std::as_bytes(std::span(what)));
  std::optional<ReferenceLogps> kept = load_reference(config_.adapter_path, key);
  const bool computed = !kept;
  if (computed) {
    progress_.phase(fmt::format("log-probabilities of {} rows under the reference policy",
                                std::count(reached.begin(), reached.end(), true) + valid_rows_.size()));
    const StepSettings settings{.schedule = plan_.schedule, .dtype = dtype_of_run(config_)};
    const std::vector<bool> every(static_cast<size_t>(valid_rows_.size()), true);
    const auto before_row = [this] { leave_before_steps(); };
    kept = ReferenceLogps{.train = policy_->logps(state_->ctx, train_rows_, reached, settings, before_row),
                          .valid = policy_->logps(state_->ctx, valid_rows_, every, settings, before_row)};
    save_reference(config_.adapter_path, key, *kept);
  }
  reference_ = std::move(*kept);
  progress_.note(fmt::format("reference policy: {}; its log-probabilities, {}, have sha256 {}", policy_->identity(),
                             computed ? "computed now" : "kept in reference_logps.safetensors",
                             reference_.hash().substr(0, 16)));
  note(policy_->note());
  policy_->forget();
}

std::vector<PairReference> Run::reference_of(const std::vector<PairReference>& all,
                                             const std::vector<int64_t>& rows) const {
  std::vector<PairReference> picked;
  if (!policy_) return picked;
  for (int64_t row : rows) picked.push_back(all[static_cast<size_t>(row)]);
  return picked;
}

// kto: the sum over rows of how much likelier their mismatched answers are than under the reference.
double Run::kl_sum(const RunRows& rows, const std::vector<int64_t>& picked,
                   const std::vector<PairReference>& reference) {
  const PreferenceBatch batch = rows.pack_mismatched(picked);
  double sum = 0;
  for (float logp : forward_logps(state_->ctx, *model_, state_->adapter, step_batch(batch.tokens),
                                  {.schedule = plan_.schedule, .dtype = dtype_of_run(config_)}))
    sum += static_cast<double>(logp);
  for (const PairReference& r : reference_of(reference, picked)) sum -= r.rejected;
  return sum;
}

void Run::validate() {
  if (valid_rows_.empty() || (config_.val_batches == 0 && !task_)) return;
  State& s = *state_;
  const Clock::time_point begin = Clock::now();
  const int64_t count =
      config_.val_batches < 0 ? valid_rows_.size() : std::min<int64_t>(config_.val_batches, valid_rows_.size());
  const Objective objective = objective_of(config_);  // with lambda as at the start, so that validations compare
  double sum = 0, weight = 0, kl = 0;
  int64_t tokens = 0;
  PreferenceMetrics metrics;
  TokenAccuracy accuracy;
  for (int64_t i = 0; i < count && objective.kind == ObjectiveKind::kto; ++i)
    kl += kl_sum(valid_rows_, {i}, reference_.valid) / static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    leave_at_once();
    const PreferenceBatch batch = valid_rows_.pack({i});
    const std::vector<float> logps =
        forward_logps(s.ctx, *model_, s.adapter, step_batch(batch.tokens),
                      {.schedule = plan_.schedule, .dtype = dtype_of_run(config_), .hits = &s.hits});
    add_hits(batch, s.hits, accuracy);
    for (size_t m = 0; m < logps.size(); ++m)
      sum -= static_cast<double>(batch.tokens.weights[m]) * static_cast<double>(logps[m]);
    weight += batch.tokens.total_weight();
    tokens += static_cast<int64_t>(logps.size());
    if (objective.kind == ObjectiveKind::sft) continue;
    const std::vector<PairReference> reference = reference_of(reference_.valid, {i});
    preference_loss(objective,
                    {.targets = batch.labels,
                     .logp = logps,
                     .dlogp = {},
                     .num_pairs = 1,
                     .reference = reference,
                     .kl = std::max(kl, 0.0)},
                    metrics);
  }
  std::optional<double> score;
  if (task_) {
    progress_.phase("scoring " + task_->name);
    score = task_->score(s.adapter);
  }
  EvalReport report{.step = s.now.step,
                    .loss = weight > 0 ? sum / weight : 0,
                    .seconds = seconds_since(begin),
                    .tokens = tokens,
                    .accuracy = accuracy};
  if (metrics.pairs > 0) {
    report.loss = metrics.loss / static_cast<double>(metrics.pairs);
    report.objective = metrics.json(objective, "eval_");
    after_validation(metrics);
    if (config_.orpo_lambda_mode == "adaptive") {
      report.objective["orpo_lambda"] = objective_.orpo_lambda;
      report.objective["orpo_lambda_state"] = to_string(s.lambda.state().action);
    }
  }
  if (score) report.objective[score_metric(config_)] = *score;
  progress_.eval(report);
  const Json line = to_json(report);
  s.metrics->write(line);
  if (tokens > 0) {
    if (!s.now.first_eval_loss) s.now.first_eval_loss = report.loss;
    s.now.last_eval_loss = report.loss;
  }
  if (scored_by_validation()) {
    check(line.contains(best_metric(config_)), ErrorCode::bad_config,
          fmt::format("a validation has no {}, which metric_for_best_model names: the labels of its rows are all alike",
                      best_metric(config_)));
    observe_metric(line[best_metric(config_)].get<double>());
  }
  s.since += Clock::now() - begin;  // validation is no training time
}

// An eye on the chosen answers, which both answers' falling together would hide.
void Run::after_validation(const PreferenceMetrics& metrics) {
  State& s = *state_;
  if (metrics.with_chosen == 0) return;
  const double chosen = metrics.logp_chosen / static_cast<double>(metrics.with_chosen);
  if (!s.now.chosen_at_start) s.now.chosen_at_start = chosen;
  if (const std::string warning = displacement_warning(*s.now.chosen_at_start, chosen); !warning.empty())
    progress_.note(warning);
  if (config_.orpo_lambda_mode != "adaptive") return;
  s.lambda.observe(chosen);
  objective_.orpo_lambda = s.lambda.state().lambda;
  s.now.lambda = s.lambda.json();
}

double Run::run_microbatch(int64_t index, double count, double kl) {
  State& s = *state_;
  const std::vector<int64_t> rows = rows_of(index);
  const PreferenceBatch batch = train_rows_.pack(rows);
  const std::vector<PairReference> reference = reference_of(reference_.train, rows);
  const DropoutKey dropout{.p = static_cast<float>(config_.dropout),
                           .seed = static_cast<uint64_t>(config_.seed),
                           .step = static_cast<uint64_t>(s.now.step),
                           .microbatch = static_cast<uint64_t>(index)};
  const auto tokens_mean = [&](std::span<const float> logp, std::span<float> dlogp) {
    const std::vector<float>& weights = batch.tokens.weights;
    double sum = 0;
    for (size_t m = 0; m < logp.size(); ++m) {
      sum -= static_cast<double>(weights[m]) * static_cast<double>(logp[m]);
      dlogp[m] = static_cast<float>(-static_cast<double>(weights[m]) / count);
    }
    return sum;
  };
  const auto rows_mean = [&](std::span<const float> logp, std::span<float> dlogp) {
    const double before = s.pairs.loss;
    preference_loss(objective_,
                    {.targets = batch.labels,
                     .logp = logp,
                     .dlogp = dlogp,
                     .num_pairs = batch.num_pairs,
                     .reference = reference,
                     .scale = 1 / count,
                     .kl = kl},
                    s.pairs);
    return s.pairs.loss - before;
  };
  const bool sft = objective_.kind == ObjectiveKind::sft;
  const double loss = forward_backward(s.ctx, *model_, s.adapter, s.grads, step_batch(batch.tokens),
                                       {.schedule = plan_.schedule,
                                        .dtype = dtype_of_run(config_),
                                        .dropout = dropout,
                                        .pinned = &s.pinned,
                                        .hits = &s.hits},
                                       sft ? LossFunction(tokens_mean) : LossFunction(rows_mean));
  add_hits(batch, s.hits, s.accuracy);
  const double count_here = sft ? batch.tokens.total_weight() : static_cast<double>(batch.num_pairs);
  s.loss_count += count_here;
  s.now.window_count += count_here;
  s.run_tokens += batch.tokens.num_tokens();
  s.now.trained_tokens += batch.tokens.num_targets();
  return loss;
}

// Without validation the training rows themselves tell, where a reference says how likely they were.
void Run::warn_of_displacement() {
  State& s = *state_;
  if (!policy_ || !valid_rows_.empty() || s.warned || s.pairs.with_chosen == 0) return;
  const auto n = static_cast<double>(s.pairs.with_chosen);
  const double chosen = s.pairs.logp_chosen / n, gain = s.pairs.reward_chosen / objective_.beta / n;
  const std::string warning = displacement_warning(chosen - gain, chosen);
  s.warned = !warning.empty();
  if (s.warned) progress_.note(warning);
}

}  // namespace sluice
