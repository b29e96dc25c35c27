// What a run makes of steps without a gradient, of rows that fill no batch, and which checkpoint it calls the best.
#include <algorithm>

#include "data/dataset.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "support/close.h"
#include "support/tiny_run.h"
#include "train/streamed_step.h"

namespace sluice::test {

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool noted(const Heard& heard, const std::string& part) {
  return std::any_of(heard.notes.begin(), heard.notes.end(), [&](const std::string& n) { return has(n, part); });
}

// Pairs whose chosen answer has `chosen` letters and whose rejected one has `rejected`.
std::string pairs_of_lengths(int count, int chosen, int rejected) {
  std::mt19937 engine(11);
  const auto word = [&](int length) {
    std::string text;
    for (int c = 0; c < length; ++c) text += static_cast<char>('a' + engine() % 26);
    return text;
  };
  std::string rows;
  for (int i = 0; i < count; ++i)
    rows += Json({{"prompt", "say"}, {"chosen", word(chosen)}, {"rejected", word(rejected)}}).dump() + "\n";
  return rows;
}

// As if the run had been killed after the checkpoint of `step`.
void forget_after(const TrainConfig& config, int step) {
  for (const auto& entry : fs::directory_iterator(config.adapter_path)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && std::stoi(name.substr(5)) > step) fs::remove_all(entry.path());
  }
}

std::string target_of(const TrainConfig& config, const std::string& name) {
  const fs::path link = fs::path(config.adapter_path) / name;
  return fs::is_symlink(link) ? fs::read_symlink(link).string() : "";
}

Json state_of(const TrainConfig& config, const std::string& name = "last") {
  return Json::parse(read_whole_file(fs::path(config.adapter_path) / name / "state.json"));
}

// Asks the run to stop when a step is reported.
class Interrupts : public Heard {
 public:
  StopRequest stop;
  explicit Interrupts(int64_t step) : step_(step) {}
  void train(const TrainReport& report) override {
    Heard::train(report);
    if (report.step == step_) stop.ask("the test");
  }

 private:
  int64_t step_;
};

// Runs until the interruption.
void interrupt(const TrainConfig& config, int64_t step, const TaskMaker& task = {}) {
  Interrupts heard(step);
  CHECK_THROWS_AS(train(config, heard, task, &heard.stop), Error);
  CHECK(heard.saves.back() == step);
}

// A run whose validations give the scores of a list: before the first step, then each time. The list goes on after a resumption.
struct Scored : TinyRun {
  std::vector<double> scores;
  size_t asked = 0;

  explicit Scored(std::vector<double> listed) : scores(std::move(listed)) {
    config.eval_task = "chunk";
    write_text(folder / "cases.jsonl", "the scores are the list's\n");
    config.eval_task_data = (folder / "cases.jsonl").string();
    config.metric_for_best_model = "chunk_score";
    config.save_every = 1;
    config.steps_per_eval = 1;
  }
  TaskMaker task() {
    return [this](const TrainConfig&, const Model&, const ModelText&, ThreadPool&) -> ValidationTask {
      return {"chunk", 0, [this](const Adapter&) { return scores.at(asked++); }};
    };
  }
};

// The objectives whose gradient vanishes when a margin is wide, with what makes it vanish soon.
TrainConfig with_a_margin_soon_met(TrainConfig config, const std::string& objective) {
  config.objective = objective == "hinge" ? "dpo" : objective;
  if (objective == "hinge") config.loss_type = "hinge";
  config.beta = objective == "simpo" ? 1e6 : 1e5;
  config.max_grad_norm = 1;
  config.learning_rate = 1e-2;
  config.max_steps = 12;
  config.save_every = 4;
  return config;
}

}  // namespace

