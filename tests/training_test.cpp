// Whole runs on a tiny model: what they write, what they refuse, and that the same seed gives the same bytes.
#include "train/trainer.h"

#include <cmath>
#include <limits>

#include "io/safetensors.h"
#include "model/adapter_file.h"
#include "ops/adamw/adamw.h"
#include "support/oracle_model.h"
#include "support/small_disk.h"
#include "support/tiny_run.h"
#include "train/checkpoint.h"
#include "train/lr_schedule.h"

namespace sluice::test {

TEST_CASE(
    "training: leaves the adapter, its checkpoints, metrics, plan and picture, and keeps the planned memory to the "
    "byte") {
  TinyRun run;
  Heard heard;
  const RunResult result = train(run.config, heard);
  const fs::path out(run.config.adapter_path);
  CHECK(result.steps == 6);
  CHECK(result.arena_used == result.arena_planned);
  for (const char* file : {"config.resolved.yaml", "plan.json", "data_report.json", "metrics.jsonl", "training.svg",
                           "last/adapter_config.json", "best/adapter_model.safetensors", "step-0000002/state.json",
                           "step-0000006/optimizer.safetensors"}) {
    CAPTURE(file);
    CHECK(fs::exists(out / file));
  }
  CHECK(heard.evals.front().step == 0);
  CHECK(heard.evals.back().loss < heard.evals.front().loss);
  CHECK(heard.saves == std::vector<int64_t>{2, 4, 6});
  CHECK(result.best_eval_loss <= result.first_eval_loss);
}

TEST_CASE("training: the first validation loss is that of the base, since B is zero") {
  TinyRun run;
  Heard heard;
  run.config.max_steps = 1;
  train(run.config, heard);
  const auto model = on_test_device(load_model(run.config.model));
  const ModelText text = load_model_text(*model->source);
  const Dataset valid = read_dataset((run.folder / "data/valid.jsonl").string(), text, {});
  TestContext ctx(detect_isa());
  double sum = 0;
  int64_t tokens = 0;
  for (const Sample& sample : valid.samples) {
    const Batch batch = pack({&sample});
    const Schedule plan = Schedule::uniform(model->config.num_layers, 1, Level::input);
    for (float logp : forward_logps(
             ctx, *model, {}, {.ids = batch.ids, .spans = batch.spans, .rows = batch.rows, .targets = batch.targets},
             {.schedule = plan, .dtype = DType::f32})) {
      sum -= static_cast<double>(logp), ++tokens;
    }
  }
  CHECK(heard.evals.front().loss == sum / static_cast<double>(tokens));
}

TEST_CASE("FieldL26_seed: two runs with one seed give the same losses and the same bytes, another seed gives others") {
  TinyRun run;
  run.config.max_steps = 20;
  run.config.dropout = 0.1;
  Heard first, second, third;
  TrainConfig again = run.into("again"), other = run.into("other");
  again.threads = 1;
  again.segment_size = 2;
  other.seed = 1;
  train(run.config, first);
  train(again, second);
  train(other, third);
  REQUIRE(first.reports.size() == second.reports.size());
  for (size_t i = 0; i < first.reports.size(); ++i) CHECK(first.reports[i].loss == second.reports[i].loss);
  CHECK(adapter_bytes(run.config) == adapter_bytes(again));
  CHECK(adapter_bytes(run.config) != adapter_bytes(other));
}

TEST_CASE(
    "FieldL5_learning: after one step from B = 0 every adapted module has learned, and an unchanged adapter fails the "
    "run") {
  TinyRun run;
  run.config.max_steps = 1;
  Heard heard;
  train(run.config, heard);
  const auto model = load_model(run.config.model);
  const LoadedAdapter adapter = load_adapter((fs::path(run.config.adapter_path) / "last").string(), model->config);
  for (const AdapterLayout::Entry& e : adapter.layout.entries()) {
    CAPTURE(module_name(e.layer, e.module));
    float largest = 0;
    for (int64_t i = 0; i < e.out * e.rank; ++i)
      largest = std::max(largest, std::abs(adapter.flat[static_cast<size_t>(e.b_offset + i)]));
    CHECK(largest > 0);
  }
  TrainConfig still = run.into("still");
  still.learning_rate = 0;
  CHECK(message_of(still).find("nothing was learned") != std::string::npos);
}

TEST_CASE("FieldC1_resume: a run stopped after a checkpoint and resumed ends with the bytes of an uninterrupted one") {
  TinyRun run(10);
  run.config.max_steps = 14;  // beyond one epoch
  run.config.dropout = 0.2;
  Heard whole, resumed;
  train(run.config, whole);
  TrainConfig part = run.into("part");
  {
    Heard heard;
    train(part, heard);
  }
  // As if it had been killed during step 7: what came later is gone.
  for (int step : {8, 10, 12, 14}) fs::remove_all(fs::path(part.adapter_path) / fmt::format("step-{:07d}", step));
  write_text(fs::path(part.adapter_path) / "step-0000008.tmp/adapter_model.safetensors", "half a file");
  part.resume = true;
  train(part, resumed);
  CHECK(resumed.reports.front().step == 7);
  CHECK(adapter_bytes(part) == adapter_bytes(run.config));
  for (size_t i = 0; i < resumed.reports.size(); ++i) CHECK(resumed.reports[i].loss == whole.reports[i + 6].loss);
  CHECK_FALSE(fs::exists(fs::path(part.adapter_path) / "step-0000008.tmp"));
  // The metrics tell one story.
  const auto steps = [](const std::vector<Json>& lines) {
    std::vector<int64_t> all;
    for (const Json& line : lines) all.push_back(line["step"].get<int64_t>());
    return all;
  };
  CHECK(steps(metrics(part)) == steps(metrics(run.config)));
}

TEST_CASE("FieldC1_refuse: a folder with checkpoints is not overwritten, and other settings do not resume") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  CHECK(message_of(run.config).find("--resume") != std::string::npos);
  TrainConfig other = run.config;
  other.resume = true;
  other.learning_rate = 5e-3;
  CHECK(message_of(other).find("learning_rate is 0.005, was 0.001;") != std::string::npos);
}

