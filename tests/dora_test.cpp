// DoRA in whole models and runs. The oracle's own case is in adapter_test.cpp, the op's derivation in docs/math/dora.md.
#include "model/dora.h"

#include "infer/adapter_set.h"
#include "infer/generate.h"
#include "io/safetensors.h"
#include "support/oracle_model.h"
#include "support/tiny_run.h"
#include "train/trainer.h"

namespace sluice::test {

namespace {

// The oracle's DoRA adapter on a model of the same shapes.
void use_dora_adapter(OracleModel& m) {
  ThreadPool pool(2);
  m.adapter = load_adapter((Oracle("lora_variants").path() / "dora").string(), m.model->config);
  prepare_adapter(pool, *m.model, m.adapter);
  m.grads.assign(m.adapter.flat.size(), 0.0F);
}

}  // namespace

TEST_CASE(
    "dora: the gradient is the same bytes for every segment size, level and number of threads, on stored weights too") {
  for (const char* name : {"llama-gqa", "llama-gqa-q4g64"}) {
    CAPTURE(name);
    OracleModel m(name);
    use_dora_adapter(m);
    std::vector<float> first;
    for (int threads : {2, 1}) {
      TestContext ctx(detect_isa(), threads);
      for (int64_t segment : {1, 2, 4}) {
        for (Level level : {Level::input, Level::attention, Level::all}) {
          m.sft(ctx, {m.sample("sft0")}, false, DType::bf16, m.schedule(segment, level),
                {.p = 0.3F, .seed = 3, .step = 9});
          if (first.empty()) first = m.grads;
          CHECK(m.grads == first);
        }
      }
    }
    for (const AdapterLayout::Entry& e : m.adapter.layout.entries()) {
      CAPTURE(module_name(e.layer, e.module));
      CHECK(std::any_of(first.begin() + e.magnitude_offset, first.begin() + e.magnitude_offset + e.out,
                        [](float g) { return g != 0; }));
    }
  }
}

TEST_CASE(
    "dora: a run starts as the base, keeps the planned memory to the byte, learns every part, and resumes to the same "
    "bytes" *
    doctest::test_suite("full")) {
  TinyRun run(10);
  run.config.fine_tune_type = "dora";
  run.config.max_steps = 14;
  run.config.dropout = 0.1;
  run.config.rs_lora = true;
  run.config.alpha = 8;
  TrainConfig plain = run.into("plain"), part = run.into("part"), lean = run.into("lean");
  Heard heard, other;
  const RunResult result = train(run.config, heard);
  CHECK(result.arena_used == result.arena_planned);
  plain.fine_tune_type = "lora";
  plain.max_steps = 1;
  train(plain, other);
  CHECK(heard.evals.front().loss == other.evals.front().loss);  // that of the base, to the bit
  CHECK(heard.evals.back().loss < heard.evals.front().loss);

  const auto model = load_model(run.config.model);
  const LoadedAdapter adapter = load_adapter((fs::path(run.config.adapter_path) / "last").string(), model->config);
  CHECK(adapter.layout.spec().dora);
  for (const AdapterLayout::Entry& e : adapter.layout.entries()) {
    CAPTURE(module_name(e.layer, e.module));
    double squares = 0, moved = 0;
    const auto* w = reinterpret_cast<const float*>(linear_of(*model, e.layer, e.module).weight.data);
    for (int64_t o = 0; o < e.out; ++o, squares = 0) {
      for (int64_t i = 0; i < e.in; ++i) squares += std::pow(static_cast<double>(w[o * e.in + i]), 2);
      const auto magnitude = static_cast<double>(adapter.flat[static_cast<size_t>(e.magnitude_offset + o)]);
      CHECK(std::abs(magnitude - std::sqrt(squares)) < 0.05);  // 14 steps of at most 1e-3
      moved = std::max(moved, std::abs(magnitude - std::sqrt(squares)));
    }
    CHECK(moved > 1e-4);
  }

  train(part, other);
  for (int step : {8, 10, 12, 14}) fs::remove_all(fs::path(part.adapter_path) / fmt::format("step-{:07d}", step));
  part.resume = true;
  train(part, other);
  CHECK(adapter_bytes(part) == adapter_bytes(run.config));
  lean.segment_size = 2;
  lean.threads = 1;
  train(lean, other);
  CHECK(adapter_bytes(lean) == adapter_bytes(run.config));
}

TEST_CASE(
    "dora: an adapter survives PEFT, mlx-lm and PEFT again to the bit, and one without its magnitudes is refused") {
  OracleModel m("llama-gqa");
  use_dora_adapter(m);
  TemporaryFolder folder;
  const AdapterLayout& layout = m.adapter.layout;
  save_mlx_adapter((folder / "mlx").string(), layout, m.adapter.flat.data(), m.model->config.num_layers);
  const Json config = Json::parse(read_whole_file(folder / "mlx/adapter_config.json"));
  CHECK(config["fine_tune_type"] == "dora");
  const LoadedAdapter second = load_adapter((folder / "mlx").string(), m.model->config);
  save_peft_adapter((folder / "peft").string(), second.layout, second.flat.data(), "base");
  const LoadedAdapter third = load_adapter((folder / "peft").string(), m.model->config);
  CHECK(second.layout.spec().dora);
  CHECK(second.flat == m.adapter.flat);
  CHECK(third.flat == m.adapter.flat);

  // PEFT's own names and shapes.
  const SafetensorsFile theirs((Oracle("lora_variants").path() / "dora/adapter_model.safetensors").string()),
      ours((folder / "peft/adapter_model.safetensors").string());
  CHECK(theirs.tensors().size() == ours.tensors().size());
  for (const StoredTensor& t : theirs.tensors()) {
    CAPTURE(t.name);
    REQUIRE(ours.find(t.name) != nullptr);
    CHECK(ours.find(t.name)->shape == t.shape);
  }

  Json broken = config;
  broken["fine_tune_type"] = "lora";
  write_text(folder / "mlx/adapter_config.json", broken.dump());
  CHECK_THROWS_WITH_AS(load_adapter((folder / "mlx").string(), m.model->config),
                       doctest::Contains("says nothing of DoRA"), Error);
  fs::copy(m.oracle.path() / "adapter", folder / "none");
  broken = Json::parse(read_whole_file(folder / "none/adapter_config.json"));
  broken["use_dora"] = true;
  write_text(folder / "none/adapter_config.json", broken.dump());
  CHECK_THROWS_WITH_AS(load_adapter((folder / "none").string(), m.model->config), doctest::Contains("has no magnitude"),
                       Error);
}

TEST_CASE("dora: decoding continues as the prefill would, several sequences at once, and other than the base") {
  for (const char* name : {"llama-gqa", "llama-gqa-q4g64"}) {
    CAPTURE(name);
    const auto model = on_test_device(load_model((oracle_dir() / name).string()));
    ThreadPool pool(2);
    AdapterSet adapters(pool, *model);
    adapters.mount("dora", (Oracle("lora_variants").path() / "dora").string());
    Generator generator(pool, *model, {.max_sequences = 2, .max_tokens = 64, .dtype = DType::f32});
    const std::vector<GenerateRequest> requests = {{.prompt = {5, 9, 31, 200}, .max_new_tokens = 8},
                                                   {.prompt = {77, 3}, .max_new_tokens = 8}};
    const std::vector<GenerateResult> results = generator.generate(requests, *adapters.get("dora"));
    bool differs = false;
    for (size_t r = 0; r < requests.size(); ++r) {
      std::vector<int32_t> ids = requests[r].prompt;
      for (int32_t token : results[r].tokens) {
        const GenerateResult next = generator.generate({.prompt = ids, .max_new_tokens = 1}, *adapters.get("dora"));
        if (next.smallest_gap > 1e-3F) CHECK(next.tokens.front() == token);
        ids.push_back(token);
      }
      differs = differs || generator.generate(requests[r], {}).tokens != results[r].tokens;
    }
    CHECK(differs);
  }
}

}  // namespace sluice::test