TEST_CASE("a step without a gradient is skipped and counted, and a resumed run ends with the bytes of a whole one") {
  for (const char* objective : {"slic", "hinge", "dpo", "simpo"}) {
    CAPTURE(objective);
    TinyRun run;
    write_text(run.folder / "data/train.jsonl", pairs_of_lengths(4, 5, 5));
    write_text(run.folder / "data/valid.jsonl", pairs_of_lengths(2, 5, 5));
    run.config = with_a_margin_soon_met(run.config, objective);
    TrainConfig part = run.into("part");
    Heard whole, started, resumed;
    const RunResult result = train(run.config, whole);
    CHECK(result.steps == 12);
    CHECK(result.skipped_steps > 0);
    CHECK(result.skipped_steps < 12);
    int64_t skipped = 0;
    for (const TrainReport& r : whole.reports) {
      skipped += r.grad_norm == 0 ? 1 : 0;
      CHECK(r.skipped_steps == skipped);
    }
    CHECK(result.skipped_steps == skipped);
    CHECK(metrics(run.config).back().contains("eval_loss"));
    CHECK(state_of(run.config)["skipped_steps"] == skipped);
    CHECK(noted(whole, "the gradient is zero"));
    train(part, started);
    forget_after(part, 4);
    part.resume = true;
    CHECK(train(part, resumed).skipped_steps == skipped);
    CHECK(adapter_bytes(part) == adapter_bytes(run.config));
    CHECK(read_whole_file(fs::path(part.adapter_path) / "last/optimizer.safetensors") ==
          read_whole_file(fs::path(run.config.adapter_path) / "last/optimizer.safetensors"));
  }
}

TEST_CASE("a run in which no step has a gradient fails at its end, and again when it is resumed") {
  TinyRun run;  // a long rejected answer is far less likely than a short one: no margin is left to learn
  write_text(run.folder / "data/train.jsonl", pairs_of_lengths(4, 1, 60));
  write_text(run.folder / "data/valid.jsonl", pairs_of_lengths(2, 1, 60));
  run.config.objective = "slic";
  run.config.beta = 1;
  const std::string message = message_of(run.config);
  CHECK(has(message, "none of 6 steps had a gradient"));
  CHECK(has(message, "after step 6"));
  run.config.resume = true;
  CHECK(has(message_of(run.config), "none of 6 steps had a gradient"));
  forget_after(run.config, 2);
  CHECK(has(message_of(run.config), "none of 6 steps had a gradient"));
}

TEST_CASE("an epoch trains every row once, whatever the batch") {
  struct Case {
    int rows;
    int64_t batch;
    double epochs;
    int64_t steps;
  };
  for (const Case& c : {Case{10, 4, 1, 3}, Case{7, 2, 2, 8}, Case{3, 8, 2, 2}, Case{10, 5, 1, 2}}) {
    CAPTURE(c.rows);
    TinyRun run(c.rows);
    run.config.max_steps = 0;
    run.config.num_epochs = c.epochs;
    run.config.batch_size = c.batch;
    run.config.save_every = 1;
    TrainConfig part = run.into("part");
    const auto model = load_model(run.config.model);
    const Dataset data = read_dataset((run.folder / "data/train.jsonl").string(), load_model_text(*model->source), {});
    int64_t supervised = 0;
    for (const Sample& sample : data.samples) supervised += pack({&sample}).num_targets();
    Heard heard, resumed;
    CHECK(train(run.config, heard).steps == c.steps);
    CHECK(heard.reports.back().trained_tokens == static_cast<int64_t>(c.epochs) * supervised);
    CHECK(heard.reports.back().epoch == c.epochs);
    CHECK(noted(heard, "a batch holds them all") == (c.rows < c.batch));
    train(part, resumed);
    forget_after(part, 1);
    part.resume = true;
    train(part, resumed);
    CHECK(resumed.reports.back().trained_tokens == heard.reports.back().trained_tokens);
    CHECK(adapter_bytes(part) == adapter_bytes(run.config));
  }
}

