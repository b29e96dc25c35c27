// Whole runs on preference pairs and rated answers: what they report, how they resume, what their plan holds.
#include <algorithm>
#include <cmath>

#include "model/adapter_file.h"
#include "support/oracle_model.h"
#include "support/tiny_run.h"
#include "train/largest_shapes.h"
#include "train/trainer.h"

namespace sluice::test {

namespace {

std::string word(std::mt19937& engine, int longest) {
  std::string text;
  const int length = 3 + static_cast<int>(engine() % static_cast<uint32_t>(longest));
  for (int c = 0; c < length; ++c) text += static_cast<char>('a' + engine() % 26);
  return text;
}

// Chosen repeats the prompt's word, rejected says another.
std::string pair_rows(int count, int longest = 40, uint32_t seed = 7) {
  std::mt19937 engine(seed);
  std::string rows;
  for (int i = 0; i < count; ++i) {
    const std::string said = word(engine, longest), other = word(engine, longest);
    rows += Json({{"prompt", "say " + said}, {"chosen", said}, {"rejected", other}}).dump() + "\n";
  }
  return rows;
}

std::string rated_rows(int count, int longest = 40, uint32_t seed = 8) {
  std::mt19937 engine(seed);
  std::string rows;
  for (int i = 0; i < count; ++i) {
    const std::string said = word(engine, longest), other = word(engine, longest);
    const bool good = engine() % 2 == 0;
    rows += Json({{"prompt", "say " + said}, {"completion", good ? said : other}, {"label", good}}).dump() + "\n";
  }
  return rows;
}

// A tiny run on pairs, or for kto on rated answers.
struct PairRun : TinyRun {
  explicit PairRun(const std::string& objective, int rows = 12) : TinyRun(rows) {
    const auto make = [&](int count, uint32_t seed) {
      return objective == "kto" ? rated_rows(count, 40, seed) : pair_rows(count, 40, seed);
    };
    write_text(folder / "data/train.jsonl", make(rows, 7));
    write_text(folder / "data/valid.jsonl", make(5, 70));
    config.objective = objective;
    config.grad_accumulation_steps = objective == "kto" ? 2 : 1;
  }
};

std::vector<Json> metrics_of(const TrainConfig& config, const std::string& type) {
  std::vector<Json> lines = metrics(config);
  std::erase_if(lines, [&](const Json& line) { return line["type"] != type; });
  return lines;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool heard_note(const Heard& heard, const std::string& part) {
  return std::any_of(heard.notes.begin(), heard.notes.end(), [&](const std::string& n) { return contains(n, part); });
}

// As if it had been killed after the checkpoint of `step`.
void forget_after(const TrainConfig& config, int step) {
  for (const auto& entry : fs::directory_iterator(config.adapter_path)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && std::stoi(name.substr(5)) > step) fs::remove_all(entry.path());
  }
}

}  // namespace

TEST_CASE(
    "preference training: every objective trains packed and accumulated, in the planned memory, with its metrics under "
    "TRL's names") {
  for (const char* objective : {"dpo", "orpo", "simpo", "slic", "cpo", "kto"}) {
    CAPTURE(objective);
    PairRun run(objective);
    run.config.batch_size = 2;
    run.config.grad_accumulation_steps = 2;
    run.config.max_steps = 4;
    Heard heard;
    const RunResult result = train(run.config, heard);
    CHECK(result.steps == 4);
    CHECK(result.arena_used == result.arena_planned);
    for (const char* type : {"train", "eval"}) {
      const std::string prefix = type == std::string("eval") ? "eval_" : "";
      const Json line = metrics_of(run.config, type).back();
      for (const char* name :
           {"loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected"}) {
        CAPTURE(name);
        CHECK(line.contains(prefix + name));
      }
      const std::string name = objective;
      CHECK(line.contains(prefix + "rewards/accuracies") == (name != "kto"));
      CHECK(line.contains(prefix + "kl") == (name == "kto"));
      CHECK(line.contains(prefix + "nll_loss") == (name == "orpo" || name == "cpo"));
      CHECK(line.contains(prefix + "log_odds_ratio") == (name == "orpo"));
      CHECK(line.contains(prefix + "log_odds_chosen") == (name == "orpo"));
    }
  }
}

TEST_CASE(
    "FieldL20_reference: before the first step of dpo the loss is ln 2 and margins are 0, and the reference is named") {
  PairRun run("dpo");
  Heard heard;
  run.config.max_steps = 1;
  train(run.config, heard);
  CHECK(heard.evals.front().loss == doctest::Approx(std::log(2.0)).epsilon(1e-12));
  CHECK(heard.evals.front().objective["eval_rewards/margins"] == 0);
  CHECK(heard_note(heard, "reference policy: " + run.config.model + " without an adapter"));
  // A named adapter is another policy: from the base, it has another margin.
  TrainConfig onto = run.into("onto");
  onto.reference_adapter = (fs::path(run.config.adapter_path) / "last").string();
  Heard named;
  train(onto, named);
  CHECK(named.evals.front().objective["eval_rewards/margins"] != 0);
  CHECK(heard_note(named, "with the adapter " + onto.reference_adapter));
  // A run that starts from an adapter is compared with it, unless it asks for the base.
  TrainConfig warm = run.into("warm"), from_base = run.into("from_base");
  warm.resume_adapter_file = from_base.resume_adapter_file = onto.reference_adapter;
  from_base.reference_adapter = "base";
  Heard same, other;
  train(warm, same);
  train(from_base, other);
  CHECK(same.evals.front().objective["eval_rewards/margins"] == 0);
  CHECK(other.evals.front().objective["eval_rewards/margins"] != 0);
  CHECK(heard_note(other, "reference policy: " + run.config.model + " without an adapter"));
  TrainConfig missing = run.into("missing");
  missing.reference_adapter = "no/such/folder";
  CHECK(contains(message_of(missing), "reference_adapter"));
}

TEST_CASE(
    "FieldL20_kto: kto starts at half its weights, and its kl is measured on mismatched answers under both policies") {
  PairRun run("kto");
  run.config.learning_rate = 0.05;
  Heard first;
  train(run.config, first);
  CHECK(first.evals.front().loss == 0.5);
  CHECK(first.evals.front().objective["eval_kl"] == 0);
  CHECK(first.evals.front().objective["eval_rewards/margins"] == 0);
  // The policy is the base, the reference an adapter that has become worse.
  TrainConfig onto = run.into("onto");
  onto.reference_adapter = (fs::path(run.config.adapter_path) / "last").string();
  onto.max_steps = 1;
  Heard named;
  train(onto, named);
  const auto model = on_test_device(load_model(run.config.model));
  const ModelText text = load_model_text(*model->source);
  LoadedAdapter adapter = load_adapter(onto.reference_adapter, model->config);
  const Adapter reference(adapter.layout,
                          {.data = adapter.flat.data(), .dtype = DType::f32, .shape = {adapter.layout.size()}});
  const RatedData valid = read_rated((run.folder / "data/valid.jsonl").string(), text, {});
  TestContext ctx(detect_isa());
  const Schedule schedule = Schedule::uniform(model->config.num_layers, 1, Level::input);
  double kl = 0;
  for (const RatedSample& row : valid.rows) {
    const PreferenceBatch batch = pack_rated({&row}, RatedAnswer::mismatched);
    for (const auto& [policy, sign] : {std::pair{Adapter(), 1}, std::pair{reference, -1}}) {
      for (float logp :
           forward_logps(ctx, *model, policy, step_batch(batch.tokens), {.schedule = schedule, .dtype = DType::f32}))
        kl += sign * static_cast<double>(logp);
    }
  }
  kl /= static_cast<double>(valid.rows.size());
  REQUIRE(kl > 0);
  CHECK(named.evals.front().objective["eval_kl"].get<double>() == doctest::Approx(kl).epsilon(1e-9));
}

TEST_CASE("FieldL21_reference: its log-probabilities are computed once, kept, and the same bytes after a resumed run") {
  PairRun run("dpo");
  Heard first, second;
  train(run.config, first);
  const fs::path file = fs::path(run.config.adapter_path) / "reference_logps.safetensors";
  const std::string bytes = read_whole_file(file);
  CHECK(heard_note(first, "computed now"));
  forget_after(run.config, 2);
  run.config.resume = true;
  train(run.config, second);
  CHECK(heard_note(second, "kept in reference_logps.safetensors"));
  CHECK(read_whole_file(file) == bytes);
  // A damaged file, or one of other data, is not believed.
  std::string damaged = bytes;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_text(file, damaged);
  forget_after(run.config, 2);
  Heard third;
  train(run.config, third);
  CHECK(heard_note(third, "computed now"));
  CHECK(read_whole_file(file) == bytes);
}

TEST_CASE("FieldL5_pairs: after one step from B = 0 every adapted module has learned, whatever the objective") {
  for (const char* objective : {"dpo", "orpo", "simpo", "slic", "cpo", "kto"}) {
    CAPTURE(objective);
    PairRun run(objective);
    run.config.max_steps = 1;
    Heard heard;
    train(run.config, heard);
    const LoadedAdapter adapter =
        load_adapter((fs::path(run.config.adapter_path) / "last").string(), load_model(run.config.model)->config);
    for (const AdapterLayout::Entry& e : adapter.layout.entries()) {
      CAPTURE(module_name(e.layer, e.module));
      const auto begin = adapter.flat.begin() + e.b_offset;
      CHECK(std::any_of(begin, begin + e.out * e.rank, [](float b) { return b != 0; }));
    }
  }
}

TEST_CASE(
    "FieldL6_training: orpo with lambda 0 and sft on the chosen answers end with the same adapter, byte for byte") {
  PairRun orpo("orpo");
  TinyRun sft;
  std::string rows;
  std::ifstream file(orpo.folder / "data/train.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Json pair = Json::parse(line);
    rows += Json({{"prompt", pair["prompt"]}, {"completion", pair["chosen"]}}).dump() + "\n";
  }
  write_text(sft.folder / "data/train.jsonl", rows);
  orpo.config.orpo_lambda = 0;
  Heard heard;
  train(orpo.config, heard);
  train(sft.config, heard);
  CHECK(adapter_bytes(orpo.config) == adapter_bytes(sft.config));
}

TEST_CASE("FieldL8_pairs: four passes of one pair give the gradient and the loss of one pass of four pairs") {
  for (const char* objective : {"dpo", "orpo", "kto"}) {
    CAPTURE(objective);
    PairRun run(objective, 4);
    run.config.max_steps = 1;
    TrainConfig whole = run.into("whole");
    run.config.grad_accumulation_steps = 4;
    whole.grad_accumulation_steps = 1;
    whole.batch_size = 4;
    Heard one_by_one, at_once;
    train(run.config, one_by_one);
    train(whole, at_once);
    CHECK(one_by_one.reports[0].loss == doctest::Approx(at_once.reports[0].loss).epsilon(1e-6));
    CHECK(one_by_one.reports[0].grad_norm == doctest::Approx(at_once.reports[0].grad_norm).epsilon(1e-5));
  }
}

TEST_CASE(
    "FieldL26_pairs: two runs with one seed give the same losses and the same bytes, whatever the plan and the "
    "threads") {
  for (const char* objective : {"dpo", "orpo", "kto"}) {
    CAPTURE(objective);
    PairRun run(objective);
    run.config.dropout = 0.1;
    run.config.batch_size = 2;
    TrainConfig again = run.into("again");
    again.threads = 1;
    again.segment_size = 2;
    Heard first, second;
    train(run.config, first);
    train(again, second);
    REQUIRE(first.reports.size() == second.reports.size());
    for (size_t i = 0; i < first.reports.size(); ++i) {
      CHECK(first.reports[i].loss == second.reports[i].loss);
      CHECK(first.reports[i].objective == second.reports[i].objective);
    }
    CHECK(adapter_bytes(run.config) == adapter_bytes(again));
  }
}

TEST_CASE(
    "FieldC2_pairs: a run resumed inside its second epoch goes on as the uninterrupted one, lambda and reference "
    "included") {
  for (const char* objective : {"dpo", "orpo", "kto"}) {
    CAPTURE(objective);
    PairRun run(objective, 6);
    run.config.max_steps = 10;
    run.config.steps_per_eval = 2;
    run.config.dropout = 0.1;
    if (run.config.objective == "orpo") run.config.orpo_lambda_mode = "adaptive";
    TrainConfig part = run.into("part");
    Heard whole, started, resumed;
    train(run.config, whole);
    train(part, started);
    forget_after(part, 6);
    part.resume = true;
    train(part, resumed);
    CHECK(resumed.reports.front().step == 7);
    CHECK(adapter_bytes(part) == adapter_bytes(run.config));
    for (size_t i = 0; i < resumed.reports.size(); ++i) {
      CHECK(resumed.reports[i].loss == whole.reports[i + 6].loss);
      CHECK(resumed.reports[i].objective == whole.reports[i + 6].objective);
    }
    CHECK(resumed.evals.back().objective == whole.evals.back().objective);
  }
}

TEST_CASE(
    "FieldL22_displacement: chosen answers that become less likely are told, while both curves are there to see") {
  PairRun run("dpo");
  run.config.learning_rate = 0.1;
  run.config.max_steps = 12;
  run.config.max_grad_norm = 0;
  Heard heard;
  train(run.config, heard);
  double worst = 0;
  for (const EvalReport& e : heard.evals) worst = std::min(worst, e.objective["eval_logps/chosen"].get<double>());
  const double start = heard.evals.front().objective["eval_logps/chosen"].get<double>();
  REQUIRE(worst < 1.1 * start);
  CHECK(heard_note(heard, "the log-probability of the chosen answers fell from"));
  TrainConfig gentle = run.into("gentle");
  gentle.learning_rate = 1e-5;
  Heard quiet;
  train(gentle, quiet);
  CHECK_FALSE(heard_note(quiet, "fell from"));
}

TEST_CASE("preference training: best follows the metric that is named, in its direction") {
  PairRun run("orpo");
  run.config.metric_for_best_model = "rewards/margins";
  run.config.learning_rate = 0.03;
  run.config.steps_per_eval = 2;
  run.config.max_steps = 8;
  Heard heard;
  train(run.config, heard);
  int64_t best = 0;
  double highest = -1e30;
  for (const EvalReport& e : heard.evals) {
    const double margin = e.objective["eval_rewards/margins"].get<double>();
    if (e.step > 0 && margin > highest) highest = margin, best = e.step;
  }
  CHECK(fs::equivalent(fs::path(run.config.adapter_path) / "best",
                       fs::path(run.config.adapter_path) / fmt::format("step-{:07d}", best)));
}

TEST_CASE("preference training: an adaptive lambda is logged, a static one is today's path") {
  PairRun run("orpo");
  run.config.steps_per_eval = 1;
  TrainConfig steered = run.into("steered");
  steered.orpo_lambda_mode = "adaptive";
  Heard plain, adaptive;
  train(run.config, plain);
  train(steered, adaptive);
  CHECK_FALSE(plain.evals.back().objective.contains("orpo_lambda"));
  CHECK(adaptive.evals.front().objective["orpo_lambda"] == 0.1);
  CHECK(adaptive.evals.front().objective["orpo_lambda_state"] == "started");
  CHECK(adaptive.evals.back().objective["orpo_lambda"] > 0.1);
  CHECK(adaptive.reports.back().objective.contains("orpo_lambda"));
  // Until the first validation after a step both are the same.
  CHECK(plain.reports[0].loss == adaptive.reports[0].loss);
}

TEST_CASE(
    "preference training: settings that the objective would not read, and rows of another kind, are refused by name") {
  const auto refused = [](const std::string& objective, const std::function<void(TrainConfig&)>& change) {
    PairRun run(objective);
    change(run.config);
    return message_of(run.config);
  };
  CHECK(contains(refused("dpo", [](TrainConfig& c) { c.orpo_lambda = 0.5; }), "orpo_lambda is given"));
  CHECK(contains(refused("orpo", [](TrainConfig& c) { c.reference_adapter = "x"; }), "reference_adapter is given"));
  CHECK(contains(refused("orpo", [](TrainConfig& c) { c.loss_type = "hinge"; }), "loss_type is given"));
  CHECK(contains(refused("orpo", [](TrainConfig& c) { c.beta = c.orpo_lambda = 0.3; }), "give one"));
  CHECK(contains(refused("dpo", [](TrainConfig& c) { c.mask_prompt = "false"; }), "sft_scope: full"));
  CHECK(contains(refused("kto", [](TrainConfig& c) { c.grad_accumulation_steps = 1; }), "a step has one row"));
  CHECK(contains(refused("dpo", [](TrainConfig& c) { c.metric_for_best_model = "nll_loss"; }), "eval_rewards/margins"));
  CHECK(contains(refused("sft", [](TrainConfig& c) { c.beta = 0.1; }), "beta is given"));
  PairRun sft("sft");
  CHECK(contains(message_of(sft.config), "preference data, which objective dpo, orpo, simpo, slic or cpo reads"));
  PairRun kto("kto");
  kto.config.objective = "dpo";
  CHECK(contains(message_of(kto.config), "there is no \"chosen\""));
  PairRun alone("orpo");
  fs::remove(alone.folder / "data/valid.jsonl");
  alone.config.orpo_lambda_mode = "adaptive";
  CHECK(contains(message_of(alone.config), "there is no file valid"));
}

TEST_CASE("FieldM6_pairs: a step of orpo takes at most 1.15 times the memory of sft with as many tokens") {
  const auto model = load_model((oracle_dir() / "llama-gqa").string());
  const AdapterLayout layout(model->config, {.rank = 8});
  const PlanRequest request{.model = *model, .layout = layout, .train = {}, .validation = {}, .device = test_device()};
  const Schedule schedule = Schedule::uniform(model->config.num_layers, 1, Level::input);
  const int64_t pair = price_step(request, schedule, {Spans({{-1, 6144}, {0, 1024}, {0, 1024}}), 2048});
  const int64_t sft = price_step(request, schedule, {Spans::one(8192), 2048});
  CHECK(static_cast<double>(pair) <= 1.15 * static_cast<double>(sft));
}

TEST_CASE("plan: what is priced of random forests is the most that any of them takes") {
  std::mt19937 engine(3);
  const auto number = [&](uint32_t low, uint32_t high) { return static_cast<int64_t>(low + engine() % (high - low)); };
  for (const char* name : {"llama-gqa", "gemma3-like"}) {
    CAPTURE(name);
    const auto model = load_model((oracle_dir() / name).string());
    const AdapterLayout layout(model->config, {.rank = 4});
    const PlanRequest request{
        .model = *model, .layout = layout, .train = {}, .validation = {}, .device = test_device()};
    const Schedule schedule = Schedule::uniform(model->config.num_layers, 1, Level::all);
    for (const auto& [longest, most_roots] : {std::pair{30U, 4U}, {300U, 4U}, {1200U, 4U}, {30U, 60U}}) {
      LargestShapes largest;
      int64_t most = 0;
      for (int i = 0; i < 150; ++i) {
        std::vector<Spans::Piece> pieces;
        Batch batch;
        for (int64_t p = 0, pairs = number(1, most_roots); p < pairs; ++p) {
          const auto root = static_cast<int64_t>(pieces.size());
          pieces.push_back({-1, number(1, longest)});
          if (engine() % 3 == 0) continue;
          for (int branch = 0; branch < 2; ++branch) pieces.push_back({root, number(1, longest)});
        }
        batch.spans = Spans(pieces);
        batch.targets.resize(static_cast<size_t>(number(1, static_cast<uint32_t>(batch.spans.num_tokens()) + 1)));
        most = std::max(most, price_step(request, schedule, {batch.spans, batch.num_targets()}));
        largest.add(batch);
      }
      int64_t priced = 0;
      for (const BatchShape& shape : largest.take()) priced = std::max(priced, price_step(request, schedule, shape));
      CHECK(priced == most);
    }
  }
}

TEST_CASE("plan: a batch that is shorter than the longest but has more targets is kept within the budget, too") {
  const auto model = load_model((oracle_dir() / "llama-gqa").string());
  const AdapterLayout layout(model->config, {.rank = 4});
  PlanRequest request{
      .model = *model, .layout = layout, .train = {{Spans::one(700), 1}}, .validation = {}, .device = test_device()};
  std::vector<Plan> plans = candidate_plans(request);
  request.train.push_back({Spans::one(690), 689});
  for (const Plan& plan : plans) {
    request.budget_bytes = plan.total_bytes();
    const Plan chosen = make_plan(request);
    request.budget_bytes = 1;
    const Plan leanest = make_plan(request);
    CHECK(chosen.fits() == (leanest.total_bytes() <= plan.total_bytes()));
  }
}

}  // namespace sluice::test
