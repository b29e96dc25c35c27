// From settings to an objective, and what in them contradicts it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "train/config.h"
#include "train/objective.h"

namespace sluice {

Objective objective_of(const TrainConfig& config);

// What a setting is where the user gives none, for one objective; docs/objectives.md has reasons and sources. sft has the defaults of
// TrainConfig, which is also what a program gets that fills a TrainConfig itself.
struct ObjectiveDefault {
  const char *objective, *setting, *value;
};
std::span<const ObjectiveDefault> objective_defaults();
// "by objective: 5e-6 dpo, kto; 1e-5 orpo"; empty where the setting has one default.
std::string defaults_by_objective(const std::string& setting);

// Settings that the objective would not read, or that contradict each other. For validate().
std::vector<std::string> objective_problems(const TrainConfig& config);

// The score of eval_task in a validation's line of metrics.jsonl: "eval_chunk_score".
std::string score_metric(const TrainConfig& config);
// Keys of that line that `metric_for_best_model` may name, "eval_loss" first.
std::vector<std::string> eval_metrics(const TrainConfig& config);
// The setting with "eval_" in front. Empty: eval_loss.
std::string best_metric(const TrainConfig& config);
// Whether a setting asks for validation rows.
bool needs_validation(const TrainConfig& config);
// greater_is_better; auto: as Hugging Face, unless the name ends in "loss".
bool greater_is_better(const TrainConfig& config);

}  // namespace sluice