TEST_CASE("training: a run by rows does not resume by blocks, nor the other way, since their bytes differ") {
  for (const auto& [first, second] :
       {std::pair("auto", "by_blocks"), {"by_rows", "by_blocks"}, {"by_blocks", "auto"}}) {
    CAPTURE(first);
    TinyRun run;
    run.config.head = first;
    run.config.max_steps = 1;
    Heard heard;
    train(run.config, heard);
    run.config.resume = true;
    TrainConfig other = run.config;
    other.head = second;
    CHECK(message_of(other).find("other settings or data") != std::string::npos);
    // What is free: another way of cutting the same schedule.
    run.config.head_rows = 64;
    if (run.config.head == "auto") run.config.head = "by_rows";
    CHECK(message_of(run.config).find("other settings") == std::string::npos);
  }
}

TEST_CASE("FieldL25_finite: a loss that is not finite stops the run and keeps the last good checkpoint") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  const fs::path out(run.config.adapter_path);
  // Step 6 is poisoned with numbers that are finite and whose products are not: the resumed run must stop, and step 4 must stay whole.
  std::string bytes = read_whole_file(out / "step-0000006/adapter_model.safetensors");
  const std::vector<float> huge(64, std::numeric_limits<float>::max());
  std::memcpy(bytes.data() + bytes.size() - huge.size() * 4, huge.data(), huge.size() * 4);
  write_text(out / "step-0000006/adapter_model.safetensors", bytes);
  Json state = Json::parse(read_whole_file(out / "step-0000006/state.json"));
  state["step"] = 5;
  state["microbatches"] = 5;
  write_text(out / "step-0000006/state.json", state.dump());
  TrainConfig resumed = run.config;
  resumed.resume = true;
  const std::string message = message_of(resumed);
  CHECK(message.find("log-probability") != std::string::npos);
  const auto model = load_model(run.config.model);
  CHECK_NOTHROW(load_adapter((out / "step-0000004").string(), model->config));
}

namespace {

// Fills the disk after the first checkpoint.
class FillsDisk : public Heard {
 public:
  explicit FillsDisk(fs::path disk) : disk_(std::move(disk)) {}
  void saved(int64_t step, const std::string& folder) override {
    Heard::saved(step, folder);
    std::ofstream file(disk_ / "ballast", std::ios::binary);
    const std::string block(1 << 16, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())) && file.flush()) {
    }
  }

 private:
  fs::path disk_;
};

}  // namespace

