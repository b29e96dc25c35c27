// Whole models against the oracle's float64 numbers. Tolerances: tests/oracle/README.md. ORACLE_DIR selects other fixtures.
#include "support/oracle_model.h"

#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rmsnorm/rmsnorm.h"

namespace sluice::test {

namespace {

constexpr double fp32_logp = 3e-4, fp32_loss = 2e-5, fp32_hidden = 2e-5;

bool has_gradients(const Oracle& oracle, const std::string& objective) {
  for (const auto& [name, tensor] : oracle.tensors()) {
    if (name.starts_with("grad/" + objective + "/")) return true;
  }
  return false;
}

// All gradients of an objective as one vector: relative L2.
double whole_gradient_error(const OracleModel& m, const std::string& objective) {
  std::vector<double> ours, exact;
  for (const AdapterLayout::Entry& e : m.adapter.layout.entries()) {
    for (bool b : {false, true}) {
      const std::string name = "grad/" + objective + "/" + module_name(e.layer, e.module) + (b ? "/B" : "/A");
      if (!m.oracle.has(name)) continue;
      const std::vector<double> mine = m.module_grad(e, b), &theirs = m.oracle.values(name);
      ours.insert(ours.end(), mine.begin(), mine.end());
      exact.insert(exact.end(), theirs.begin(), theirs.end());
    }
  }
  return relative_l2(ours, exact);
}

// How far the reference's log-probabilities in bf16 are from the truth: the mean over the tokens of its worst sample.
double reference_logp_error(const Json& bf16_vs_truth) {
  double worst = 0;
  for (const auto& [key, value] : bf16_vs_truth.items()) {
    if (key.starts_with("base_logp_") && key.ends_with("_mean_abs")) worst = std::max(worst, value.get<double>());
  }
  return worst;
}

std::vector<double> logits_of(Context& ctx, OracleModel& m, const OracleSample& s, bool lora) {
  const Spans spans = Spans::one(static_cast<int64_t>(s.ids.size()));
  const Schedule plan = m.schedule();
  const auto T = static_cast<int64_t>(s.ids.size());
  Buffer logits(DType::f32, {T, m.model->config.vocab_size});
  forward_hidden(
      ctx, *m.model, lora ? m.weights() : Adapter(), {.ids = s.ids, .spans = spans, .rows = {}, .targets = {}},
      {.schedule = plan, .dtype = DType::f32}, [&](int64_t layer, Tensor x) {
        if (layer != m.model->config.num_layers) return;
        ArenaScope scope(ctx.arena);
        Tensor h = scope.like(x);
        rmsnorm_forward(ctx, {.x = x,
                              .weight = m.model->final_norm,
                              .y = h,
                              .eps = m.model->config.rms_norm_eps,
                              .offset = m.model->config.norm_offset});
        head_logits(ctx, {.weight = m.model->head, .h = h, .softcap = m.model->config.final_softcap, .logits = logits});
      });
  return to_double(logits.tensor);
}

}  // namespace

TEST_CASE("model oracle: logits and log-probabilities agree in fp32, with and without the adapter") {
  for (const std::string& name : oracle_models()) {
    CAPTURE(name);
    OracleModel m(name);
    for (Isa isa : built_isas()) {
      TestContext ctx(isa);
      for (const auto& [tensor, expected] : m.oracle.tensors()) {
        const bool lora = tensor.starts_with("lora/");
        CAPTURE(tensor);
        if (tensor == "base/logits/len5" || tensor == "lora/logits/len5") {
          CHECK(max_difference(logits_of(ctx, m, m.sample("len5"), lora), expected.values) < fp32_logp);
        } else if (tensor.starts_with("base/logp/") || tensor.starts_with("lora/logp/")) {
          CHECK(max_difference(m.logps(ctx, m.sample(tensor.substr(10)), lora, DType::f32), expected.values) <
                fp32_logp);
        }
      }
    }
  }
}

TEST_CASE("model oracle: hidden states of every layer agree in fp32") {
  for (const std::string& name : oracle_models()) {
    CAPTURE(name);
    OracleModel m(name);
    TestContext ctx(detect_isa());
    const OracleSample s = m.sample("sft0");
    const Spans spans = Spans::one(static_cast<int64_t>(s.ids.size()));
    const Schedule plan = m.schedule();
    forward_hidden(ctx, *m.model, {}, {.ids = s.ids, .spans = spans, .rows = {}, .targets = {}},
                   {.schedule = plan, .dtype = DType::f32}, [&](int64_t layer, Tensor x) {
                     const std::string tensor = "base/hidden/sft0/" + std::to_string(layer);
                     CAPTURE(tensor);
                     if (m.oracle.has(tensor)) CHECK(relative_l2(to_double(x), m.oracle.values(tensor)) < fp32_hidden);
                   });
  }
}

TEST_CASE("model oracle: SFT losses and every adapter gradient agree in fp32") {
  for (const std::string& name : oracle_models()) {
    CAPTURE(name);
    OracleModel m(name);
    for (Isa isa : built_isas()) {
      TestContext ctx(isa);
      for (const auto& [objective, about] : m.oracle.meta()["objectives"].items()) {
        if (!objective.starts_with("sft_")) continue;
        CAPTURE(objective);
        std::vector<OracleSample> samples = {m.sample("sft0")};
        if (objective == "sft_batch2") samples = {m.sample("sft1"), m.sample("sft2")};
        const double loss = m.sft(ctx, samples, objective == "sft_full", DType::f32, m.schedule());
        const double exact = about["loss"].get<double>();
        CHECK(std::abs(loss - exact) < fp32_loss * std::max(1.0, std::abs(exact)));
        check_gradients(m, objective);
      }
    }
  }
}

TEST_CASE("model oracle: in bf16 the error is at most twice that of the reference implementation in bf16") {
  for (const std::string& name : oracle_models()) {
    CAPTURE(name);
    OracleModel m(name);
    if (!m.oracle.meta().contains("bf16_vs_truth")) continue;
    const Json& theirs = m.oracle.meta()["bf16_vs_truth"];
    const double bound = 2 * reference_logp_error(theirs);
    TestContext ctx(detect_isa());
    for (const char* sample : {"len5", "len9", "len24", "len48"}) {
      const std::string tensor = "base/logp/" + std::string(sample);
      if (!m.oracle.has(tensor)) continue;
      CAPTURE(sample);
      CHECK(mean_abs_difference(m.logps(ctx, m.sample(sample), false, DType::bf16), m.oracle.values(tensor)) < bound);
    }
    if (!has_gradients(m.oracle, "sft_response") || !theirs.contains("sft_response")) continue;
    // A loss is a mean of log-probabilities.
    const double loss = m.sft(ctx, {m.sample("sft0")}, false, DType::bf16, m.schedule());
    CHECK(std::abs(loss - m.oracle.meta()["objectives"]["sft_response"]["loss"].get<double>()) < bound);
    const double error = whole_gradient_error(m, "sft_response"),
                 reference = theirs["sft_response"]["all_grads_rel_l2"].get<double>();
    MESSAGE(name, ": gradient error in bf16 ", error, ", the reference's ", reference);
    CHECK(error < 2 * reference);
  }
}

namespace {

// Loss and gradients of one model under many plans, compared by bytes. `repeats` of two samples make several row chunks.
void check_plans(const std::string& name, int repeats, const std::vector<DType>& dtypes,
                 const std::vector<Level>& levels) {
  CAPTURE(name);
  OracleModel m(name);
  const int64_t L = m.model->config.num_layers;
  std::vector<OracleSample> samples;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (const char* s : {"sft0", "len48"}) samples.push_back(m.sample(s));
  }
  for (OracleSample& s : samples) s.prompt_len = std::max<int64_t>(s.prompt_len, 5);
  for (DType dtype : dtypes) {
    std::vector<float> first;
    double first_loss = 0;
    const auto check_same = [&](const Schedule& plan, int threads) {
      TestContext ctx(detect_isa(), threads);
      const double loss = m.sft(ctx, samples, false, dtype, plan, {.p = 0.1F, .seed = 7, .step = 3});
      if (first.empty()) first = m.grads, first_loss = loss;
      CHECK(loss == first_loss);
      for (const AdapterLayout::Entry& e : m.adapter.layout.entries()) {
        CAPTURE(module_name(e.layer, e.module));
        const auto same = [&](int64_t begin, int64_t count) {
          return std::equal(first.begin() + begin, first.begin() + begin + count, m.grads.begin() + begin);
        };
        CHECK(same(e.a_offset, e.rank * e.in));
        CHECK(same(e.b_offset, e.out * e.rank));
      }
    };
    for (int64_t segment : {int64_t{1}, int64_t{2}, int64_t{5}, L}) {
      for (Level level : levels) {
        CAPTURE(segment);
        CAPTURE(static_cast<int>(level));
        check_same(m.schedule(segment, level), 2);
      }
    }
    check_same(m.schedule(), 1);
    for (int64_t tile : {2 * row_chunk, 8 * row_chunk}) {
      CAPTURE(tile);
      Schedule plan = m.schedule(2, Level::attention);
      plan.tile = tile;
      check_same(plan, 2);
    }
    for (int64_t segment : {int64_t{1}, int64_t{2}, L}) {
      CAPTURE(segment);
      Schedule plan = m.schedule(segment, Level::input);
      plan.offload = true;
      check_same(plan, 2);
    }
    // Layers whose kept tensors wait in host memory: every one, every second, the first alone.
    for (Level level : {Level::attention, Level::all}) {
      for (int64_t every : {int64_t{1}, int64_t{2}, L}) {
        CAPTURE(static_cast<int>(level));
        CAPTURE(every);
        Schedule plan = m.schedule(1, level);
        plan.offload = true;
        for (Segment& s : plan.segments) s.host = s.begin % every == 0;
        check_same(plan, 2);
      }
    }
    for (int64_t rows : {1, 7, 1000}) {
      CAPTURE(rows);
      Schedule plan = m.schedule();
      plan.head_rows = rows;
      check_same(plan, 2);
    }
  }
}

}  // namespace

TEST_CASE("gradient: the same bytes for other segments, tiles, head chunks, offloading and threads") {
  for (const char* name : {"llama-gqa", "gemma4-e2b-like"}) check_plans(name, 4, {DType::bf16}, {Level::attention});
}

TEST_SUITE("full") {
  TEST_CASE(
      "gradient: the same bytes for every segment size, level, tile, head chunk and number of threads, on every "
      "model") {
    for (const std::string& name : oracle_models()) {
      check_plans(name, 9, {DType::f32, DType::bf16}, {Level::input, Level::attention, Level::all});
    }
  }
}

}  // namespace sluice::test
