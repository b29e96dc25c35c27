// Runs with packing: true, and rows that share a batch on the oracle's models.
#include <algorithm>

#include "support/oracle_model.h"
#include "support/tiny_run.h"
#include "train/lr_schedule.h"
#include "train/run_rows.h"

namespace sluice::test {

namespace {

bool told(const Heard& heard, const std::string& text) {
  return std::any_of(heard.notes.begin(), heard.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

// Log-probabilities of the tokens of `ids` where `before` lies before it in the batch, and the gradient of their sum alone.
struct Seen {
  std::vector<float> logp, grads;
};
Seen seen_behind(OracleModel& m, const std::vector<int32_t>& before, const std::vector<int32_t>& ids, DType dtype) {
  TestContext ctx(detect_isa());
  const auto sample = [](const std::vector<int32_t>& tokens, uint8_t learned) {
    Sample s{.ids = tokens};
    s.supervised.assign(tokens.size(), learned);
    if (!tokens.empty()) s.supervised.front() = 0;
    return s;
  };
  const Sample a = sample(before, 0), b = sample(ids, 1);
  const Batch batch = before.empty() ? pack({&b}) : pack({&a, &b});
  std::fill(m.grads.begin(), m.grads.end(), 0.0F);
  Seen seen;
  const Schedule schedule = m.schedule();
  forward_backward(ctx, *m.model, m.weights(), m.gradient(), step_batch(batch), {.schedule = schedule, .dtype = dtype},
                   [&](std::span<const float> logp, std::span<float> dlogp) {
                     seen.logp.assign(logp.begin(), logp.end());
                     std::fill(dlogp.begin(), dlogp.end(), 1.0F);
                     return 0.0;
                   });
  seen.grads = m.grads;
  return seen;
}

}  // namespace

TEST_CASE("FieldD16_packing: no bit of a row or of its gradient moves when every token of its neighbour changes") {
  for (const std::string& name : oracle_models()) {
    if (name != "llama-gqa" && name != "gemma4-e4b-like" && name != "mistral-like") continue;
    CAPTURE(name);
    OracleModel m(name);
    const std::vector<int32_t> row = m.sample("pref0_chosen").ids;
    std::vector<int32_t> a = m.sample("pref0_rejected").ids, b = a;
    for (int32_t& id : b) id = (id + 7) % 256;
    for (DType dtype : {DType::f32, DType::bf16}) {
      const Seen with_a = seen_behind(m, a, row, dtype), with_b = seen_behind(m, b, row, dtype);
      CHECK(with_a.logp == with_b.logp);
      CHECK(with_a.grads == with_b.grads);
    }
  }
}

// Sums over keys fall into other blocks where a row begins elsewhere: the last bits differ, float32's 2^-24 over some hundred terms.
TEST_CASE("FieldD17_packing: a packed row has the log-probabilities of the row alone, whatever its rotary scaling") {
  for (const std::string& name : oracle_models()) {
    if (!std::filesystem::exists(oracle_dir() / name / "adapter")) continue;
    CAPTURE(name);
    OracleModel m(name);
    if (!m.samples.contains("pref0")) continue;
    const std::vector<int32_t> row = m.sample("pref0_chosen").ids, before = m.sample("pref0_rejected").ids;
    const Seen alone = seen_behind(m, {}, row, DType::f32), packed = seen_behind(m, before, row, DType::f32);
    REQUIRE(alone.logp.size() == packed.logp.size());
    for (size_t i = 0; i < alone.logp.size(); ++i)
      CHECK(packed.logp[i] == doctest::Approx(alone.logp[i]).epsilon(1e-4));
  }
}

TEST_CASE("packing: a step over all rows has the loss and the gradient of one without packing") {
  TinyRun run(12);
  run.config.max_steps = 1;
  run.config.max_seq_length = 128;
  run.config.batch_size = 2;
  TrainConfig whole = run.into("whole");
  whole.batch_size = 12;
  run.config.packing = true;
  Heard packed, at_once;
  {
    Heard counted;  // how many microbatches an epoch has
    run.config.num_epochs = 1, run.config.max_steps = 0;
    train(run.config, counted);
    CHECK(told(counted, "packing: 12 rows in "));
    fs::remove_all(run.config.adapter_path);
    run.config.grad_accumulation_steps = static_cast<int64_t>(counted.reports.size());
    CHECK(run.config.grad_accumulation_steps < 6);  // of two rows each without packing
    CHECK(run.config.grad_accumulation_steps > 1);
  }
  train(run.config, packed);
  train(whole, at_once);
  REQUIRE(packed.reports.size() == 1);
  CHECK(packed.reports[0].epoch == 1);
  CHECK(packed.reports[0].loss == doctest::Approx(at_once.reports[0].loss).epsilon(1e-6));
  CHECK(packed.reports[0].grad_norm == doctest::Approx(at_once.reports[0].grad_norm).epsilon(1e-6));
}

TEST_CASE("FieldT7_schedule: the run is counted in packed steps, and the rate reaches its end at the last one") {
  TinyRun run(40);
  run.config.packing = true;
  run.config.max_seq_length = 256;
  run.config.max_steps = 0;
  run.config.num_epochs = 2;
  run.config.lr_schedule = "linear_decay";
  run.config.steps_per_eval = 100;
  Heard heard;
  train(run.config, heard);
  const Json report = Json::parse(read_whole_file(fs::path(run.config.adapter_path) / "data_report.json"));
  const Json& packing = report["packing"];
  CHECK(packing["rows"] == 40);
  CHECK(static_cast<int64_t>(heard.reports.size()) == 2 * packing["microbatches"].get<int64_t>());
  CHECK(packing["fill"].get<double>() <= 1);
  CHECK(packing["fewest_microbatches"] <= packing["microbatches"]);
  const LrSchedule lr{
      .name = "linear_decay", .peak = run.config.learning_rate, .total = static_cast<int64_t>(heard.reports.size())};
  CHECK(heard.reports.back().learning_rate == doctest::Approx(lr.at(lr.total - 1)));
  CHECK(heard.reports.back().epoch == 2);
}

TEST_CASE("packing: killed between two saves and resumed, a run ends with the same bytes; pairs are packed, too") {
  for (const char* objective : {"sft", "orpo"}) {
    CAPTURE(objective);
    TinyRun run(20);
    if (objective == std::string("orpo")) {
      std::string rows;
      for (int i = 0; i < 20; ++i)
        rows += Json({{"prompt", fmt::format("say {}", i)},
                      {"chosen", std::string(static_cast<size_t>(5 + i % 7), 'y')},
                      {"rejected", std::string(static_cast<size_t>(3 + i % 5), 'n')}})
                    .dump() +
                "\n";
      write_text(run.folder / "data/train.jsonl", rows);
      write_text(run.folder / "data/valid.jsonl", rows);
      run.config.objective = "orpo";
    }
    run.config.packing = true;
    run.config.max_seq_length = 128;
    run.config.max_steps = 8;
    Heard whole, heard, resumed;
    train(run.config, whole);
    TrainConfig part = run.into("part");
    train(part, heard);
    for (int step : {6, 8}) fs::remove_all(fs::path(part.adapter_path) / fmt::format("step-{:07d}", step));
    part.resume = true;
    train(part, resumed);
    CHECK(resumed.reports.front().step == 5);
    CHECK(adapter_bytes(part) == adapter_bytes(run.config));
    part.packing = false;
    CHECK(message_of(part).find("packing is false, was true") != std::string::npos);
  }
}

TEST_CASE("packing: kto refuses it by name") {
  TinyRun run;
  run.config.objective = "kto";
  run.config.batch_size = 4;
  run.config.packing = true;
  CHECK(message_of(run.config).find("leave out packing") != std::string::npos);
}

}  // namespace sluice::test