TEST_CASE(
    "FieldC4_disk: a disk that is too small is found at the start, and one that fills up later leaves the last "
    "checkpoint whole") {
  TinyRun run;
  const fs::path disk = run.folder / "disk";
  const SmallDisk small(disk, "1m");
  if (!small.mounted()) return;
  run.config.adapter_path = (disk / "out").string();
  run.config.rank = 32;
  const std::string message = message_of(run.config);
  CHECK(message.find("free on the disk") != std::string::npos);
  run.config.rank = 4;
  FillsDisk heard(disk);
  std::string failure;
  try {
    train(run.config, heard);
  } catch (const Error& e) {
    failure = e.what();
  }
  CAPTURE(failure);
  CHECK(failure.find("saving a checkpoint") != std::string::npos);
  CHECK(failure.find("free") != std::string::npos);
  const auto found = find_checkpoint(run.config.adapter_path);
  REQUIRE(found.has_value());
  CHECK(found->state.step == 2);
  CHECK_NOTHROW(load_adapter(found->folder, load_model(run.config.model)->config));
}

TEST_CASE("FieldD3_labels: rows whose answers are cut away end the run with the setting and a value that works") {
  TinyRun run;
  std::string rows;
  for (int i = 0; i < 8; ++i) rows += Json({{"prompt", std::string(300, 'x')}, {"completion", "yes"}}).dump() + "\n";
  write_text(run.folder / "data/train.jsonl", rows);
  run.config.max_seq_length = 200;
  run.config.truncate = "true";
  const std::string message = message_of(run.config);
  CHECK(message.find("max_seq_length") != std::string::npos);
  CHECK_FALSE(fs::exists(fs::path(run.config.adapter_path) / "last"));
}

// The oracle of weights: a row of weight 2 is that row twice, one of weight 0 is no row, and a factor on all weights changes nothing.
TEST_CASE("training: weights of rows and messages are those of a mean: loss, gradient and validation") {
  TinyRun run;
  run.config.max_steps = 3;
  run.config.shuffle = false;
  run.config.precision = "fp32";
  const auto row = [](const std::string& answer, double weight) {
    return Json({{"messages",
                  {{{"role", "user"}, {"content", "say " + answer}},
                   {{"role", "assistant"}, {"content", answer}, {"weight", weight}}}}})
               .dump() +
           "\n";
  };
  const auto train_on = [&](const char* name, const std::string& rows, int64_t batch_size) {
    TrainConfig config = run.into(name);
    config.data = (run.folder / name).string() + ".data";
    config.batch_size = batch_size;
    for (const char* file : {"train.jsonl", "valid.jsonl"}) write_text(fs::path(config.data) / file, rows);
    Heard heard;
    train(config, heard);
    const LoadedAdapter adapter =
        load_adapter((fs::path(config.adapter_path) / "last").string(), load_model(config.model)->config);
    return std::pair(heard, adapter.flat);
  };
  const std::string one = "first answer", two = "another, longer one", no = "not this";
  const auto [plain, expected] = train_on("twice", row(one, 1) + row(one, 1) + row(two, 1), 3);
  const auto close = [&](const Heard& heard, const auto& flat) {
    for (size_t i = 0; i < plain.reports.size(); ++i)
      CHECK(heard.reports[i].loss == doctest::Approx(plain.reports[i].loss).epsilon(1e-5));
    for (size_t i = 0; i < plain.evals.size(); ++i)
      CHECK(heard.evals[i].loss == doctest::Approx(plain.evals[i].loss).epsilon(1e-5));
    REQUIRE(flat.size() == expected.size());
    double difference = 0, size = 0;
    for (size_t i = 0; i < flat.size(); ++i) {
      difference += std::pow(static_cast<double>(flat[i]) - static_cast<double>(expected[i]), 2);
      size += std::pow(static_cast<double>(expected[i]), 2);
    }
    CHECK(std::sqrt(difference / size) < 1e-3);  // Adam's first steps are signs: rounding of a tiny gradient shows
  };
  const auto [weighed, weighed_flat] = train_on("weighed", row(one, 2) + row(two, 1), 2);
  close(weighed, weighed_flat);
  const auto [scaled, scaled_flat] = train_on("scaled", row(one, 0.5) + row(no, 0) + row(two, 0.25), 2);
  close(scaled, scaled_flat);
  const auto [unweighed, unweighed_flat] = train_on("unweighed", row(one, 1) + row(two, 1), 2);
  CHECK(unweighed.reports[0].loss != doctest::Approx(plain.reports[0].loss).epsilon(1e-5));
}

