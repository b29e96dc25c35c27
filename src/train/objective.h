// Losses over preference pairs, as functions of the log-probabilities of their target tokens. Derivations: docs/math/preference.md.
//
//   PreferenceMetrics metrics;
//   const Objective orpo{.kind = ObjectiveKind::orpo, .orpo_lambda = 0.1};
//   double loss = preference_loss(orpo, {.targets = targets, .logp = logp, .dlogp = dlogp, .num_pairs = 2, .scale = 1.0 / pairs_in_step}, metrics);
//
// Of a pair: S_w and S_r are the sums over the tokens of the chosen and the rejected answer, lw and lr their means, S_p the sum over the
// prompt's tokens; n_w, n_r, n_p the counts. h = (S_w - S_r) - (Sref_w - Sref_r), without the reference terms when reference_free.
//
//   sft     NLL                                        NLL = -lw (response), -(S_p + S_w)/(n_p + n_w) (full)
//   dpo     sigmoid: -(1-e) log s(b h) - e log s(-b h), e = label_smoothing   Rafailov et al. 2023, arXiv:2305.18290, eq. 7
//           robust:  the same over 1 - 2e, the second term subtracted         Chowdhury et al. 2024, arXiv:2403.00409
//           hinge:   max(0, 1 - b h)                                          Zhao et al. 2023, arXiv:2305.10425
//           ipo_sum, ipo_mean: (h - 1/(2b))^2, h of sums or of means          Azar et al. 2023, arXiv:2310.12036, eq. 17
//   orpo    NLL - lambda log s(log_odds), log_odds = logit(e^lw) - logit(e^lr)  Hong et al. 2024, arXiv:2403.07691, eq. 6-7
//   simpo   -log s(b (lw - lr) - gamma)                                       Meng et al. 2024, arXiv:2405.14734, eq. 6
//   slic    max(0, 1 - b (S_w - S_r))                                         Zhao et al. 2023, eq. 1 with margin 1/b, divided by it
//   cpo     NLL - log s(b (S_w - S_r))                                        Xu et al. 2024, arXiv:2401.08417, eq. 4-6
//   kto     w (1 - s(b (r - z))) of a desirable answer, w' (1 - s(b (z - r))) of another, r = S - Sref   Ethayarajh et al. 2024,
//           arXiv:2402.01306, eq. 7-8; z is `kl`. Each row has one answer: a "pair" with a chosen or a rejected part, never both.
//
// The loss of a step is the mean over its pairs. Sums are taken in the order of the targets, in double; loss and gradient do not depend on
// where in the batch a pair lies.
#pragma once

#include <span>
#include <vector>

#include "core/json.h"
#include "data/pair_target.h"

namespace sluice {

enum class ObjectiveKind : uint8_t { sft, dpo, orpo, simpo, slic, cpo, kto };
enum class DpoLoss : uint8_t { sigmoid, robust, hinge, ipo_sum, ipo_mean };
enum class SftScope : uint8_t { response, full };

struct Objective {
  ObjectiveKind kind = ObjectiveKind::sft;
  DpoLoss dpo_loss = DpoLoss::sigmoid;
  double beta = 0.1;            // > 0; simpo: 2 is usual
  double label_smoothing = 0;   // 0 <= e < 0.5
  bool reference_free = false;  // dpo without a reference
  double orpo_lambda = 0.1;     // >= 0
  double simpo_gamma = 0.5;
  SftScope sft_scope = SftScope::response;              // of the NLL in sft, orpo and cpo
  double desirable_weight = 1, undesirable_weight = 1;  // kto

  bool needs_reference() const { return kind == ObjectiveKind::kto || (kind == ObjectiveKind::dpo && !reference_free); }
  bool trains_prompt() const {
    return sft_scope == SftScope::full &&
           (kind == ObjectiveKind::sft || kind == ObjectiveKind::orpo || kind == ObjectiveKind::cpo);
  }
};

struct PairLogps {
  double prompt = 0, chosen = 0, rejected = 0;  // sums
  int64_t num_prompt = 0, num_chosen = 0, num_rejected = 0;
};

// Sums of the log-probabilities of the answers under the reference policy. Of a rated row: `chosen` is its answer, whatever its label, and
// `rejected` the mismatched one.
struct PairReference {
  double chosen = 0, rejected = 0;
};

// The loss of one pair, its derivatives with respect to the log-probability of a token of each part (all tokens of a part share one), and
// what the metrics are made of: sums or means, as the objective uses them.
struct PairLoss {
  double loss = 0, d_prompt = 0, d_chosen = 0, d_rejected = 0;
  double nll = 0, log_odds = 0, log_odds_ratio = 0;
  double logp_chosen = 0, logp_rejected = 0, reward_chosen = 0, reward_rejected = 0;
};
PairLoss pair_loss(const Objective& objective, const PairLogps& logps, const PairReference& reference = {});

// The same of one rated answer: of the part that `logps` has. kl >= 0 is no function of the policy.
PairLoss rated_loss(const Objective& objective, const PairLogps& logps, double reference, double kl);

// Sums of terms over pairs, under TRL's names when printed: means, of a part over the pairs that have it.
struct PreferenceMetrics {
  int64_t pairs = 0, with_chosen = 0, with_rejected = 0;
  double loss = 0, nll = 0, log_odds = 0, log_odds_ratio = 0;
  double logp_chosen = 0, logp_rejected = 0, reward_chosen = 0, reward_rejected = 0;
  double accuracy = 0;  // pairs whose chosen answer has the higher reward
  double kl = 0;        // kto

  void add(const PairLoss& pair, const PairLogps& logps);
  // loss apart: "rewards/chosen", …; nll_loss, log_odds_ratio and log_odds_chosen where the objective has them. `prefix`: "eval_" for validation.
  Json json(const Objective& objective, const std::string& prefix = "") const;
};

struct PreferenceLoss {
  std::span<const PairTarget> targets;  // [M]
  std::span<const float> logp;          // [M]
  std::span<float> dlogp;               // [M] out   empty for the metrics alone
  int64_t num_pairs = 0;                // each with a target of the chosen and, but for sft, of the rejected answer
  std::span<const PairReference> reference = {};  // [num_pairs] where the objective needs it
  double scale = 1;                               // on the loss and its gradient: 1 / pairs of the step
  double kl = 0;                                  // kto
};
// Returns scale times the sum of the pairs' losses, and adds every pair to `metrics`.
double preference_loss(const Objective& objective, const PreferenceLoss& args, PreferenceMetrics& metrics);

// log(1 - e^x) for x < 0, exact to rounding near 0 and far from it. Maechler 2012, "Accurately computing log(1 - exp(-|a|))".
double log1mexp(double x);

}  // namespace sluice
