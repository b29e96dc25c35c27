#include "train/objective_config.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

Objective objective_of(const TrainConfig& config) {
  using K = ObjectiveKind;
  Objective o{.label_smoothing = config.label_smoothing,
              .reference_free = config.reference_free,
              .orpo_lambda = config.orpo_lambda,
              .simpo_gamma = config.simpo_gamma,
              .sft_scope = config.sft_scope == "full" ? SftScope::full : SftScope::response,
              .desirable_weight = config.desirable_weight,
              .undesirable_weight = config.undesirable_weight};
  for (const auto& [name, kind] : {std::pair{"dpo", K::dpo},
                                   {"orpo", K::orpo},
                                   {"simpo", K::simpo},
                                   {"slic", K::slic},
                                   {"cpo", K::cpo},
                                   {"kto", K::kto}}) {
    if (config.objective == name) o.kind = kind;
  }
  for (const auto& [name, loss] : {std::pair{"robust", DpoLoss::robust},
                                   {"hinge", DpoLoss::hinge},
                                   {"ipo_sum", DpoLoss::ipo_sum},
                                   {"ipo_mean", DpoLoss::ipo_mean}}) {
    if (config.loss_type == name) o.dpo_loss = loss;
  }
  o.beta = config.beta > 0 ? config.beta : o.kind == K::simpo ? 2.0 : 0.1;
  if (o.kind == K::orpo && config.beta > 0) o.orpo_lambda = config.beta;  // TRL's name for it
  return o;
}

std::span<const ObjectiveDefault> objective_defaults() {
  static constexpr ObjectiveDefault defaults[] = {
      {"dpo", "beta", "0.1"},
      {"dpo", "learning_rate", "5e-6"},
      {"dpo", "lr_schedule.warmup_ratio", "0.1"},
      {"dpo", "lora_parameters.rank", "16"},
      {"orpo", "learning_rate", "1e-5"},
      {"orpo", "lr_schedule.warmup_ratio", "0.03"},
      {"orpo", "lora_parameters.rank", "16"},
      {"orpo", "sft_scope", "full"},
      {"simpo", "beta", "2"},
      {"simpo", "simpo_gamma", "1"},
      {"simpo", "learning_rate", "5e-6"},
      {"simpo", "lr_schedule.warmup_ratio", "0.1"},
      {"simpo", "lora_parameters.rank", "16"},
      {"slic", "beta", "0.1"},
      {"slic", "learning_rate", "5e-6"},
      {"slic", "lr_schedule.warmup_ratio", "0.1"},
      {"slic", "lora_parameters.rank", "16"},
      {"cpo", "beta", "0.1"},
      {"cpo", "learning_rate", "1e-4"},
      {"cpo", "lr_schedule.warmup_ratio", "0.01"},
      {"cpo", "lora_parameters.rank", "16"},
      {"kto", "beta", "0.1"},
      {"kto", "learning_rate", "5e-6"},
      {"kto", "lr_schedule.warmup_ratio", "0.1"},
      {"kto", "lora_parameters.rank", "16"},
  };
  return defaults;
}

std::string defaults_by_objective(const std::string& setting) {
  std::vector<std::pair<std::string, std::string>> by_value;  // value, objectives
  for (const ObjectiveDefault& d : objective_defaults()) {
    if (d.setting != setting) continue;
    const auto same = std::find_if(by_value.begin(), by_value.end(), [&](const auto& v) { return v.first == d.value; });
    if (same != by_value.end()) same->second += fmt::format(", {}", d.objective);
    else by_value.emplace_back(d.value, d.objective);
  }
  std::string text;
  for (const auto& [value, objectives] : by_value)
    text += fmt::format("{}{} {}", text.empty() ? "by objective: " : "; ", value, objectives);
  return text;
}