TEST_CASE("training: valid_fraction holds out a part of the rows, and is refused beside valid.jsonl") {
  TinyRun run;
  fs::remove(run.folder / "data/valid.jsonl");
  std::string rows;
  for (int i = 0; i < 40; ++i)
    rows += Json({{"prompt", "say " + std::to_string(i)}, {"completion", std::to_string(i)}}).dump() + "\n";
  write_text(run.folder / "data/train.jsonl", rows);
  run.config.valid_fraction = 0.25;
  run.config.max_steps = 4;
  Heard whole;
  train(run.config, whole);
  const Json report = Json::parse(read_whole_file(fs::path(run.config.adapter_path) / "data_report.json"));
  CHECK(report["train"]["rows_kept"].get<int>() + report["valid"]["rows_kept"].get<int>() == 40);
  CHECK(report["train"]["rows_of_other_part"] == report["valid"]["rows_kept"]);
  CHECK_FALSE(whole.evals.empty());
  write_text(run.folder / "data/valid.jsonl", rows);
  CHECK(message_of(run.into("both")).find("valid_fraction is given") != std::string::npos);
}

TEST_CASE("FieldU13_start: the phases before the first step are told, and the first step is reported at once") {
  TinyRun run;
  run.config.steps_per_report = 100;
  Heard heard;
  train(run.config, heard);
  std::vector<std::string> expected = {"opening", "reading", "planning", "training"};
  if (on_cuda()) expected.insert(expected.begin() + 3, "copying the base");
  REQUIRE(heard.phases.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) CHECK(heard.phases[i].starts_with(expected[i]));
  CHECK(heard.reports.front().step == 1);
}

TEST_CASE("FieldU5_warmup: the learning rate counts optimizer steps, whatever the accumulation") {
  const LrSchedule lr{.name = "cosine_decay", .peak = 3e-4, .warmup = 10, .total = 100};
  CHECK(lr.at(0) == 0);
  CHECK(lr.at(5) == doctest::Approx(1.5e-4));
  CHECK(lr.at(10) == 3e-4);
  CHECK(lr.at(100) == doctest::Approx(0).epsilon(1e-12));
  TinyRun run;
  run.config.grad_accumulation_steps = 4;
  run.config.max_steps = 12;
  run.config.warmup = 10;
  run.config.lr_schedule = "constant";
  Heard heard;
  train(run.config, heard);
  CHECK(heard.reports[10].learning_rate == run.config.learning_rate);
  CHECK(heard.reports[9].learning_rate < run.config.learning_rate);
}

TEST_CASE("FieldL8_accumulation: four passes of one row give the gradient and the loss of one pass of four rows") {
  TinyRun run;
  std::string rows;
  for (int tokens : {3, 50, 700, 5})
    rows += Json({{"prompt", "p"}, {"completion", std::string(static_cast<size_t>(tokens), 'k')}}).dump() + "\n";
  write_text(run.folder / "data/train.jsonl", rows);
  run.config.max_steps = 1;
  run.config.warmup = 0;
  run.config.lr_schedule = "constant";
  TrainConfig whole = run.into("whole");
  run.config.grad_accumulation_steps = 4;
  whole.batch_size = 4;
  Heard one_by_one, at_once;
  train(run.config, one_by_one);
  train(whole, at_once);
  CHECK(one_by_one.reports[0].loss == doctest::Approx(at_once.reports[0].loss).epsilon(1e-6));
  CHECK(one_by_one.reports[0].grad_norm == doctest::Approx(at_once.reports[0].grad_norm).epsilon(1e-6));
}

TEST_CASE("FieldL17_dropout: the gradient with dropout is the same bytes for every segment size and level") {
  OracleModel m("llama-gqa");
  TestContext ctx(detect_isa());
  std::vector<float> first;
  for (int64_t segment : {1, 2, 4}) {
    for (Level level : {Level::input, Level::attention, Level::all}) {
      m.sft(ctx, {m.sample("sft0")}, false, DType::f32, m.schedule(segment, level), {.p = 0.3F, .seed = 3, .step = 9});
      if (first.empty()) first = m.grads;
      CHECK(m.grads == first);
    }
  }
  m.sft(ctx, {m.sample("sft0")}, false, DType::f32, m.schedule(), {.p = 0.3F, .seed = 3, .step = 10});
  CHECK(m.grads != first);
}

