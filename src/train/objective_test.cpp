#include "train/objective.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace sluice {

namespace {

struct Named {
  std::string name;
  Objective objective;
};

// Every objective with its defaults, and the variants of each.
std::vector<Named> objectives() {
  using K = ObjectiveKind;
  std::vector<Named> list = {{"sft", {.kind = K::sft}},
                             {"sft full", {.kind = K::sft, .sft_scope = SftScope::full}},
                             {"dpo", {.kind = K::dpo}},
                             {"dpo smoothed", {.kind = K::dpo, .label_smoothing = 0.2}},
                             {"dpo robust", {.kind = K::dpo, .dpo_loss = DpoLoss::robust, .label_smoothing = 0.2}},
                             {"dpo hinge", {.kind = K::dpo, .dpo_loss = DpoLoss::hinge}},
                             {"ipo sum", {.kind = K::dpo, .dpo_loss = DpoLoss::ipo_sum}},
                             {"ipo mean", {.kind = K::dpo, .dpo_loss = DpoLoss::ipo_mean}},
                             {"dpo without reference", {.kind = K::dpo, .reference_free = true}},
                             {"orpo", {.kind = K::orpo}},
                             {"orpo full", {.kind = K::orpo, .sft_scope = SftScope::full}},
                             {"simpo", {.kind = K::simpo, .beta = 2}},
                             {"slic", {.kind = K::slic}},
                             {"cpo", {.kind = K::cpo}},
                             {"cpo full", {.kind = K::cpo, .sft_scope = SftScope::full}}};
  return list;
}

// Two pairs in one microbatch, their targets interleaved as in a forest.
struct Problem {
  std::vector<PairTarget> targets = {{0, Part::prompt},   {0, Part::prompt}, {0, Part::chosen},   {0, Part::rejected},
                                     {0, Part::chosen},   {0, Part::chosen}, {0, Part::rejected}, {1, Part::prompt},
                                     {1, Part::rejected}, {1, Part::chosen}, {1, Part::rejected}, {1, Part::rejected}};
  std::vector<float> logp = {-1.5F,   -0.25F, -0.5F, -2.5F, -0.75F,  -1.25F,
                             -0.875F, -3.0F,  -1.0F, -2.0F, -0.375F, -0.625F};
  std::vector<PairReference> reference = {{-3.0, -2.75}, {-1.5, -2.25}};

  double loss(const Objective& o, std::span<float> dlogp = {}, PreferenceMetrics* metrics = nullptr) const {
    PreferenceMetrics unused;
    return preference_loss(
        o, {.targets = targets, .logp = logp, .dlogp = dlogp, .num_pairs = 2, .reference = reference, .scale = 0.5},
        metrics != nullptr ? *metrics : unused);
  }
};

// The definition of ORPO's odds-ratio term and its derivatives with respect to the means, in long double.
struct ExactOdds {
  long double log_odds, loss, d_lw, d_lr;
  ExactOdds(long double lw, long double lr) {
    const auto log_one_minus = [](long double x) { return x > -0.5L ? logl(-expm1l(x)) : log1pl(-expl(x)); };
    log_odds = (lw - lr) - (log_one_minus(lw) - log_one_minus(lr));
    loss = log_odds > 0 ? log1pl(expl(-log_odds)) : -log_odds + log1pl(expl(log_odds));
    const long double s =
        log_odds > 0 ? expl(-log_odds) / (1 + expl(-log_odds)) : 1 / (1 + expl(log_odds));  // sigmoid(-log_odds)
    d_lw = s / expm1l(lw);
    d_lr = -s / expm1l(lr);
  }
};

bool close(double value, long double exact) {
  const double e = static_cast<double>(exact);
  return std::abs(value - e) <= 1e-10 * std::abs(e) + 1e-300;
}

constexpr std::array<double, 7> extremes = {0, -1e-8, -1e-6, -1e-3, -1, -50, -1e4};

PairLogps single_tokens(double lw, double lr) {
  return {.chosen = lw, .rejected = lr, .num_chosen = 1, .num_rejected = 1};
}

}  // namespace