TEST_CASE("pairs of a short last batch count as much as others: the loss is their mean") {
  TinyRun run;
  write_text(run.folder / "data/train.jsonl", pairs_of_lengths(3, 6, 6));
  write_text(run.folder / "data/valid.jsonl", pairs_of_lengths(3, 6, 6));  // the same pairs
  run.config.objective = "slic";
  run.config.max_steps = 0;
  run.config.num_epochs = 1;
  run.config.batch_size = 2;
  run.config.grad_accumulation_steps = 2;  // 2 + 1 rows in one step
  Heard heard;
  train(run.config, heard);
  CHECK(heard.reports.front().loss == doctest::Approx(heard.evals.front().loss).epsilon(1e-6));
}

TEST_CASE("FieldC15_best: best is the scored checkpoint with the best number, last is the last, and both load") {
  Scored run({0, 50, 70, 10});
  run.config.steps_per_eval = 2;  // a checkpoint after every step, a score after every second
  Heard heard;
  train(run.config, heard, run.task());
  CHECK(run.asked == run.scores.size());
  CHECK(target_of(run.config, "best") == "step-0000004");
  CHECK(target_of(run.config, "last") == "step-0000006");
  CHECK(adapter_bytes(run.config, "best") == adapter_bytes(run.config, "step-0000004"));
}

TEST_CASE("best: a checkpoint without a score is never the best") {
  Scored run({90, 20});
  run.config.steps_per_eval = 0;
  Heard heard;
  train(run.config, heard, run.task());
  CHECK(target_of(run.config, "best") == "step-0000006");
  CHECK(state_of(run.config)["best_metric"] == 20);
}

TEST_CASE("best: an interruption changes nothing of it, also where it saves a step that no schedule would") {
  const std::vector<double> scores = {0, 90, 50, 10};
  Scored run(scores);
  run.config.steps_per_eval = 2;
  run.config.save_every = 4;
  Scored part(scores);
  part.config = run.config;
  part.config.adapter_path = (run.folder / "part").string();
  Heard heard;
  train(run.config, heard, run.task());
  CHECK(target_of(run.config, "best") == "step-0000004");  // step 2 has a better score and no checkpoint
  interrupt(part.config, 2, part.task());
  CHECK(target_of(part.config, "best").empty());
  part.config.resume = true;
  interrupt(part.config, 5, part.task());
  CHECK(target_of(part.config, "best") == "step-0000004");
  train(part.config, heard, part.task());
  CHECK(target_of(part.config, "best") == "step-0000004");
  CHECK(state_of(part.config) == state_of(run.config));
  CHECK(adapter_bytes(part.config) == adapter_bytes(run.config));
}

TEST_CASE("best: a pointer that a killed run has not moved is moved when it is resumed") {
  Scored run({0, 10, 20, 30, 20, 10, 5});
  Heard heard;
  train(run.config, heard, run.task());
  const fs::path best = fs::path(run.config.adapter_path) / "best";
  fs::remove(best);
  fs::create_directory_symlink("step-0000001", best);
  run.config.resume = true;
  train(run.config, heard, run.task());
  CHECK(target_of(run.config, "best") == "step-0000003");
}

TEST_CASE(
    "without validations the training loss since the checkpoint before tells which is best, and no number is made up") {
  for (bool validates : {false, true}) {
    TinyRun run(12);
    if (validates) run.config.val_batches = 0;
    else fs::remove(run.folder / "data/valid.jsonl");
    run.config.max_steps = 12;
    run.config.save_every = 4;
    run.config.learning_rate = 0.05;
    TrainConfig part = run.into("part");
    Heard heard, resumed;
    train(run.config, heard);
    CHECK(heard.evals.empty());
    for (const Json& line : metrics(run.config)) CHECK_FALSE(line.contains("eval_loss"));
    std::vector<double> loss(3), tokens(3);
    int64_t before = 0;
    for (const TrainReport& r : heard.reports) {  // one a step
      const auto window = static_cast<size_t>((r.step - 1) / 4);
      const auto count = static_cast<double>(r.trained_tokens - before);
      loss[window] += r.loss * count;
      tokens[window] += count;
      before = r.trained_tokens;
    }
    for (size_t i = 0; i < 3; ++i) loss[i] /= tokens[i];
    const auto lowest = std::min_element(loss.begin(), loss.end());
    CHECK(target_of(run.config, "best") == fmt::format("step-{:07d}", 4 * (lowest - loss.begin() + 1)));
    CHECK(state_of(run.config)["best_metric"].get<double>() == doctest::Approx(*lowest));
    part.steps_per_report = 3;
    part.max_steps = 12;
    interrupt(part, 6);
    part.resume = true;
    train(part, resumed);
    CHECK(state_of(part) == state_of(run.config));
  }
}

