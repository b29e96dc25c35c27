#include "train/objective.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace sluice {

namespace {

// The odds of a probability of one are infinite. Below this, a float32 log-probability says nothing about 1 - p (its spacing at one is
// 2^-24), so ORPO's means are taken to be at most -2^-27, and loss and gradient stay finite for an answer that is certain.
constexpr double largest_mean_logp = -0x1p-27;

double sigmoid(double z) { return z >= 0 ? 1 / (1 + std::exp(-z)) : std::exp(z) / (1 + std::exp(z)); }
double log_sigmoid(double z) { return z >= 0 ? -std::log1p(std::exp(-z)) : z - std::log1p(std::exp(z)); }

struct Value {
  double loss = 0, slope = 0;  // with respect to the argument
};

// h: the gain of the chosen answer over that of the rejected one.
Value dpo_value(const Objective& o, double h) {
  const double z = o.beta * h, e = o.label_smoothing;
  switch (o.dpo_loss) {
    case DpoLoss::sigmoid:
      return {-(1 - e) * log_sigmoid(z) - e * log_sigmoid(-z), o.beta * (e * sigmoid(z) - (1 - e) * sigmoid(-z))};
    case DpoLoss::robust:
      return {(-(1 - e) * log_sigmoid(z) + e * log_sigmoid(-z)) / (1 - 2 * e),
              o.beta * (-e * sigmoid(z) - (1 - e) * sigmoid(-z)) / (1 - 2 * e)};
    case DpoLoss::hinge: return {std::max(0.0, 1 - z), z < 1 ? -o.beta : 0.0};
    case DpoLoss::ipo_sum:
    case DpoLoss::ipo_mean: {
      const double distance = h - 1 / (2 * o.beta);
      return {distance * distance, 2 * distance};
    }
  }
  SLUICE_ASSERT(false);
}

// What the objective compares: sums, or means over the tokens of an answer.
bool compares_means(const Objective& o) {
  return o.kind == ObjectiveKind::orpo || o.kind == ObjectiveKind::simpo ||
         (o.kind == ObjectiveKind::dpo && o.dpo_loss == DpoLoss::ipo_mean);
}

void add_nll(const Objective& o, const PairLogps& l, PairLoss& result) {
  const bool full = o.sft_scope == SftScope::full;
  const double count = static_cast<double>(l.num_chosen + (full ? l.num_prompt : 0));
  result.nll = -(l.chosen + (full ? l.prompt : 0.0)) / count;
  result.loss += result.nll;
  result.d_chosen += -1 / count;
  if (full) result.d_prompt += -1 / count;
}

// Adds a loss of h = chosen - rejected, each a sum (n = 1) or a mean over n tokens.
void add_pairwise(const Value& value, double n_chosen, double n_rejected, PairLoss& result) {
  result.loss += value.loss;
  result.d_chosen += value.slope / n_chosen;
  result.d_rejected += -value.slope / n_rejected;
}

void add_odds_ratio(const Objective& o, double lw, double lr, double n_chosen, double n_rejected, PairLoss& result) {
  lw = std::min(lw, largest_mean_logp);
  lr = std::min(lr, largest_mean_logp);
  result.log_odds = (lw - lr) - (log1mexp(lw) - log1mexp(lr));
  result.log_odds_ratio = log_sigmoid(result.log_odds);
  result.loss += -o.orpo_lambda * result.log_odds_ratio;
  // d logit(e^x) / dx = 1 / (1 - e^x)
  const double slope = -o.orpo_lambda * sigmoid(-result.log_odds);
  result.d_chosen += slope / -std::expm1(lw) / n_chosen;
  result.d_rejected += -slope / -std::expm1(lr) / n_rejected;
}

}  // namespace

PairLoss rated_loss(const Objective& o, const PairLogps& l, double reference, double kl) {
  SLUICE_ASSERT((l.num_chosen > 0) != (l.num_rejected > 0));
  const bool desirable = l.num_chosen > 0;
  const double gain = (desirable ? l.chosen : l.rejected) - reference;
  const double sign = desirable ? 1 : -1, weight = desirable ? o.desirable_weight : o.undesirable_weight;
  const double z = sign * o.beta * (gain - kl);
  PairLoss result{.loss = weight * sigmoid(-z)};
  // d (1 - s(z)) / dz = -s(z) s(-z)
  const double slope = -sign * weight * o.beta * sigmoid(z) * sigmoid(-z);
  (desirable ? result.d_chosen : result.d_rejected) = slope;
  result.logp_chosen = l.chosen;
  result.logp_rejected = l.rejected;
  (desirable ? result.reward_chosen : result.reward_rejected) = o.beta * gain;
  return result;
}

double log1mexp(double x) { return x > -std::numbers::ln2 ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x)); }

