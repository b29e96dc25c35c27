#include "train/objective_config.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace sluice {

namespace {

TrainConfig with(const std::vector<std::pair<std::string, std::string>>& flags,
                 std::vector<std::string>* notes = nullptr) {
  return read_config("", flags, notes);
}

bool has(const std::vector<std::string>& list, const std::string& part) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& s) { return s.find(part) != std::string::npos; });
}

}  // namespace

TEST_CASE("objective config: names of other tools and words in place of numbers mean what they mean there") {
  const TrainConfig adaptive = with({{"objective", "orpo"}, {"orpo_lambda", "adaptive"}});
  CHECK(adaptive.orpo_lambda_mode == "adaptive");
  CHECK(adaptive.orpo_lambda == 0.1);
  std::vector<std::string> notes;
  const Objective ipo = objective_of(with({{"objective", "dpo"}, {"loss_type", "ipo"}}, &notes));
  CHECK(ipo.dpo_loss == DpoLoss::ipo_mean);
  CHECK(has(notes, "the paper's is ipo_sum"));
  CHECK(objective_of(with({{"objective", "orpo"}, {"orpo_alpha", "0.3"}})).orpo_lambda == 0.3);
  CHECK(objective_of(with({{"objective", "orpo"}, {"beta", "0.4"}})).orpo_lambda == 0.4);
  CHECK(objective_of(with({{"objective", "simpo"}})).beta == 2);
  CHECK(objective_of(with({{"objective", "cpo"}, {"pref_beta", "0.7"}})).beta == 0.7);
}

TEST_CASE("objective config: every objective by its name, and its defaults contradict nothing") {
  using K = ObjectiveKind;
  const std::vector<std::pair<const char*, K>> kinds = {{"sft", K::sft},     {"dpo", K::dpo},   {"orpo", K::orpo},
                                                        {"simpo", K::simpo}, {"slic", K::slic}, {"cpo", K::cpo}};
  for (const auto& [name, kind] : kinds) {
    CAPTURE(name);
    const TrainConfig config = with({{"objective", name}});
    CHECK(objective_of(config).kind == kind);
    CHECK(objective_problems(config).empty());
  }
  CHECK(objective_problems(with({{"objective", "kto"}, {"batch_size", "2"}})).empty());
  CHECK(has(objective_problems(with({{"objective", "orpo"}, {"label_smoothing", "0.1"}})), "label_smoothing"));
  CHECK(has(objective_problems(with({{"objective", "dpo"}, {"loss_type", "hinge"}, {"label_smoothing", "0.1"}})),
            "label_smoothing"));
  CHECK(has(objective_problems(with({{"objective", "dpo"}, {"reference_free", "true"}, {"reference_adapter", "x"}})),
            "reference_adapter"));
  CHECK(has(objective_problems(with({{"objective", "orpo"}, {"orpo_lambda", "0"}, {"orpo_lambda_mode", "adaptive"}})),
            "orpo_lambda_max"));
}

TEST_CASE("objective config: best follows a metric of a validation, lower where its name ends in loss") {
  CHECK(best_metric(with({})) == "eval_loss");
  CHECK_FALSE(greater_is_better(with({})));
  const TrainConfig accuracy = with({{"objective", "dpo"}, {"metric_for_best_model", "rewards/accuracies"}});
  CHECK(best_metric(accuracy) == "eval_rewards/accuracies");
  CHECK(greater_is_better(accuracy));
  CHECK_FALSE(greater_is_better(with({{"objective", "orpo"}, {"metric_for_best_model", "eval_nll_loss"}})));
  CHECK_FALSE(greater_is_better(with({{"metric_for_best_model", "x"}, {"greater_is_better", "false"}})));
  CHECK(has(objective_problems(with({{"metric_for_best_model", "rewards/margins"}})), "it may be eval_loss"));
  CHECK(has(eval_metrics(with({{"objective", "orpo"}})), "eval_log_odds_chosen"));
  CHECK(has(eval_metrics(with({{"objective", "kto"}})), "eval_kl"));
}

}  // namespace sluice