TEST_CASE(
    "FieldM5_validation: validation takes no more memory than training at equal length, and a longer row is planned "
    "for") {
  TinyRun run;
  Heard heard;
  run.config.level = "input";
  run.config.segment_size = 2;
  {
    const Run planned(run.config, heard);
    CHECK(planned.plan().validation_bytes <= planned.plan().step_bytes);
  }
  write_text(run.folder / "data/valid.jsonl",
             Json({{"prompt", std::string(900, 'a')}, {"completion", std::string(900, 'b')}}).dump() + "\n");
  const RunResult result = train(run.config, heard);
  CHECK(result.arena_used == result.arena_planned);
}

TEST_CASE("training: the AdamW trajectory of the oracle") {
  for (const std::string& name : oracle_models()) {
    OracleModel m(name);
    if (!m.oracle.meta().contains("adamw") || !m.oracle.has("adamw/final/layers.0.self_attn.q_proj/A")) continue;
    CAPTURE(name);
    const Json& about = m.oracle.meta()["adamw"];
    TestContext ctx(detect_isa());
    const auto n = static_cast<int64_t>(m.adapter.flat.size());
    std::vector<float> moment1(m.adapter.flat.size(), 0.0F), moment2 = moment1;
    const auto tensor = [&](std::vector<float>& v) {
      return Tensor{.data = v.data(), .dtype = DType::f32, .shape = {n}};
    };
    LrSchedule lr{.name = "cosine_decay",
                  .peak = about["lr"].get<double>(),
                  .warmup = about["warmup_steps"].get<int64_t>(),
                  .total = about["total_steps"].get<int64_t>()};
    for (int64_t step = 0; step < about["steps"].get<int64_t>(); ++step) {
      CAPTURE(step);
      const auto i = static_cast<size_t>(step);
      CHECK(lr.at(step) == doctest::Approx(about["lrs"][i].get<double>()));
      const double loss =
          m.sft(ctx, {m.sample(about["samples"][i].get<std::string>())}, false, DType::f32, m.schedule());
      CHECK(loss == doctest::Approx(about["losses"][i].get<double>()).epsilon(2e-5));
      adamw(ctx, {.p = tensor(m.adapter.flat),
                  .m = tensor(moment1),
                  .v = tensor(moment2),
                  .g = tensor(m.grads),
                  .lr = static_cast<float>(lr.at(step)),
                  .weight_decay = about["weight_decay"].get<float>(),
                  .t = step + 1});
    }
    for (const AdapterLayout::Entry& e : m.adapter.layout.entries()) {
      for (bool b : {false, true}) {
        const std::string key = "adamw/final/" + module_name(e.layer, e.module) + (b ? "/B" : "/A");
        CAPTURE(key);
        const auto begin = m.adapter.flat.begin() + (b ? e.b_offset : e.a_offset);
        CHECK(relative_l2(to_double(std::vector<float>(begin, begin + (b ? e.out * e.rank : e.rank * e.in))),
                          m.oracle.values(key)) < 3e-4);
      }
    }
  }
}

TEST_SUITE("full") {
  TEST_CASE("FieldM1_leak: over 500 steps of random lengths memory stays where it was") {
    TinyRun run(200, 900);
    run.config.max_steps = 500;
    run.config.save_every = 0;
    run.config.steps_per_eval = 0;
    run.config.precision = "bf16";
    Heard heard;
    const RunResult result = train(run.config, heard);
    CHECK(result.arena_used == result.arena_planned);
    int64_t early = 0, late = 0;
    for (const TrainReport& r : heard.reports) {
      if (r.step == 350) early = r.peak_bytes;  // by then oneDNN has its kernels for every length of a last row chunk
      if (r.step == 500) late = r.peak_bytes;
    }
    REQUIRE(early > 0);
    CHECK(static_cast<double>(late) < 1.02 * static_cast<double>(early));
  }
}

}  // namespace sluice::test