PairLoss pair_loss(const Objective& o, const PairLogps& l, const PairReference& reference) {
  SLUICE_ASSERT(l.num_chosen > 0 && (l.num_rejected > 0 || o.kind == ObjectiveKind::sft));
  PairLoss result;
  const bool means = compares_means(o);
  const double n_chosen = means ? static_cast<double>(l.num_chosen) : 1.0;
  const double n_rejected = means ? static_cast<double>(l.num_rejected) : 1.0;
  result.logp_chosen = l.chosen / n_chosen;
  result.logp_rejected = l.rejected / n_rejected;
  const bool referred = o.needs_reference();
  const double gain_chosen = result.logp_chosen - (referred ? reference.chosen / n_chosen : 0.0);
  const double gain_rejected = result.logp_rejected - (referred ? reference.rejected / n_rejected : 0.0);
  const double h = gain_chosen - gain_rejected;
  const double reward_scale = o.kind == ObjectiveKind::orpo ? o.orpo_lambda : o.beta;
  result.reward_chosen = reward_scale * gain_chosen;
  result.reward_rejected = reward_scale * gain_rejected;
  switch (o.kind) {
    case ObjectiveKind::sft: add_nll(o, l, result); break;
    case ObjectiveKind::dpo: add_pairwise(dpo_value(o, h), n_chosen, n_rejected, result); break;
    case ObjectiveKind::orpo:
      add_nll(o, l, result);
      add_odds_ratio(o, result.logp_chosen, result.logp_rejected, n_chosen, n_rejected, result);
      break;
    case ObjectiveKind::simpo: {
      const double z = o.beta * h - o.simpo_gamma;
      add_pairwise({-log_sigmoid(z), -o.beta * sigmoid(-z)}, n_chosen, n_rejected, result);
      break;
    }
    case ObjectiveKind::slic:
      add_pairwise({std::max(0.0, 1 - o.beta * h), o.beta * h < 1 ? -o.beta : 0.0}, n_chosen, n_rejected, result);
      break;
    case ObjectiveKind::cpo:
      add_nll(o, l, result);
      add_pairwise({-log_sigmoid(o.beta * h), -o.beta * sigmoid(-o.beta * h)}, n_chosen, n_rejected, result);
      break;
    case ObjectiveKind::kto: SLUICE_ASSERT(false);  // rated_loss
  }
  return result;
}

double preference_loss(const Objective& objective, const PreferenceLoss& args, PreferenceMetrics& metrics) {
  SLUICE_ASSERT(args.targets.size() == args.logp.size());
  SLUICE_ASSERT(args.dlogp.empty() || args.dlogp.size() == args.logp.size());
  const auto num_pairs = static_cast<size_t>(args.num_pairs);
  SLUICE_ASSERT(!objective.needs_reference() || args.reference.size() == num_pairs);
  std::vector<PairLogps> logps(num_pairs);
  for (size_t m = 0; m < args.targets.size(); ++m) {
    PairLogps& pair = logps[static_cast<size_t>(args.targets[m].pair)];
    const double value = static_cast<double>(args.logp[m]);
    switch (args.targets[m].part) {
      case Part::prompt: pair.prompt += value, ++pair.num_prompt; break;
      case Part::chosen: pair.chosen += value, ++pair.num_chosen; break;
      case Part::rejected: pair.rejected += value, ++pair.num_rejected; break;
    }
  }
  double loss = 0;
  std::vector<PairLoss> losses;
  for (size_t i = 0; i < num_pairs; ++i) {
    const PairReference reference = args.reference.empty() ? PairReference{} : args.reference[i];
    losses.push_back(objective.kind == ObjectiveKind::kto ? rated_loss(objective, logps[i], reference.chosen, args.kl)
                                                          : pair_loss(objective, logps[i], reference));
    metrics.add(losses.back(), logps[i]);
    metrics.kl += args.kl;
    loss += args.scale * losses.back().loss;
  }
  for (size_t m = 0; m < args.dlogp.size(); ++m) {
    const PairLoss& pair = losses[static_cast<size_t>(args.targets[m].pair)];
    const Part part = args.targets[m].part;
    const double d = part == Part::prompt ? pair.d_prompt : part == Part::chosen ? pair.d_chosen : pair.d_rejected;
    args.dlogp[m] = static_cast<float>(args.scale * d);
  }
  return loss;
}

void PreferenceMetrics::add(const PairLoss& p, const PairLogps& logps) {
  ++pairs;
  with_chosen += logps.num_chosen > 0 ? 1 : 0;
  with_rejected += logps.num_rejected > 0 ? 1 : 0;
  loss += p.loss;
  nll += p.nll;
  log_odds += p.log_odds;
  log_odds_ratio += p.log_odds_ratio;
  logp_chosen += p.logp_chosen;
  logp_rejected += p.logp_rejected;
  reward_chosen += p.reward_chosen;
  reward_rejected += p.reward_rejected;
  accuracy += p.reward_chosen > p.reward_rejected ? 1 : 0;
}

Json PreferenceMetrics::json(const Objective& objective, const std::string& prefix) const {
  using K = ObjectiveKind;
  Json object = Json::object();
  const auto put = [&](const char* name, double sum, int64_t count) {
    if (count > 0) object[prefix + name] = sum / static_cast<double>(count);
  };
  if (objective.kind != K::sft) {
    put("rewards/chosen", reward_chosen, with_chosen);
    put("rewards/rejected", reward_rejected, with_rejected);
    if (objective.kind == K::kto) {
      if (with_chosen > 0 && with_rejected > 0) {
        object[prefix + "rewards/margins"] =
            reward_chosen / static_cast<double>(with_chosen) - reward_rejected / static_cast<double>(with_rejected);
      }
      put("kl", kl, pairs);
    } else {
      put("rewards/margins", reward_chosen - reward_rejected, pairs);
      put("rewards/accuracies", accuracy, pairs);
    }
    put("logps/rejected", logp_rejected, with_rejected);
  }
  put("logps/chosen", logp_chosen, with_chosen);
  if (objective.kind == K::orpo || objective.kind == K::cpo || objective.kind == K::sft) put("nll_loss", nll, pairs);
  if (objective.kind == K::orpo) {
    put("log_odds_ratio", log_odds_ratio, pairs);
    put("log_odds_chosen", log_odds, pairs);
  }
  return object;
}

}  // namespace sluice