std::vector<std::string> objective_problems(const TrainConfig& config) {
  const TrainConfig defaults;
  const auto is = [&](const char* name) { return config.objective == name; };
  std::vector<std::string> problems;
  const auto unread = [&](bool set, bool read, const char* name, const char* reader) {
    if (!set || read) return;
    problems.push_back(
        fmt::format("{} is given, which objective {} does not read; it belongs to {}", name, config.objective, reader));
  };
  const bool smoothed = config.loss_type == "sigmoid" || config.loss_type == "robust";
  unread(config.beta > 0, !is("sft"), "beta", "the other objectives");
  if (is("orpo") && config.beta > 0 && config.orpo_lambda != defaults.orpo_lambda)
    problems.emplace_back("beta and orpo_lambda are both given; in orpo they are the same, give one");
  unread(config.loss_type != defaults.loss_type, is("dpo"), "loss_type", "dpo");
  unread(config.reference_free, is("dpo"), "reference_free", "dpo");
  unread(config.label_smoothing > 0, is("dpo") && smoothed, "label_smoothing", "dpo with loss_type sigmoid or robust");
  unread(config.orpo_lambda != defaults.orpo_lambda, is("orpo"), "orpo_lambda", "orpo");
  unread(config.orpo_lambda_mode != defaults.orpo_lambda_mode, is("orpo"), "orpo_lambda: adaptive", "orpo");
  unread(config.sft_scope != defaults.sft_scope, is("orpo") || is("cpo"), "sft_scope", "orpo and cpo");
  unread(config.simpo_gamma != defaults.simpo_gamma, is("simpo"), "simpo_gamma", "simpo");
  unread(config.desirable_weight != 1, is("kto"), "desirable_weight", "kto");
  unread(config.undesirable_weight != 1, is("kto"), "undesirable_weight", "kto");
  unread(!config.reference_adapter.empty(), (is("dpo") && !config.reference_free) || is("kto"), "reference_adapter",
         "dpo and kto");
  unread(config.train_on != defaults.train_on, is("sft"), "train_on",
         "sft; of the others the answers alone are compared");
  if (config.mask_prompt == "false" && config.train_on == "last")
    problems.emplace_back("mask_prompt: false trains on every token, train_on: last on the last answer; give one");
  unread(config.mask_prompt == "false", is("sft"), "mask_prompt: false", "sft; orpo and cpo have sft_scope: full");
  if (is("kto") && config.batch_size * config.grad_accumulation_steps < 2)
    problems.emplace_back(
        "kto measures its KL term over the rows of a step, and a step has one row; set batch_size or "
        "grad_accumulation_steps to 2 or more");
  if (is("kto") && config.packing)
    problems.emplace_back(
        "kto measures its KL term over the rows of a step, which packing makes uneven; leave out packing");
  if (config.orpo_lambda_mode == "adaptive" &&
      (objective_of(config).orpo_lambda <= 0 || objective_of(config).orpo_lambda > config.orpo_lambda_max ||
       config.steps_per_eval <= 0))
    problems.emplace_back(
        "orpo_lambda_mode: adaptive changes orpo_lambda after validations, between 0 and orpo_lambda_max; set "
        "orpo_lambda in that range and steps_per_eval above 0");
  const bool has_task = config.eval_task != "none";
  if (has_task != !config.eval_task_data.empty())
    problems.push_back(has_task ? "eval_task needs eval_task_data: the .jsonl file of its cases"
                                : "eval_task_data is given without eval_task; set eval_task: chunk");
  const std::vector<std::string> known = eval_metrics(config);
  if (std::find(known.begin(), known.end(), best_metric(config)) == known.end()) {
    problems.push_back(fmt::format("metric_for_best_model is '{}'; with objective {} it may be {}",
                                   config.metric_for_best_model, config.objective, fmt::join(known, ", ")));
  }
  const bool no_loss = config.val_batches == 0, by_loss = best_metric(config) != score_metric(config);
  if (no_loss && by_loss && (!config.metric_for_best_model.empty() || config.early_stopping_patience > 0))
    problems.push_back(
        fmt::format("val_batches is 0, so validations have no {}, which metric_for_best_model or "
                    "early_stopping_patience asks for; set val_batches: -1",
                    best_metric(config)));
  if (no_loss && config.orpo_lambda_mode == "adaptive")
    problems.emplace_back("orpo_lambda_mode: adaptive reads validations, and val_batches is 0; set val_batches: -1");
  if (config.early_stopping_patience > 0 &&
      (config.steps_per_eval <= 0 || config.save_every <= 0 || config.steps_per_eval % config.save_every != 0))
    problems.push_back(
        fmt::format("early_stopping_patience ends a run after its best validation, which must have a checkpoint: "
                    "steps_per_eval ({}) must be a multiple of save_every ({})",
                    config.steps_per_eval, config.save_every));
  return problems;
}

std::string score_metric(const TrainConfig& config) { return fmt::format("eval_{}_score", config.eval_task); }

std::vector<std::string> eval_metrics(const TrainConfig& config) {
  std::vector<std::string> names = {"eval_loss", "eval_mean_token_accuracy"};
  if (config.eval_task != "none") names.push_back(score_metric(config));
  const Objective objective = objective_of(config);
  if (objective.kind == ObjectiveKind::sft) return names;
  PreferenceMetrics any;
  any.pairs = any.with_chosen = any.with_rejected = 1;
  const Json metrics = any.json(objective, "eval_");
  for (const auto& [name, value] : metrics.items()) names.push_back(name);
  return names;
}

std::string best_metric(const TrainConfig& config) {
  const std::string& name = config.metric_for_best_model;
  return name.empty() ? "eval_loss" : name.starts_with("eval_") ? name : "eval_" + name;
}

bool needs_validation(const TrainConfig& config) {
  return best_metric(config) != "eval_loss" || config.eval_task != "none" || config.orpo_lambda_mode == "adaptive" ||
         config.early_stopping_patience > 0;
}

bool greater_is_better(const TrainConfig& config) {
  if (config.greater_is_better != "auto") return config.greater_is_better == "true";
  return !best_metric(config).ends_with("loss");
}

}  // namespace sluice