TEST_CASE("FieldL7_objective: every default has a gradient that is not zero and agrees with finite differences") {
  for (const Named& named : objectives()) {
    CAPTURE(named.name);
    Problem p;
    std::vector<float> dlogp(p.logp.size(), NAN);
    const double loss = p.loss(named.objective, dlogp);
    CHECK(std::isfinite(loss));
    double norm = 0;
    for (size_t m = 0; m < p.logp.size(); ++m) {
      CAPTURE(m);
      const float at = p.logp[m], step = 0x1p-10F;  // exact in float32 at these values
      p.logp[m] = at + step;
      const double above = p.loss(named.objective);
      p.logp[m] = at - step;
      const double below = p.loss(named.objective);
      p.logp[m] = at;
      const double slope = (above - below) / (2 * static_cast<double>(step));
      CHECK(static_cast<double>(dlogp[m]) == doctest::Approx(slope).epsilon(1e-5));
      norm += std::abs(static_cast<double>(dlogp[m]));
    }
    CHECK(norm > 1e-3);
  }
}

TEST_CASE("FieldL1_orpo: extreme log-probabilities agree with long double and stay finite at a probability of one") {
  const Objective orpo{.kind = ObjectiveKind::orpo, .orpo_lambda = 1};
  for (double lw : extremes) {
    for (double lr : extremes) {
      CAPTURE(lw);
      CAPTURE(lr);
      const PairLoss got = pair_loss(orpo, single_tokens(lw, lr));
      for (double value : {got.loss, got.d_chosen, got.d_rejected, got.log_odds}) CHECK(std::isfinite(value));
      CHECK(std::isfinite(static_cast<float>(got.d_chosen)));
      CHECK(got.d_chosen < 0);
      CHECK(got.d_rejected >= 0);
      if (lw == 0 || lr == 0) continue;  // the exact odds are infinite
      const ExactOdds exact(static_cast<long double>(lw), static_cast<long double>(lr));
      CHECK(close(got.log_odds, exact.log_odds));
      CHECK(close(-got.log_odds_ratio, exact.loss));
      CHECK(close(got.loss, exact.loss - static_cast<long double>(lw)));
      CHECK(close(got.d_chosen, exact.d_lw - 1));
      CHECK(close(got.d_rejected, exact.d_lr));
    }
  }
}

TEST_CASE("orpo: at a chosen probability of one the gradient is the limit, the odds of the rejected answer") {
  const PairLoss got = pair_loss({.kind = ObjectiveKind::orpo, .orpo_lambda = 1}, single_tokens(0, -1));
  const double odds = std::exp(-1.0) / -std::expm1(-1.0);
  CHECK(got.d_chosen == doctest::Approx(-1 - odds).epsilon(1e-6));
  CHECK(got.loss == doctest::Approx(0).epsilon(1e-7));
}

TEST_CASE("FieldL2_orpo: no constant biases the loss") {
  for (double x : {-0.01, -0.1, -1e-5}) {
    const PairLoss got = pair_loss({.kind = ObjectiveKind::orpo}, single_tokens(x, -0.02));
    const ExactOdds exact(static_cast<long double>(x), -0.02L);
    CHECK(got.loss ==
          doctest::Approx(static_cast<double>(-static_cast<long double>(x) + 0.1L * exact.loss)).epsilon(1e-12));
  }
  CHECK(log1mexp(-0.01) == doctest::Approx(-4.61016601932489692).epsilon(1e-14));  // mpmath, 50 digits
  CHECK(log1mexp(-1e-8) == doctest::Approx(-18.4206807489523655).epsilon(1e-14));
  CHECK(log1mexp(-50) == doctest::Approx(-1.92874984796391778e-22).epsilon(1e-14));
}

TEST_CASE("FieldL6_orpo: with lambda 0 loss and gradient are those of SFT on chosen, bit for bit") {
  const Problem p;
  for (SftScope scope : {SftScope::response, SftScope::full}) {
    std::vector<float> orpo(p.logp.size(), NAN), sft(p.logp.size(), NAN);
    const double orpo_loss = p.loss({.kind = ObjectiveKind::orpo, .orpo_lambda = 0, .sft_scope = scope}, orpo);
    CHECK(orpo_loss == p.loss({.kind = ObjectiveKind::sft, .sft_scope = scope}, sft));
    for (size_t m = 0; m < p.logp.size(); ++m) {
      CHECK(orpo[m] == sft[m]);
      CHECK(std::signbit(orpo[m]) == std::signbit(sft[m]));
    }
  }
}

