#include "train/objective_config.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/error.h"
#include "train/lr_schedule.h"

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

TEST_CASE("objective config: each objective has its own defaults, and what is given wins wherever it stands") {
  std::vector<std::string> notes;
  const TrainConfig orpo = with({{"objective", "orpo"}}, &notes);
  CHECK(orpo.learning_rate == 1e-5);
  CHECK(orpo.rank == 16);
  CHECK(orpo.warmup_ratio == 0.03);
  CHECK(orpo.sft_scope == "full");
  CHECK(objective_of(orpo).orpo_lambda == 0.1);
  CHECK(has(notes, "defaults of orpo (docs/objectives.md): learning_rate 1e-5"));
  const TrainConfig sft = with({});
  CHECK(to_yaml(sft) == to_yaml(TrainConfig{}));
  CHECK(with({{"objective", "dpo"}}).learning_rate == 5e-6);
  CHECK(with({{"objective", "simpo"}}).simpo_gamma == 1);
  CHECK(with({{"objective", "cpo"}}).sft_scope == "response");
  const TrainConfig given =
      with({{"lr", "1e-4"}, {"lora_r", "8"}, {"sft_scope", "response"}, {"warmup_steps", "0"}, {"rl", "orpo"}});
  CHECK(given.learning_rate == 1e-4);
  CHECK(given.rank == 8);
  CHECK(given.sft_scope == "response");
  CHECK(given.warmup_ratio == 0);
  for (const ObjectiveDefault& d : objective_defaults()) {
    CAPTURE(d.objective);
    CAPTURE(d.setting);
    CHECK(to_yaml(with({{"objective", d.objective}})) ==
          to_yaml(with({{"objective", d.objective}, {d.setting, d.value}})));
  }
  CHECK(defaults_by_objective("lora_parameters.rank") == "by objective: 16 dpo, orpo, simpo, slic, cpo, kto");
  CHECK(defaults_by_objective("seed").empty());
}

TEST_CASE("objective config: two words for one thing, and words that switch training off, are refused by name") {
  const auto refusal = [](const std::vector<std::pair<std::string, std::string>>& flags) -> std::string {
    try {
      with(flags);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(refusal({{"alpha", "16"}, {"rank", "8"}}).empty());
  CHECK(refusal({{"alpha", "16"}, {"rank", "8"}, {"scale", "2"}}).empty());  // they agree
  CHECK(refusal({{"alpha", "16"}, {"rank", "8"}, {"scale", "3"}}).find("alpha at rank 8 is a scale of 2") !=
        std::string::npos);
  CHECK(refusal({{"alpha", "16"}, {"rank", "16"}, {"use_rslora", "true"}, {"scale", "4"}}).empty());
  CHECK(refusal({{"lora_alpha", "0"}}).find("--lora_alpha: lora_parameters.alpha is 0") != std::string::npos);
  CHECK(to_yaml(with({{"alpha", "16"}})).find("scale") == std::string::npos);
  CHECK(to_yaml(with({})).find("alpha:") == std::string::npos);
  TrainConfig both = with({{"warmup", "10"}, {"warmup_ratio", "0.1"}});
  CHECK(has(validate(both), "lr_schedule.warmup and lr_schedule.warmup_ratio are both given"));
}

TEST_CASE(
    "FieldU5_ratio: a warm-up by ratio is a share of the optimizer steps, rounded up, and leaves a step at the peak") {
  CHECK(warmup_steps(0, 0.03, 1000) == 30);
  CHECK(warmup_steps(0, 0.03, 100) == 3);
  CHECK(warmup_steps(0, 0.07, 100) == 7);
  CHECK(warmup_steps(0, 0.03, 10) == 1);
  CHECK(warmup_steps(0, 0.03, 1) == 0);
  CHECK(warmup_steps(0, 1, 8) == 7);
  CHECK(warmup_steps(0, 0, 8) == 0);
  CHECK(warmup_steps(5, 0.5, 8) == 5);
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