TEST_CASE("a run that ends much worse than it began says so in one line") {
  TinyRun run(2, 5);
  write_text(run.folder / "data/valid.jsonl", tiny_rows(2, 5));  // the same rows
  run.config.max_steps = 60;
  run.config.batch_size = 2;
  run.config.learning_rate = 0.02;
  run.config.save_every = 0;
  Heard good;
  train(run.config, good);
  REQUIRE(good.evals.back().loss < 1);
  CHECK_FALSE(noted(good, "far above"));
  for (bool validates : {true, false}) {  // from what was learned, at a rate that wrecks it
    CAPTURE(validates);
    if (!validates) fs::remove(run.folder / "data/valid.jsonl");
    TrainConfig wild = run.into(validates ? "wild" : "unseen");
    wild.resume_adapter_file = (fs::path(run.config.adapter_path) / "last").string();
    wild.learning_rate = 1;
    wild.lr_schedule = "constant";
    wild.max_steps = 6;
    Heard bad;
    train(wild, bad);
    CHECK(noted(bad, validates ? "the validation loss ended at" : "the training loss ended at"));
  }
}

TEST_CASE("mean_token_accuracy is the share of targets that the logits put first, in validation and in training") {
  if (on_cuda()) return;  // the head's hits are tested there; the forward here is the CPU's
  TinyRun run(1);
  run.config.max_steps = 1;
  Heard heard;
  train(run.config, heard);
  const auto model = load_model(run.config.model);
  const ModelText text = load_model_text(*model->source);
  TestContext ctx(detect_isa());
  const Schedule plan = Schedule::uniform(model->config.num_layers, 1, Level::input);
  const auto accuracy_of = [&](const char* file) {
    TokenAccuracy accuracy;
    for (const Sample& sample : read_dataset((run.folder / "data" / file).string(), text, {}).samples) {
      const Batch batch = pack({&sample});
      const auto count = static_cast<int64_t>(batch.rows.size()), C = model->config.hidden_size;
      const Buffer picked(DType::f32, {count, C}), h(DType::f32, {count, C}),
          logits(DType::f32, {count, model->config.vocab_size});
      forward_hidden(ctx, *model, {}, step_batch(batch), {.schedule = plan, .dtype = DType::f32},
                     [&](int64_t layer, const Tensor& x) {
                       if (layer < model->config.num_layers) return;
                       for (int64_t m = 0; m < count; ++m)
                         std::copy_n(x.as<float>() + batch.rows[static_cast<size_t>(m)] * C, C,
                                     picked.tensor.as<float>() + m * C);
                     });
      rmsnorm_forward(ctx, {.x = picked, .weight = model->final_norm, .y = h, .eps = model->config.rms_norm_eps});
      head_logits(ctx, {.weight = model->head, .h = h, .logits = logits});
      for (int64_t m = 0; m < count; ++m) {
        const float* row = logits.tensor.as<float>() + m * model->config.vocab_size;
        const int64_t first = std::max_element(row, row + model->config.vocab_size) - row;
        accuracy.hits += first == batch.targets[static_cast<size_t>(m)] ? 1 : 0;
        ++accuracy.tokens;
      }
    }
    return accuracy;
  };
  const TokenAccuracy valid = accuracy_of("valid.jsonl"), one = accuracy_of("train.jsonl");
  CHECK(heard.evals.front().accuracy.hits == valid.hits);
  CHECK(heard.evals.front().accuracy.tokens == valid.tokens);
  CHECK(heard.reports.front().accuracy.hits == one.hits);
  CHECK(heard.reports.front().accuracy.tokens == one.tokens);
  CHECK(metrics(run.config).front()["eval_mean_token_accuracy"].get<double>() == valid.mean());
}