TEST_CASE("FieldL20_dpo: where policy and reference agree the loss is ln 2 and the margin 0") {
  const PairLoss got = pair_loss({.kind = ObjectiveKind::dpo}, single_tokens(-3, -5), {-3, -5});
  CHECK(got.loss == doctest::Approx(std::log(2.0)).epsilon(1e-15));
  CHECK(got.reward_chosen == 0);
  CHECK(got.reward_rejected == 0);
  CHECK(got.d_chosen == doctest::Approx(-0.05));
}

TEST_CASE("FieldL7_kto: the gradient of rated answers is not zero and agrees with finite differences") {
  const std::vector<PairTarget> targets = {
      {0, Part::chosen}, {0, Part::chosen}, {1, Part::rejected}, {2, Part::chosen}, {3, Part::rejected}};
  const std::vector<PairReference> reference = {{-1.25, 0}, {-0.5, 0}, {-4, 0}, {-0.75, 0}};
  std::vector<float> logp = {-0.5F, -1.5F, -2.0F, -0.25F, -1.0F}, dlogp(logp.size(), NAN);
  const Objective kto{.kind = ObjectiveKind::kto, .desirable_weight = 1.5, .undesirable_weight = 0.75};
  PreferenceMetrics metrics;
  const auto loss = [&](std::span<float> d, PreferenceMetrics& m) {
    return preference_loss(kto,
                           {.targets = targets,
                            .logp = logp,
                            .dlogp = d,
                            .num_pairs = 4,
                            .reference = reference,
                            .scale = 0.25,
                            .kl = 0.5},
                           m);
  };
  // By the definition: z = +-beta (r - kl), r = 2: -0.75, -1.5, 3.75, -0.25.
  const auto value = [](double z) { return 1 / (1 + std::exp(z)); };
  CHECK(loss(dlogp, metrics) ==
        doctest::Approx(0.25 * (1.5 * (value(-0.125) + value(0.325)) + 0.75 * (value(0.2) + value(0.075)))));
  for (size_t m = 0; m < logp.size(); ++m) {
    const float at = logp[m], step = 0x1p-6F;
    PreferenceMetrics unused;
    logp[m] = at + step;
    const double above = loss({}, unused);
    logp[m] = at - step;
    const double below = loss({}, unused);
    logp[m] = at;
    CHECK(static_cast<double>(dlogp[m]) ==
          doctest::Approx((above - below) / (2 * static_cast<double>(step))).epsilon(1e-5));
    CHECK(std::abs(dlogp[m]) > 1e-4F);
  }
  const Json json = metrics.json(kto);
  CHECK(json["rewards/chosen"].get<double>() == doctest::Approx(0.1 * (-0.75 + 3.75) / 2));
  CHECK(json["rewards/rejected"].get<double>() == doctest::Approx(0.1 * (-1.5 - 0.25) / 2));
  CHECK(json["kl"].get<double>() == 0.5);
  CHECK(!json.contains("rewards/accuracies"));
}

TEST_CASE("FieldL1_all: every objective stays finite where answers are certain or hopeless") {
  for (const Named& named : objectives()) {
    CAPTURE(named.name);
    for (double lw : extremes) {
      for (double lr : extremes) {
        const PairLoss got = pair_loss(named.objective, single_tokens(lw, lr), {-1, -1});
        for (double value : {got.loss, got.d_chosen, got.d_rejected, got.reward_chosen, got.reward_rejected})
          CHECK(std::isfinite(value));
      }
    }
  }
  for (double l : extremes) {
    const PairLoss got =
        rated_loss({.kind = ObjectiveKind::kto}, {.chosen = l, .num_chosen = 1}, /*reference=*/-1, /*kl=*/0);
    CHECK(std::isfinite(got.loss));
    CHECK(std::isfinite(got.d_chosen));
  }
}

TEST_CASE("FieldL1_sigmoid: the logistic losses agree with long double at extreme arguments") {
  const auto softplus = [](long double z) { return z > 0 ? z + log1pl(expl(-z)) : log1pl(expl(z)); };
  const auto sigmoid = [](long double z) { return z > 0 ? 1 / (1 + expl(-z)) : expl(z) / (1 + expl(z)); };
  using K = ObjectiveKind;
  for (double lw : extremes) {
    for (double lr : extremes) {
      const long double h = static_cast<long double>(lw) - static_cast<long double>(lr);
      const PairLoss dpo = pair_loss({.kind = K::dpo}, single_tokens(lw, lr));
      CHECK(close(dpo.loss, softplus(-h * 0.1L)));
      CHECK(close(dpo.d_chosen, -0.1L * sigmoid(-h * 0.1L)));
      const PairLoss simpo = pair_loss({.kind = K::simpo, .beta = 2, .simpo_gamma = 0.5}, single_tokens(lw, lr));
      CHECK(close(simpo.loss, softplus(0.5L - 2 * h)));
      CHECK(close(simpo.d_rejected, 2 * sigmoid(0.5L - 2 * h)));
    }
  }
}

