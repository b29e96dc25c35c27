// A run whose validations score a task: which checkpoint best is, what the plan counts, what is refused.
#include <fmt/format.h>

#include <cmath>

#include "cli/command.h"
#include "eval/chunk_task.h"
#include "support/tiny_run.h"
#include "train/adapter_setup.h"

namespace sluice::test {

namespace {

const char* chunk_row =
    R"({"messages": [{"role": "user", "content": "aa Ana: First, the barrel.\nbb Ben: Now the oak.\n\nSplit it."},)"
    R"({"role": "assistant", "content": "{\"chunks\":[{\"start\":\"aa\",\"label\":\"the barrel\"},)"
    R"({\"start\":\"bb\",\"label\":\"the oak\"}]}"}]})"
    "\n";

struct ScoredRun : TinyRun {
  ScoredRun() {
    write_text(folder / "cases.jsonl", chunk_row);
    config.eval_task = "chunk";
    config.eval_task_data = (folder / "cases.jsonl").string();
    config.eval_task_max_tokens = 8;
    config.metric_for_best_model = "chunk_score";
    config.save_every = 1;
    config.steps_per_eval = 1;
    config.max_steps = 4;
  }
};

TEST_CASE("validation task: best is the checkpoint whose answers score highest") {
  const ScoredRun run;
  const std::vector<double> scores = {10, 20, 70, 30, 60};  // before the first step, then after each
  size_t asked = 0;
  Heard heard;
  train(run.config, heard, [&](const TrainConfig&, const Model&, const ModelText&, ThreadPool&) -> ValidationTask {
    return {"chunk", 0, [&](const Adapter&) { return scores.at(asked++); }};
  });
  CHECK(asked == scores.size());
  for (size_t i = 0; i < heard.evals.size(); ++i) CHECK(heard.evals[i].objective["eval_chunk_score"] == scores[i]);
  const fs::path out(run.config.adapter_path);
  CHECK(fs::equivalent(out / "best", out / "step-0000002"));
}

TEST_CASE("validation task: sluice train answers the cases with the adapter as it is, and its memory is in the plan") {
  ScoredRun run;
  Heard heard;
  train(run.config, heard, make_task);
  for (const EvalReport& e : heard.evals) {
    const auto score = e.objective["eval_chunk_score"].get<double>();
    CHECK_MESSAGE((score >= 0 && score <= 100), score);
  }
  const auto model = load_model(run.config.model);
  model->device = test_device();
  const ModelText text = load_model_text(*model->source);
  ThreadPool pool(2);
  // Long answers, so that what they take stands out.
  run.config.eval_task_max_tokens = 30000;
  const ChunkTask task(*model, text, pool,
                       {.data = run.config.eval_task_data, .max_new_tokens = 30000, .dtype = DType::f32});
  const int64_t bytes = task.bytes(adapter_layout(run.config, *model));
  CHECK(bytes > 8 << 20);
  TrainConfig without = run.into("without");
  without.eval_task = "none";
  without.eval_task_data = without.metric_for_best_model = "";
  Heard ignored;
  // The rest of the process may hold a little more or less each time, and under the address sanitizer what was freed: so the
  // run with a task stands between two without.
  const auto process_bytes = [&](const TrainConfig& config) {
    return Run(config, ignored, make_task).plan().process_bytes;
  };
  const int64_t before = process_bytes(without), rest = process_bytes(run.into("with")) - bytes,
                after = process_bytes(without);
  CHECK(rest > std::min(before, after) - (2 << 20));
  CHECK(rest < std::max(before, after) + (2 << 20));
}

TEST_CASE("validation task: what is missing is named before the first step") {
  const auto refused = [](const std::function<void(ScoredRun&)>& change, const TaskMaker& maker = make_task) {
    ScoredRun run;
    change(run);
    Heard heard;
    try {
      train(run.config, heard, maker);
    } catch (const Error& e) {
      CHECK(heard.reports.empty());
      return std::string(e.what());
    }
    return std::string("trained");
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(has(refused([](ScoredRun& r) { r.config.eval_task_data = ""; }), "eval_task needs eval_task_data"));
  CHECK(has(refused([](ScoredRun& r) { r.config.eval_task = "none"; }), "without eval_task"));
  CHECK(has(refused([](ScoredRun& r) { r.config.metric_for_best_model = "other_score"; }), "eval_chunk_score"));
  CHECK(has(refused([](ScoredRun& r) { fs::remove(r.folder / "data/valid.jsonl"); }), "no file valid"));
  CHECK(has(refused([](ScoredRun& r) { write_text(r.folder / "cases.jsonl", "{}\n"); }), "cases.jsonl:1"));
  CHECK(has(refused([](ScoredRun&) {}, {}), "no tasks"));
}

}  // namespace

}  // namespace sluice::test
