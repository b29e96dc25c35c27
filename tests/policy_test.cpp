// Ranks by module, rates by kind, and adapters to start from.
#include "model/rank_policy.h"

#include <algorithm>
#include <set>

#include "io/gguf.h"
#include "model/dora.h"
#include "ops/adamw/adamw_ref.h"
#include "support/oracle_model.h"
#include "support/tiny_run.h"
#include "train/adapter_setup.h"
#include "train/adapter_update.h"
#include "train/trainer.h"

namespace sluice::test {

namespace {

const AdapterLayout::Entry& entry(const AdapterLayout& layout, int64_t layer, Module module) {
  const AdapterLayout::Entry* found = layout.find(layer, module);
  REQUIRE(found != nullptr);
  return *found;
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string run_refusal(const TrainConfig& config) {
  Heard heard;
  return refusal([&] { train(config, heard); });
}

// A fresh adapter whose B is not zero.
LoadedAdapter random_adapter(const ModelConfig& config, const AdapterSpec& spec) {
  LoadedAdapter adapter;
  adapter.layout = AdapterLayout(config, spec);
  adapter.flat.assign(static_cast<size_t>(adapter.layout.size()), 0.0F);
  for (const AdapterLayout::Entry& e : adapter.layout.entries()) {
    const auto put = [&](int64_t at, int64_t count, uint32_t seed) {
      const std::vector<float> v = random_values(static_cast<size_t>(count), seed, 0.1F);
      std::copy(v.begin(), v.end(), adapter.flat.begin() + at);
    };
    put(e.a_offset, e.rank * e.in, static_cast<uint32_t>(3 + e.layer));
    put(e.b_offset, e.out * e.rank, static_cast<uint32_t>(40 + e.layer));
    if (spec.dora) put(e.magnitude_offset, e.out, static_cast<uint32_t>(70 + e.layer));
  }
  return adapter;
}

}  // namespace

TEST_CASE(
    "rank_policy by_bits: rank * stored bits / 4, the rank itself where nothing is quantised, one scale for all, and "
    "the user's "
    "patterns win") {
  const auto model = load_model((oracle_dir() / "llama-gqa-mixed").string());
  AdapterSpec spec{.rank = 6, .alpha = 9};
  spec.rank_pattern = {{"layers.0.self_attn.v_proj", 5}};
  const AdapterLayout layout(model->config, with_ranks(*model, spec, RankPolicy::by_bits));
  std::set<int> seen;
  for (const AdapterLayout::Entry& e : layout.entries()) {
    CAPTURE(module_name(e.layer, e.module));
    const Weight& weight = linear_of(*model, e.layer, e.module).weight;
    const int bits = weight.format == WeightFormat::affine ? weight.bits : 32;
    seen.insert(bits);
    if (e.layer == 0 && e.module == Module::v_proj) {
      CHECK(e.rank == 5);
      CHECK(e.scale == doctest::Approx(9.0 / 5));  // PEFT: a pattern of ranks alone leaves alpha
      continue;
    }
    CHECK(e.rank == (bits == 32 ? 6 : 6 * bits / 4));
    CHECK(e.scale == doctest::Approx(1.5));
  }
  CHECK(seen == std::set<int>{4, 8, 32});
  // Rank-stabilised: alpha is the constant.
  spec.rank_stabilised = true;
  const AdapterLayout stable(model->config, with_ranks(*model, spec, RankPolicy::by_bits));
  CHECK(entry(stable, 0, Module::q_proj).rank == 12);  // 8 bits
  CHECK(entry(stable, 0, Module::q_proj).scale == doctest::Approx(9 / std::sqrt(12.0)));
}

TEST_CASE("rank_policy by_bits: halves round up, a rank is at least 1, and codes count without their scales") {
  CHECK(code_bits({.format = WeightFormat::q4_k}) == 4);
  CHECK(code_bits({.format = WeightFormat::q5_0}) == 5);
  CHECK(code_bits({.format = WeightFormat::q6_k}) == 6);
  CHECK(code_bits({.format = WeightFormat::q8_0}) == 8);
  CHECK(code_bits({.format = WeightFormat::bf16}) == 16);
  CHECK(code_bits({.format = WeightFormat::f32}) == 32);
  auto model = load_model((oracle_dir() / "llama-gqa-mixed").string());
  const auto rank_of = [&](int64_t rank, int bits) {
    model->layers[1].q.weight.bits = bits;
    const AdapterLayout layout(model->config,
                               with_ranks(*model, {.rank = rank, .targets = {"q_proj"}}, RankPolicy::by_bits));
    return entry(layout, 1, Module::q_proj).rank;
  };
  CHECK(rank_of(2, 3) == 2);  // 1.5
  CHECK(rank_of(3, 6) == 5);  // 4.5
  CHECK(rank_of(1, 2) == 1);  // 0.5
  CHECK(rank_of(5, 3) == 4);  // 3.75
}

TEST_CASE("rank_policy by_kl: rank * clip(kl / median, 0.5, 2) over the adapted modules") {
  const auto model = load_model((oracle_dir() / "llama-gqa-mixed").string());
  const Json about = *model->source->side_file("optiq_metadata.json");
  const AdapterSpec spec{.rank = 10, .alpha = 20, .targets = {"v_proj", "down_proj"}};
  const AdapterLayout layout(model->config, with_ranks(*model, spec, RankPolicy::by_kl));
  std::vector<double> kl;
  for (int layer = 0; layer < 4; ++layer) {
    for (const char* path : {"self_attn.v_proj", "mlp.down_proj"})
      kl.push_back(about["per_layer"][fmt::format("model.layers.{}.{}", layer, path)]["kl"].get<double>());
  }
  std::vector<double> sorted = kl;
  std::sort(sorted.begin(), sorted.end());
  const double median = (sorted[3] + sorted[4]) / 2;
  REQUIRE(layout.entries().size() == 8);
  bool above = false, below = false;
  for (size_t i = 0; i < 8; ++i) {
    const double factor = std::min(2.0, std::max(0.5, kl[i] / median));
    CHECK(layout.entries()[i].rank == static_cast<int64_t>(std::floor(10 * factor + 0.5)));
    CHECK(layout.entries()[i].scale == doctest::Approx(2));
    above = above || layout.entries()[i].rank == 20;
    below = below || layout.entries()[i].rank == 5;
  }
  CHECK(above);
  CHECK(below);
}

TEST_CASE(
    "rank_policy by_kl: modules without a figure keep the rank and are named; without the file, or any figure, it is "
    "refused") {
  const auto plain = load_model((oracle_dir() / "llama-gqa").string());
  CHECK(refusal([&] { with_ranks(*plain, {}, RankPolicy::by_kl); }).find("optiq_metadata.json") != std::string::npos);
  TemporaryFolder folder;
  fs::copy(oracle_dir() / "llama-gqa-mixed", folder / "m", fs::copy_options::recursive);
  Json about = Json::parse(read_whole_file(folder / "m/optiq_metadata.json"));
  about["per_layer"].erase("model.layers.2.mlp.up_proj");
  // Older files nest it.
  write_text(folder / "m/optiq_metadata.json", Json({{"optimization", about}}).dump());
  const auto model = load_model((folder / "m").string());
  const AdapterSpec spec{.rank = 10, .alpha = 20, .targets = {"up_proj"}};
  const AdapterLayout layout(model->config, with_ranks(*model, spec, RankPolicy::by_kl));
  CHECK(entry(layout, 2, Module::up_proj).rank == 10);
  std::vector<double> kl;
  for (int layer : {0, 1, 3})
    kl.push_back(about["per_layer"][fmt::format("model.layers.{}.mlp.up_proj", layer)]["kl"].get<double>());
  std::vector<double> sorted = kl;
  std::sort(sorted.begin(), sorted.end());
  const double factor = std::min(2.0, std::max(0.5, kl[2] / sorted[1]));
  CHECK(entry(layout, 3, Module::up_proj).rank == static_cast<int64_t>(std::floor(10 * factor + 0.5)));
  const std::string told = without_figures(*model, layout);
  CHECK_MESSAGE(told.find("1 of 4 adapted modules (layers.2.mlp.up_proj)") != std::string::npos, told);
  const AdapterLayout q(model->config, with_ranks(*model, {.targets = {"q_proj"}}, RankPolicy::by_kl));
  CHECK(without_figures(*model, q).empty());
  CHECK(refusal([&] {
          with_ranks(*model, {.targets = {"layers.2.mlp.up_proj"}}, RankPolicy::by_kl);
        }).find("no kl for any adapted module") != std::string::npos);
}

TEST_CASE("rank_policy: a run by_bits saves what PEFT reads, resumes, and shows its ranks by layer") {
  TinyRun run;
  fs::remove_all(run.folder / "model");
  write_tiny_model(run.folder / "model", "llama-gqa-mixed");
  run.config.rank_policy = "by_bits";
  run.config.max_steps = 2;
  Heard heard;
  const RunResult result = train(run.config, heard);
  CHECK(result.arena_used == result.arena_planned);
  const auto model = load_model(run.config.model);
  const LoadedAdapter adapter = load_adapter((fs::path(run.config.adapter_path) / "last").string(), model->config);
  const AdapterLayout wanted = adapter_layout(run.config, *model);
  for (const AdapterLayout::Entry& e : wanted.entries()) {
    CHECK(entry(adapter.layout, e.layer, e.module).rank == e.rank);
    CHECK(entry(adapter.layout, e.layer, e.module).scale == e.scale);
  }
  CHECK(rank_table(wanted).find("layer 0        q_proj 8, k_proj 8") != std::string::npos);
  run.config.resume = true;
  CHECK_NOTHROW(train(run.config, heard));
}

TEST_CASE("update_adapter: B takes its own rate, A and B decay, a magnitude does not") {
  const auto model = load_model((oracle_dir() / "llama-gqa").string());
  LoadedAdapter adapter = random_adapter(model->config, {.rank = 3, .dora = true, .targets = {"q_proj", "down_proj"}});
  const AdapterLayout& layout = adapter.layout;
  const auto n = static_cast<size_t>(layout.size());
  std::vector<float> p = adapter.flat, m = random_values(n, 8, 0.01F), v = random_values(n, 9, 0.1F),
                     g = random_values(n, 10);
  for (float& x : v) x *= x;
  const std::vector<float> p0 = p, m0 = m, v0 = v;
  const auto tensor = [&](std::vector<float>& values) {
    return Tensor{.data = values.data(), .dtype = DType::f32, .shape = {layout.size()}};
  };
  TestContext ctx(detect_isa());
  const AdamW step{
      .p = tensor(p), .m = tensor(m), .v = tensor(v), .g = tensor(g), .lr = 0.01F, .weight_decay = 0.3F, .t = 4};
  update_adapter(ctx, layout, step, 16);
  const auto expected = [&](int64_t begin, int64_t end, double lr, double decay) {
    std::vector<double> part[4];
    const std::vector<float>* from[] = {&p0, &m0, &v0, &g};
    for (int i = 0; i < 4; ++i) part[i].assign(from[i]->begin() + begin, from[i]->begin() + end);
    ref::adamw<double>(end - begin, part[0].data(), part[1].data(), part[2].data(), part[3].data(), 1, lr, 0.9F, 0.999F,
                       1e-8F, decay, 4);
    CHECK(relative_l2(to_double(std::vector<float>(p.begin() + begin, p.begin() + end)), part[0]) < 1e-6);
  };
  expected(0, layout.b_begin(), 0.01F, 0.3F);
  expected(layout.b_begin(), layout.magnitude_begin(), 0.16F, 0.3F);
  expected(layout.magnitude_begin(), layout.size(), 0.01F, 0);
}

TEST_CASE("update_adapter: with a ratio of 1 it is AdamW over all of the adapter, to the bit") {
  const auto model = load_model((oracle_dir() / "llama-gqa").string());
  LoadedAdapter adapter = random_adapter(model->config, {.rank = 3});
  const std::vector<float> g = random_values(adapter.flat.size(), 10);
  TestContext ctx(detect_isa());
  std::vector<float> results[2];
  for (bool parts : {false, true}) {
    std::vector<float> p = adapter.flat, m(p.size(), 0.0F), v = m, gradient = g;
    const auto tensor = [&](std::vector<float>& values) {
      return Tensor{.data = values.data(), .dtype = DType::f32, .shape = {adapter.layout.size()}};
    };
    const AdamW step{
        .p = tensor(p), .m = tensor(m), .v = tensor(v), .g = tensor(gradient), .lr = 1e-3F, .weight_decay = 0.01F};
    if (parts) update_adapter(ctx, adapter.layout, step, 1);
    else adamw(ctx, step);
    results[parts ? 1 : 0] = p;
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("dropout: a mask is a function of seed, step, microbatch, layer and module, and of no other thing") {
  const LoraLinear q0{.layer = 0, .module = Module::q_proj}, q1{.layer = 1, .module = Module::q_proj},
      v0{.layer = 0, .module = Module::v_proj};
  const DropoutKey key{.p = 0.5F, .seed = 7, .step = 3, .microbatch = 2};
  const Dropout d = q0.dropout(key, 256);
  CHECK(d.stream == q0.dropout(key, 0).stream);  // a tile of the same batch
  CHECK(d.row_begin == 256);
  DropoutKey other = key;
  other.step = 4;
  std::vector<uint64_t> streams = {d.stream, q1.dropout(key, 0).stream, v0.dropout(key, 0).stream,
                                   q0.dropout(other, 0).stream};
  other = key;
  other.microbatch = 3;
  streams.push_back(q0.dropout(other, 0).stream);
  std::sort(streams.begin(), streams.end());
  CHECK(std::unique(streams.begin(), streams.end()) == streams.end());
  CHECK(d.seed == 7);
}

TEST_CASE("FieldC10_rslora: a rank-stabilised adapter gives the same log-probabilities from PEFT, mlx-lm and GGUF") {
  OracleModel m("llama-gqa");
  TestContext ctx(detect_isa());
  AdapterSpec spec{.rank = 6, .alpha = 3, .rank_stabilised = true, .targets = {"q_proj", "k_proj", "down_proj"}};
  for (bool patterns : {false, true}) {
    CAPTURE(patterns);
    if (patterns) spec.rank_pattern = {{"down_proj", 2}}, spec.alpha_pattern = {{"k_proj", 7}};
    LoadedAdapter ours = random_adapter(m.model->config, spec);
    TemporaryFolder folder;
    const std::string peft = (folder / "peft").string(), mlx = (folder / "mlx").string(),
                      gguf = (folder / "adapter.gguf").string();
    save_peft_adapter(peft, ours.layout, ours.flat.data(), "base");
    save_mlx_adapter(mlx, ours.layout, ours.flat.data(), m.model->config.num_layers);
    save_gguf_adapter(gguf, ours.layout, ours.flat.data(), m.model->config);
    CHECK(Json::parse(read_whole_file(folder / "peft/adapter_config.json"))["use_rslora"] == true);
    // llama.cpp's strength is alpha / rank of the file.
    const GgufFile file(gguf);
    if (!patterns) CHECK(*file.get("adapter.lora.alpha")->number() == doctest::Approx(3 / std::sqrt(6.0) * 6));
    m.adapter = std::move(ours);
    const std::vector<double> expected = m.logps(ctx, m.sample("len24"), true, DType::f32);
    CHECK(max_difference(expected, m.logps(ctx, m.sample("len24"), false, DType::f32)) > 0.1);
    for (const std::string& path : {peft, mlx, gguf}) {
      CAPTURE(path);
      m.adapter = load_adapter(path, m.model->config);
      CHECK(max_difference(m.logps(ctx, m.sample("len24"), true, DType::f32), expected) < 1e-5);
    }
  }
}

TEST_CASE("GGUF adapters: q and k of Llama lie as the base's rows do, another model's and DoRA ones are refused") {
  const auto model = load_model((oracle_dir() / "llama-gqa").string());
  LoadedAdapter ours = random_adapter(model->config, {.rank = 2, .alpha = 4, .targets = {"q_proj", "v_proj"}});
  TemporaryFolder folder;
  const std::string path = (folder / "a.gguf").string();
  save_gguf_adapter(path, ours.layout, ours.flat.data(), model->config);
  const GgufFile file(path);
  const AdapterLayout::Entry &q = entry(ours.layout, 1, Module::q_proj), &v = entry(ours.layout, 1, Module::v_proj);
  const auto row = [&](const char* name, int64_t r) {
    float values[2];
    std::memcpy(values, file.find(name)->data.data() + 8 * r, 8);
    return std::vector<float>{values[0], values[1]};
  };
  const auto ours_row = [&](const AdapterLayout::Entry& e, int64_t r) {
    const auto at = ours.flat.begin() + e.b_offset + 2 * r;
    return std::vector<float>(at, at + 2);
  };
  // Heads of 16: llama.cpp pairs row i with row i + 8 (convert_hf_to_gguf.py, permute).
  CHECK(row("blk.1.attn_q.weight.lora_b", 16) == ours_row(q, 16));
  CHECK(row("blk.1.attn_q.weight.lora_b", 17) == ours_row(q, 24));
  CHECK(row("blk.1.attn_q.weight.lora_b", 18) == ours_row(q, 17));
  CHECK(row("blk.1.attn_v.weight.lora_b", 17) == ours_row(v, 17));
  CHECK(load_adapter(path, model->config).flat == ours.flat);

  const auto other = load_model((oracle_dir() / "qwen3-like").string());
  CHECK(refusal([&] { load_adapter(path, other->config); }).find("general.architecture") != std::string::npos);
  const LoadedAdapter dora = random_adapter(model->config, {.rank = 2, .dora = true});
  CHECK(refusal([&] { save_gguf_adapter(path, dora.layout, dora.flat.data(), model->config); }).find("DoRA") !=
        std::string::npos);
}

TEST_CASE("resume_adapter_file: a run starts from the numbers of an adapter in any format, its schedule anew" *
          doctest::test_suite("full")) {
  TinyRun run;
  run.config.max_steps = 3;
  run.config.warmup = 2;
  Heard first;
  train(run.config, first);
  const auto model = load_model(run.config.model);
  const fs::path last = fs::path(run.config.adapter_path) / "last";
  const LoadedAdapter trained = load_adapter(last.string(), model->config);
  save_mlx_adapter((run.folder / "mlx").string(), trained.layout, trained.flat.data(), model->config.num_layers);
  fs::copy_file(run.folder / "mlx/adapters.safetensors", run.folder / "mlx/0000100_adapters.safetensors");
  save_gguf_adapter((run.folder / "a.gguf").string(), trained.layout, trained.flat.data(), model->config);
  std::string bytes;
  for (const fs::path& from : {last, last / "adapter_model.safetensors", run.folder / "mlx",
                               run.folder / "mlx/0000100_adapters.safetensors", run.folder / "a.gguf"}) {
    CAPTURE(from.string());
    TrainConfig again = run.into("from-" + from.filename().string());
    again.resume_adapter_file = from.string();
    Heard heard;
    train(again, heard);
    CHECK(heard.evals.front().step == 0);
    CHECK(heard.evals.front().loss == first.evals.back().loss);
    CHECK(heard.reports.front().step == 1);
    CHECK(heard.reports.front().learning_rate == 0);  // of the warm-up
    const std::string result = read_whole_file(fs::path(again.adapter_path) / "last/adapter_model.safetensors");
    if (bytes.empty()) bytes = result;
    CHECK(result == bytes);
    // A resumed run goes on with its own numbers, not with the adapter it started from.
    again.resume = true;
    fs::remove_all(fs::path(again.adapter_path) / "step-0000003");
    train(again, heard);
    CHECK(read_whole_file(fs::path(again.adapter_path) / "last/adapter_model.safetensors") == bytes);
  }
}

TEST_CASE("resume_adapter_file: other ranks, scales, modules or kinds are refused, each by name") {
  TinyRun run;
  run.config.max_steps = 2;
  run.config.keys = {"q_proj", "v_proj"};
  Heard heard;
  train(run.config, heard);
  const std::string from = (fs::path(run.config.adapter_path) / "last").string();
  const auto message = [&](const std::function<void(TrainConfig&)>& change) {
    TrainConfig other = run.into("other");
    other.resume_adapter_file = from;
    change(other);
    return run_refusal(other);
  };
  CHECK(message([](TrainConfig& c) { c.rank = 5; }).find("layers.0.self_attn.q_proj has rank 4, needed 5") !=
        std::string::npos);
  CHECK(message([](TrainConfig& c) { c.scale = 3; }).find("has scale 2, needed 3") != std::string::npos);
  CHECK(message([](TrainConfig& c) { c.keys = {"q_proj"}; }).find("layers.0.self_attn.v_proj is in it, but not") !=
        std::string::npos);
  CHECK(message([](TrainConfig& c) { c.keys.push_back("up_proj"); }).find("layers.0.mlp.up_proj is not in it") !=
        std::string::npos);
  CHECK(message([](TrainConfig& c) { c.fine_tune_type = "dora"; }).find("the settings ask for DoRA") !=
        std::string::npos);
  CHECK(message([](TrainConfig& c) { c.resume_adapter_file = "/nowhere"; }).find("no such adapter") !=
        std::string::npos);
}

TEST_CASE("FieldL20_warm: dpo that starts from an adapter has it as its reference: ln 2 and margin 0, LoRA and DoRA" *
          doctest::test_suite("full")) {
  for (const char* kind : {"lora", "dora"}) {
    CAPTURE(kind);
    TinyRun run;
    run.config.fine_tune_type = kind;
    run.config.max_steps = 3;
    Heard heard;
    train(run.config, heard);
    std::string rows;
    for (int i = 0; i < 6; ++i) {
      const std::string word(static_cast<size_t>(4 + 3 * i), static_cast<char>('a' + i));
      rows += Json({{"prompt", "say " + word}, {"chosen", word}, {"rejected", "no"}}).dump() + "\n";
    }
    write_text(run.folder / "pairs/train.jsonl", rows);
    write_text(run.folder / "pairs/valid.jsonl", rows);
    TrainConfig dpo = run.into("dpo");
    dpo.data = (run.folder / "pairs").string();
    dpo.objective = "dpo";
    dpo.resume_adapter_file = (fs::path(run.config.adapter_path) / "last").string();
    Heard first;
    const RunResult result = train(dpo, first);
    CHECK(first.evals.front().loss == doctest::Approx(std::log(2.0)).epsilon(1e-12));
    CHECK(first.evals.front().objective["eval_rewards/margins"] == 0);
    CHECK(result.arena_used == result.arena_planned);
    const auto named = [&](const std::string& note) {
      return note.find("with the adapter " + dpo.resume_adapter_file) != std::string::npos;
    };
    CHECK(std::any_of(first.notes.begin(), first.notes.end(), named));
  }
}

}  // namespace sluice::test