TEST_CASE("objective: losses have the values of their definitions") {
  const PairLogps l{.prompt = -4, .chosen = -2, .rejected = -6, .num_prompt = 2, .num_chosen = 4, .num_rejected = 3};
  const PairReference r{-3, -5};  // h = 4 - 2 = 2 for sums
  const auto loss = [&](const Objective& o) { return pair_loss(o, l, r).loss; };
  const auto softplus = [](double z) { return std::log(1 + std::exp(z)); };
  using K = ObjectiveKind;
  CHECK(loss({.kind = K::sft}) == doctest::Approx(0.5));
  CHECK(loss({.kind = K::sft, .sft_scope = SftScope::full}) == doctest::Approx(1.0));
  CHECK(loss({.kind = K::dpo}) == doctest::Approx(softplus(-0.2)));
  CHECK(loss({.kind = K::dpo, .reference_free = true}) == doctest::Approx(softplus(-0.4)));
  CHECK(loss({.kind = K::dpo, .label_smoothing = 0.25}) ==
        doctest::Approx(0.75 * softplus(-0.2) + 0.25 * softplus(0.2)));
  CHECK(loss({.kind = K::dpo, .dpo_loss = DpoLoss::robust, .label_smoothing = 0.25}) ==
        doctest::Approx((0.75 * softplus(-0.2) - 0.25 * softplus(0.2)) / 0.5));
  CHECK(loss({.kind = K::dpo, .dpo_loss = DpoLoss::hinge}) == doctest::Approx(0.8));
  CHECK(loss({.kind = K::dpo, .dpo_loss = DpoLoss::ipo_sum}) == doctest::Approx(9));
  const double h_mean = (-2.0 / 4 + 3.0 / 4) - (-6.0 / 3 + 5.0 / 3);
  CHECK(loss({.kind = K::dpo, .dpo_loss = DpoLoss::ipo_mean}) == doctest::Approx((h_mean - 5) * (h_mean - 5)));
  CHECK(loss({.kind = K::simpo, .beta = 2, .simpo_gamma = 1}) == doctest::Approx(softplus(-(2 * 1.5 - 1))));
  CHECK(loss({.kind = K::slic}) == doctest::Approx(0.6));
  CHECK(loss({.kind = K::cpo}) == doctest::Approx(0.5 + softplus(-0.4)));
}

TEST_CASE("objective: metrics are means over pairs under the names of TRL") {
  const Problem p;
  PreferenceMetrics metrics;
  p.loss({.kind = ObjectiveKind::dpo}, {}, &metrics);
  const Json dpo = metrics.json({.kind = ObjectiveKind::dpo}, "eval_");
  CHECK(dpo["eval_logps/chosen"].get<double>() == doctest::Approx((-2.5 - 2.0) / 2));
  CHECK(dpo["eval_logps/rejected"].get<double>() == doctest::Approx((-3.375 - 2.0) / 2));
  CHECK(dpo["eval_rewards/chosen"].get<double>() == doctest::Approx(0.1 * (0.5 - 0.5) / 2));
  CHECK(dpo["eval_rewards/rejected"].get<double>() == doctest::Approx(0.1 * (-0.625 + 0.25) / 2));
  CHECK(dpo["eval_rewards/margins"].get<double>() == doctest::Approx(0.1 * 0.375 / 2));
  CHECK(dpo["eval_rewards/accuracies"].get<double>() == doctest::Approx(0.5));
  CHECK(!dpo.contains("eval_nll_loss"));
  const Objective orpo{.kind = ObjectiveKind::orpo};
  PreferenceMetrics odds;
  p.loss(orpo, {}, &odds);
  const Json json = odds.json(orpo);
  for (const char* name : {"nll_loss", "log_odds_ratio", "log_odds_chosen", "logps/chosen", "rewards/accuracies"})
    CHECK(json.contains(name));
  CHECK(json["logps/chosen"].get<double>() == doctest::Approx((-2.5 / 3 - 2.0) / 2));  // means, as ORPO compares them
}

}  // namespace sluice