TEST_CASE(
    "mean_token_accuracy rises to one where rows are learned by heart, and of pairs it is that of the chosen answers") {
  TinyRun run(2, 5);
  run.config.max_steps = 60;
  run.config.learning_rate = 0.02;
  run.config.batch_size = 2;
  run.config.save_every = 0;
  Heard heard, pairs;
  train(run.config, heard);
  CHECK(heard.reports.front().accuracy.mean() < 0.5);
  CHECK(heard.reports.back().accuracy.mean() == 1);
  write_text(run.folder / "data/train.jsonl", pairs_of_lengths(4, 3, 30));
  write_text(run.folder / "data/valid.jsonl", pairs_of_lengths(4, 3, 30));
  TrainConfig dpo = run.into("dpo");
  dpo.objective = "dpo";
  dpo.max_steps = 1;
  dpo.metric_for_best_model = "mean_token_accuracy";
  train(dpo, pairs);
  CHECK(pairs.evals.front().accuracy.tokens == 4 * (3 + 1));  // and the end of the turn
}

TEST_CASE("a warm-up longer than the run is told, and one by ratio reaches the peak") {
  TinyRun run;
  run.config.warmup = 50;
  Heard heard, ratio;
  train(run.config, heard);
  CHECK(noted(heard, "the warm-up takes 50 steps and the run has 6"));
  TrainConfig by_ratio = run.into("ratio");
  by_ratio.warmup = 0;
  by_ratio.warmup_ratio = 0.5;
  train(by_ratio, ratio);
  CHECK(ratio.reports[3].learning_rate == by_ratio.learning_rate);
  CHECK(ratio.reports[2].learning_rate < by_ratio.learning_rate);
  CHECK_FALSE(noted(ratio, "warm-up takes"));
}

TEST_CASE("early stopping: a run ends after so many validations without a better number, with its checkpoint") {
  const std::vector<double> scores = {10, 20, 70, 30, 60, 65, 99};
  Scored run(scores);
  run.config.max_steps = 20;
  run.config.early_stopping_patience = 3;
  Scored part(scores);
  part.config = run.config;
  part.config.adapter_path = (run.folder / "part").string();
  Heard heard, again;
  CHECK(train(run.config, heard, run.task()).steps == 5);
  CHECK(target_of(run.config, "best") == "step-0000002");
  CHECK(target_of(run.config, "last") == "step-0000005");
  CHECK(noted(heard, "stopped early after step 5"));
  run.config.resume = true;
  CHECK(train(run.config, again, run.task()).steps == 5);  // it has ended
  CHECK(again.reports.empty());
  interrupt(part.config, 4, part.task());
  part.config.resume = true;
  CHECK(train(part.config, again, part.task()).steps == 5);
  CHECK(state_of(part.config) == state_of(run.config));
  CHECK(adapter_bytes(part.config) == adapter_bytes(run.config));
}

TEST_CASE("early stopping: what it needs is asked for by name") {
  const auto refused = [](const std::function<void(TinyRun&)>& change) {
    TinyRun run;
    run.config.early_stopping_patience = 2;
    run.config.steps_per_eval = 4;
    change(run);
    return message_of(run.config);
  };
  CHECK(refused([](TinyRun&) {}).empty());
  CHECK(has(refused([](TinyRun& r) { r.config.steps_per_eval = 3; }), "must be a multiple of save_every (2)"));
  CHECK(has(refused([](TinyRun& r) { r.config.steps_per_eval = 0; }), "must be a multiple of save_every"));
  CHECK(has(refused([](TinyRun& r) { r.config.val_batches = 0; }), "val_batches is 0"));
  CHECK(has(refused([](TinyRun& r) { fs::remove(r.folder / "data/valid.jsonl"); }), "there is no file valid"));
}

}  // namespace sluice::test
