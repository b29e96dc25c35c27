// Preference objectives on whole models against the oracle's float64 numbers, with the prompt computed once and with two separate roots.
// Tolerances: tests/oracle/README.md.
#include "support/oracle_model.h"

#include <random>

#include "train/run_rows.h"

namespace sluice::test {

namespace {

constexpr double fp32_logp = 3e-4, fp32_loss = 2e-5;

struct Case {
  std::string name;
  Objective objective;
};

// The oracle's constants: meta.json, objective_constants.
std::vector<Case> cases() {
  using K = ObjectiveKind;
  return {{"dpo", {.kind = K::dpo}},
          {"orpo_full", {.kind = K::orpo, .sft_scope = SftScope::full}},
          {"orpo_response", {.kind = K::orpo}},
          {"simpo", {.kind = K::simpo, .beta = 2, .simpo_gamma = 1}},
          {"ipo_sum", {.kind = K::dpo, .dpo_loss = DpoLoss::ipo_sum}},
          {"ipo_mean", {.kind = K::dpo, .dpo_loss = DpoLoss::ipo_mean}},
          {"hinge", {.kind = K::dpo, .dpo_loss = DpoLoss::hinge, .beta = 0.02}},
          {"slic", {.kind = K::slic, .beta = 0.02}}};
}

PairSample pair_of(const OracleModel& m, const std::string& name = "pref0") {
  PairSample pair;
  const auto fill = [&](Sample& sample, const std::string& branch) {
    const OracleSample s = m.sample(name + "_" + branch);
    sample.ids = s.ids;
    sample.supervised.assign(s.ids.size(), 0);
    std::fill(sample.supervised.begin() + s.prompt_len, sample.supervised.end(), uint8_t{1});
    pair.shared = s.prompt_len;
  };
  fill(pair.chosen, "chosen");
  fill(pair.rejected, "rejected");
  return pair;
}

struct Result {
  double loss = 0;
  std::vector<float> chosen, grads;  // chosen: its log-probabilities
  std::vector<PairReference> reference;
  PreferenceMetrics metrics;
};

std::vector<PairReference> reference_of(Context& ctx, OracleModel& m, const PreferenceBatch& batch,
                                        const StepSettings& settings, bool rated) {
  const std::vector<float> logp = forward_logps(ctx, *m.model, {}, step_batch(batch.tokens), settings);
  std::vector<PairReference> reference(static_cast<size_t>(batch.num_pairs));
  for (size_t i = 0; i < logp.size(); ++i) {
    PairReference& r = reference[static_cast<size_t>(batch.labels[i].pair)];
    if (batch.labels[i].part == Part::prompt) continue;
    (rated || batch.labels[i].part == Part::chosen ? r.chosen : r.rejected) += static_cast<double>(logp[i]);
  }
  return reference;
}

Result run(Context& ctx, OracleModel& m, const Objective& objective, const PreferenceBatch& batch,
           const Schedule& schedule, DType dtype = DType::f32) {
  const StepSettings settings{.schedule = schedule, .dtype = dtype};
  const std::vector<PairReference> reference =
      objective.needs_reference() ? reference_of(ctx, m, batch, settings, objective.kind == ObjectiveKind::kto)
                                  : std::vector<PairReference>();
  Result result;
  std::fill(m.grads.begin(), m.grads.end(), 0.0F);
  result.loss = forward_backward(ctx, *m.model, m.weights(), m.gradient(), step_batch(batch.tokens), settings,
                                 [&](std::span<const float> logp, std::span<float> dlogp) {
                                   for (size_t i = 0; i < logp.size(); ++i) {
                                     if (batch.labels[i].part == Part::chosen) result.chosen.push_back(logp[i]);
                                   }
                                   return preference_loss(objective,
                                                          {.targets = batch.labels,
                                                           .logp = logp,
                                                           .dlogp = dlogp,
                                                           .num_pairs = batch.num_pairs,
                                                           .reference = reference,
                                                           .scale = 1.0 / static_cast<double>(batch.num_pairs)},
                                                          result.metrics);
                                 });
  result.grads = m.grads;
  result.reference = reference;
  return result;
}

void check_terms(const Result& r, const Objective& objective, const Json& about) {
  const Json metrics = r.metrics.json(objective);
  const auto same = [&](const char* ours, const char* theirs) {
    if (!about.contains(theirs)) return;
    CAPTURE(theirs);
    CHECK(std::abs(metrics[ours].get<double>() - about[theirs].get<double>()) <
          20 * fp32_logp);  // sums over some 20 tokens
  };
  same("logps/chosen", "policy_chosen_logps");
  same("logps/rejected", "policy_rejected_logps");
  same("rewards/chosen", "reward_chosen");
  same("rewards/rejected", "reward_rejected");
  same("rewards/margins", "margin");
  same("nll_loss", "nll");
  same("log_odds_chosen", "log_odds");
  same("logps/chosen", "lw");
  same("logps/rejected", "lr");
  if (about.contains("or_term"))
    CHECK(std::abs(-metrics["log_odds_ratio"].get<double>() - about["or_term"].get<double>()) < fp32_logp);
}

// Losses, terms and all gradients of every objective that the fixture has, with the prompt computed once and with two roots.
void check_model(const std::string& name) {
  CAPTURE(name);
  OracleModel m(name);
  TestContext ctx(detect_isa());
  const PairSample pair = pair_of(m);
  const Json& about = m.oracle.meta()["objectives"];
  for (const Case& c : cases()) {
    if (!about.contains(c.name)) continue;
    CAPTURE(c.name);
    std::vector<Result> layouts;
    for (bool share : {true, false}) {
      CAPTURE(share);
      const PreferenceBatch batch =
          pack_pairs({&pair}, {.prompt_targets = c.objective.trains_prompt(), .share_prompt = share});
      layouts.push_back(run(ctx, m, c.objective, batch, m.schedule()));
      const double expected = about[c.name]["loss"].get<double>();
      CHECK(std::abs(layouts.back().loss - expected) < fp32_loss * std::max(1.0, std::abs(expected)));
      check_terms(layouts.back(), c.objective, about[c.name]);
      check_gradients(m, c.name);
    }
    // The chosen answer lies behind its prompt in both layouts, so its log-probabilities are the same bytes. Those of rejected are not: its
    // keys lie elsewhere, and their blocks are added up from other places. Nor are gradients: a shared prompt has one gradient where two roots
    // have two to be added, and sums over tokens have other neighbours.
    CHECK(layouts[0].chosen == layouts[1].chosen);
    CHECK(relative_l2(to_double(layouts[0].grads), to_double(layouts[1].grads)) < 1e-5);
  }
}

bool is_fast(const std::string& name) { return name == "llama-gqa" || name == "gemma4-e4b-like"; }

// The loss of a batch with the adapter moved by t along a direction.
double loss_along(Context& ctx, OracleModel& m, const Objective& objective, const PreferenceBatch& batch,
                  std::span<const PairReference> reference, const std::vector<float>& direction, double t) {
  std::vector<float> moved = m.adapter.flat;
  for (size_t i = 0; i < moved.size(); ++i) moved[i] += static_cast<float>(t) * direction[i];
  const Adapter adapter(m.adapter.layout,
                        {.data = moved.data(), .dtype = DType::f32, .shape = {m.adapter.layout.size()}});
  const Schedule schedule = m.schedule();
  const std::vector<float> logp =
      forward_logps(ctx, *m.model, adapter, step_batch(batch.tokens), {.schedule = schedule, .dtype = DType::f32});
  PreferenceMetrics unused;
  return preference_loss(objective,
                         {.targets = batch.labels,
                          .logp = logp,
                          .dlogp = {},
                          .num_pairs = batch.num_pairs,
                          .reference = reference,
                          .scale = 1.0 / static_cast<double>(batch.num_pairs)},
                         unused);
}

}  // namespace

TEST_CASE(
    "preference oracle: losses, terms and every gradient agree in fp32, with the prompt computed once and with two "
    "roots") {
  for (const std::string& name : oracle_models()) {
    if (is_fast(name)) check_model(name);
  }
}

TEST_CASE("FieldL7_model: with its defaults every objective has a gradient that agrees with a finite difference") {
  OracleModel m("llama-gqa");
  TestContext ctx(detect_isa());
  const PairSample pair = pair_of(m);
  using K = ObjectiveKind;
  for (K kind : {K::sft, K::dpo, K::orpo, K::simpo, K::slic, K::cpo, K::kto}) {
    CAPTURE(static_cast<int>(kind));
    // The fixture's answers lie beyond slic's default margin, where its gradient is zero: its beta is smaller here.
    const Objective objective{.kind = kind, .beta = kind == K::simpo ? 2.0 : kind == K::slic ? 0.02 : 0.1};
    const RatedSample good{.own = pair.chosen, .mismatched = {}, .desirable = true},
        bad{.own = pair.rejected, .mismatched = {}, .desirable = false};
    const PreferenceBatch batch =
        kind == K::kto ? pack_rated({&good, &bad}, RatedAnswer::own) : pack_pairs({&pair}, {});
    const Result r = run(ctx, m, objective, batch, m.schedule());
    CHECK(l2(to_double(r.grads)) > 1e-4);
    // Along the gradient, so that the difference is as large as it can be.
    std::vector<float> direction = r.grads;
    const double norm = l2(to_double(r.grads));
    for (float& d : direction) d = static_cast<float>(static_cast<double>(d) / norm);
    const double t = 1e-3;
    const double slope = (loss_along(ctx, m, objective, batch, r.reference, direction, t) -
                          loss_along(ctx, m, objective, batch, r.reference, direction, -t)) /
                         (2 * t);
    CHECK(slope == doctest::Approx(norm).epsilon(0.01));
  }
}

TEST_CASE(
    "FieldD16_preference: when every token of rejected changes, no bit of the log-probabilities of chosen moves") {
  for (const std::string& name : oracle_models()) {
    if (!is_fast(name) && name != "mistral-like") continue;
    CAPTURE(name);
    OracleModel m(name);
    const PairSample pair = pair_of(m);
    PairSample other = pair;
    for (auto t = static_cast<size_t>(pair.shared); t < other.rejected.ids.size(); ++t)
      other.rejected.ids[t] = (other.rejected.ids[t] + 7) % 256;
    for (DType dtype : {DType::f32, DType::bf16}) {
      TestContext ctx(detect_isa());
      const Schedule schedule = m.schedule();
      const auto chosen = [&](const PairSample& p) {
        const PreferenceBatch batch = pack_pairs({&p, &p}, {.prompt_targets = true});
        const std::vector<float> logp =
            forward_logps(ctx, *m.model, m.weights(), step_batch(batch.tokens), {.schedule = schedule, .dtype = dtype});
        std::vector<float> kept;
        for (size_t i = 0; i < logp.size(); ++i) {
          if (batch.labels[i].part != Part::rejected) kept.push_back(logp[i]);
        }
        return kept;
      };
      CHECK(chosen(pair) == chosen(other));
      // Nor a bit of the gradient of a loss that rejected has no part in.
      const auto gradient = [&](const PairSample& p) {
        const PreferenceBatch batch = pack_pairs({&p, &p}, {.prompt_targets = true});
        return run(ctx, m, {.kind = ObjectiveKind::sft, .sft_scope = SftScope::full}, batch, schedule, dtype).grads;
      };
      CHECK(gradient(pair) == gradient(other));
    }
  }
}

TEST_CASE("FieldL6_orpo on a model: with lambda 0 the gradient is that of SFT on chosen, bit for bit") {
  OracleModel m("llama-gqa");
  TestContext ctx(detect_isa());
  const PairSample pair = pair_of(m);
  for (SftScope scope : {SftScope::response, SftScope::full}) {
    const PreferenceBatch batch = pack_pairs({&pair}, {.prompt_targets = scope == SftScope::full});
    const Result orpo =
        run(ctx, m, {.kind = ObjectiveKind::orpo, .orpo_lambda = 0, .sft_scope = scope}, batch, m.schedule());
    const Result sft = run(ctx, m, {.kind = ObjectiveKind::sft, .sft_scope = scope}, batch, m.schedule());
    CHECK(orpo.loss == sft.loss);
    CHECK(orpo.grads == sft.grads);
  }
}

TEST_CASE("preference: the gradient is the same bytes for every schedule") {
  for (const char* name : {"llama-gqa", "gemma4-e4b-like"}) {
    OracleModel m(name);
    const PairSample pair = pair_of(m), second = pair_of(m, "pref1");
    const PreferenceBatch batch = pack_pairs({&pair, &second, &pair}, {.prompt_targets = true});
    const Objective orpo{.kind = ObjectiveKind::orpo, .sft_scope = SftScope::full};
    std::vector<float> first;
    for (int64_t segment : {1, 2}) {
      for (Level level : {Level::input, Level::all}) {
        for (int threads : {1, 2}) {
          TestContext ctx(detect_isa(), threads);
          Schedule schedule = m.schedule(segment, level);
          schedule.head_rows = threads == 1 ? 7 : 64;
          const Result r = run(ctx, m, orpo, batch, schedule);
          if (first.empty()) first = r.grads;
          CHECK(r.grads == first);
        }
      }
    }
  }
}

TEST_SUITE("full") {
  TEST_CASE("preference oracle, all models: losses, terms and every gradient agree in fp32, in both layouts") {
    for (const std::string& name : oracle_models()) {
      if (!is_fast(name)) check_model(name);
    }
  }
}

}  // namespace sluice::test
