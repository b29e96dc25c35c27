// adapter_config.json: which modules PEFT means, judged by PEFT itself, and what is refused by name; adapters of other towers.
#include "model/adapter_config.h"

#include "io/gguf_write.h"
#include "io/safetensors.h"
#include "support/oracle_model.h"
#include "support/tiny_run.h"
#include "train/adapter_setup.h"

namespace sluice::test {

namespace {

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// The oracle's adapter of llama-gqa in a folder of its own, and its base.
class ChangedAdapter {
 public:
  ChangedAdapter() : model_("llama-gqa") {
    fs::copy(model_.oracle.path() / "adapter", folder_ / "a");
    config_ = Json::parse(read_whole_file(folder_ / "a/adapter_config.json"));
  }
  const ModelConfig& base() const { return model_.model->config; }
  fs::path path() const { return folder_ / "a"; }
  LoadedAdapter load() const { return load_adapter(path().string(), base()); }
  LoadedAdapter with(const std::string& key, const Json& value) const {
    Json config = config_;
    config[key] = value;
    write_text(path() / "adapter_config.json", config.dump());
    return load();
  }
  // Names through `rename`; those that it gives nothing for are left out, and those that it gives twice are there twice.
  LoadedAdapter renamed(const std::function<std::vector<std::string>(const std::string&)>& rename) const {
    const SafetensorsFile file((model_.oracle.path() / "adapter/adapter_model.safetensors").string());
    std::vector<TensorToWrite> tensors;
    for (const StoredTensor& t : file.tensors()) {
      for (const std::string& name : rename(std::string(t.name))) tensors.push_back({name, t.dtype, t.shape, t.data});
    }
    write_safetensors((path() / "adapter_model.safetensors").string(), tensors);
    return load();
  }

 private:
  OracleModel model_;
  TemporaryFolder folder_;
  Json config_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("adapter config: PEFT's targets, exclusions, layers and patterns give PEFT's modules, ranks and alphas") {
  const Json cases = Json::parse(read_whole_file(source_dir() / "tests/golden/peft_targets.json"));
  for (const Json& c : cases) {
    CAPTURE(c["config"].dump());
    Json config = c["config"];
    config.update({{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}});
    const AdapterConfig about = AdapterConfig::peft(config, "adapter_config.json");
    for (int layer = 0; layer < 3; ++layer) {
      for (int m = 0; m < 7; ++m) {
        const std::string name = "model." + module_name(layer, static_cast<Module>(m));
        CAPTURE(name);
        const bool adapted = c["adapted"].contains(name);
        CHECK(about.targets(name) == adapted);
        if (!adapted) continue;
        CHECK(about.rank_of(name) == c["adapted"][name][0].get<int64_t>());
        CHECK(about.alpha_of(name) == c["adapted"][name][1].get<float>());
      }
    }
  }
}

TEST_CASE("adapter config: what changes the base or the product and is not implemented is refused by key and value") {
  const ChangedAdapter adapter;
  const std::pair<const char*, Json> refused[] = {{"init_lora_weights", "pissa"},
                                                  {"init_lora_weights", "pissa_niter_16"},
                                                  {"init_lora_weights", "olora"},
                                                  {"init_lora_weights", "corda"},
                                                  {"init_lora_weights", "loftq"},
                                                  {"init_lora_weights", "lora_ga"},
                                                  {"init_lora_weights", "of next year"},
                                                  {"layer_replication", {{0, 1}, {0, 1}}},
                                                  {"alora_invocation_tokens", {1, 2}},
                                                  {"use_qalora", true},
                                                  {"lora_bias", true},
                                                  {"bias", "lora_only"},
                                                  {"fan_in_fan_out", true},
                                                  {"modules_to_save", {"lm_head"}},
                                                  {"trainable_token_indices", {5}},
                                                  {"target_parameters", {"mlp.experts.gate_up_proj"}},
                                                  {"megatron_config", {{"tensor_model_parallel_size", 2}}},
                                                  {"use_bdlora", {{"nblocks", 2}}},
                                                  {"arrow_config", {{"top_k", 3}}},
                                                  {"kasa_config", {{"beta", 1e-4}}},
                                                  {"velora_config", {{"num_groups", 64}}},
                                                  {"monteclora_config", {{"num_samples", 8}}},
                                                  {"a_key_of_next_year", true},
                                                  {"a_key_of_next_year", 3},
                                                  {"task_type", "SEQ_CLS"},
                                                  {"peft_type", "VERA"},
                                                  {"target_modules", 3},
                                                  {"target_modules", "q_proj)"},
                                                  {"exclude_modules", "(?<name>"},
                                                  {"layers_pattern", "layers"},
                                                  {"rank_pattern", {{"q_proj", 4.5}}},
                                                  {"rank_pattern", {{"q_proj", 0}}},
                                                  {"rank_pattern", {{"q_proj", -4}}},
                                                  {"rank_pattern", {{"q_proj", "4"}}},
                                                  {"alpha_pattern", {{"q_proj", -1}}},
                                                  {"lora_alpha", -8}};
  for (const auto& [key, value] : refused) {
    CAPTURE(key);
    CAPTURE(value.dump());
    const std::string message = refusal([&, &key = key, &value = value] { adapter.with(key, value); });
    CHECK_MESSAGE(message.find(key) != std::string::npos, message);
    CHECK_MESSAGE(message.find("adapter_config.json") != std::string::npos, message);
    CHECK(message.find('\n') == std::string::npos);
    CHECK_THROWS_AS(check_adapter_config(adapter.path().string()), Error);  // inspect without a base
  }
  const std::pair<const char*, Json> harmless[] = {
      {"init_lora_weights", true},         {"init_lora_weights", false},
      {"init_lora_weights", "gaussian"},   {"init_lora_weights", "eva"},
      {"init_lora_weights", "orthogonal"}, {"loftq_config", Json::object()},
      {"corda_config", nullptr},           {"eva_config", {{"rho", 2.0}}},
      {"layer_replication", nullptr},      {"megatron_core", "megatron.core"},
      {"qalora_group_size", 16},           {"peft_version", "0.21.2"},
      {"a_key_of_next_year", false},       {"a_key_of_next_year", Json::array()}};
  for (const auto& [key, value] : harmless) {
    CAPTURE(key);
    CHECK_NOTHROW(adapter.with(key, value));
  }
}

TEST_CASE("adapter config: mlx-lm's parameters that are not known are refused, alpha by its meaning there") {
  const ChangedAdapter adapter;
  TemporaryFolder folder;
  const LoadedAdapter loaded = adapter.load();
  save_mlx_adapter((folder / "mlx").string(), loaded.layout, loaded.flat.data(), adapter.base().num_layers);
  const Json config = Json::parse(read_whole_file(folder / "mlx/adapter_config.json"));
  for (const auto& [key, value] : {std::pair("alpha", Json(16)), {"rank_of_experts", Json(2)}}) {
    Json changed = config;
    changed["lora_parameters"][key] = value;
    write_text(folder / "mlx/adapter_config.json", changed.dump());
    const std::string message = refusal([&] { load_adapter((folder / "mlx").string(), adapter.base()); });
    CHECK_MESSAGE(message.find(key) != std::string::npos, message);
  }
  Json run = config;  // mlx-lm writes every setting of the run
  run.update({{"model", "base"}, {"train", true}, {"iters", 1000}, {"lr_schedule", {{"name", "cosine_decay"}}}});
  write_text(folder / "mlx/adapter_config.json", run.dump());
  CHECK(load_adapter((folder / "mlx").string(), adapter.base()).flat == loaded.flat);
}

TEST_CASE("adapter: llama.cpp's keys that change what an adapter does are refused by name") {
  const ChangedAdapter adapter;
  TemporaryFolder folder;
  const std::vector<float> a(2 * 64, 0.5F), b(64 * 2, 0.5F);
  const auto write = [&](const std::string& key) {
    std::vector<std::pair<std::string, GgufScalar>> keys = {{"general.type", "adapter"},
                                                            {"general.architecture", "llama"},
                                                            {"adapter.type", "lora"},
                                                            {"adapter.lora.alpha", 4.0F}};
    if (!key.empty()) keys.emplace_back(key, "x");
    write_gguf((folder / "a.gguf").string(), keys,
               {{"blk.0.attn_q.weight.lora_a", {2, 64}, a}, {"blk.0.attn_q.weight.lora_b", {64, 2}, b}});
    return refusal([&] { load_adapter((folder / "a.gguf").string(), adapter.base()); });
  };
  CHECK(write("").empty());
  CHECK(write("general.name").empty());
  for (const char* key : {"adapter.alora.invocation_tokens", "adapter.lora.prompt_prefix"})
    CHECK(write(key).find(key) != std::string::npos);
}

TEST_CASE(
    "adapter: tensors of other towers, of extra layers, and of a module that is named twice are refused by name") {
  const ChangedAdapter adapter;
  const std::vector<float> whole = adapter.load().flat;
  const auto keep_and = [](const std::string& from, const std::string& to) {
    return [=](const std::string& name) {
      std::vector<std::string> names = {name};
      const std::string other = replaced(name, from, to);
      if (other != name) names.push_back(other);
      return names;
    };
  };
  for (const std::string other : {"base_model.model.model.vision_tower.vision_model.encoder.layers.",
                                  "base_model.model.model.audio_tower.layers.", "base_model.model.mtp.layers.",
                                  "base_model.model.model.mtp.layers.", "base_model.model.model.layers.0.mtp.layers.",
                                  "base_model.model.model.layers.4", "base_model.model.model.layers.0"}) {
    CAPTURE(other);
    const std::string message = refusal([&] { adapter.renamed(keep_and("base_model.model.model.layers.", other)); });
    CHECK_MESSAGE(message.find(other) != std::string::npos, message);
    // Alone, they are not taken for the text's either.
    CHECK(!refusal([&] {
             adapter.renamed([&](const std::string& name) {
               return std::vector<std::string>{replaced(name, "base_model.model.model.layers.", other)};
             });
           }).empty());
  }
  for (const char* prefix : {"", "model.", "base_model.model.model.language_model."}) {
    CAPTURE(prefix);
    const std::string message = refusal([&] { adapter.renamed(keep_and("base_model.model.model.", prefix)); });
    CHECK_MESSAGE(message.find("named twice") != std::string::npos, message);
  }
  // Two names of the decoder in one file, each module once.
  const std::string mixed = refusal([&] {
    adapter.renamed([](const std::string& name) {
      return std::vector<std::string>{replaced(name, "base_model.model.model.layers.1", "base_model.model.layers.1")};
    });
  });
  CHECK_MESSAGE(mixed.find("begins otherwise") != std::string::npos, mixed);
  // The names that the text's decoder has in published checkpoints.
  for (const char* prefix : {"base_model.model.", "base_model.model.model.language_model.",
                             "base_model.model.language_model.model.", "base_model.model.language_model."}) {
    CAPTURE(prefix);
    const LoadedAdapter loaded = adapter.renamed([&](const std::string& name) {
      return std::vector<std::string>{replaced(name, "base_model.model.model.", prefix)};
    });
    CHECK(loaded.flat == whole);
  }
}

TEST_CASE("adapter: one whose B is zero is told, one with numbers that are not finite is refused") {
  const ChangedAdapter adapter;
  LoadedAdapter loaded = adapter.load();
  CHECK(loaded.note.empty());
  TemporaryFolder folder;
  const auto saved = [&] {
    save_peft_adapter((folder / "b").string(), loaded.layout, loaded.flat.data(), "base");
    return (folder / "b").string();
  };
  const float kept = loaded.flat.front();
  loaded.flat.front() = std::nanf("");
  const std::string message = refusal([&] { load_adapter(saved(), adapter.base()); });
  CHECK_MESSAGE(message.find("layers.0.self_attn.q_proj.lora_A.weight has nan") != std::string::npos, message);
  loaded.flat.front() = kept;
  std::fill(loaded.flat.begin() + loaded.layout.b_begin(), loaded.flat.end(), 0.0F);
  const LoadedAdapter zero = load_adapter(saved(), adapter.base());
  CHECK_MESSAGE(zero.note.find("changes nothing") != std::string::npos, zero.note);
  CHECK(zero.note.find('\n') == std::string::npos);
}

TEST_CASE("lora_parameters.keys: by whole path, a run writes a folder that is read back, in PEFT's form and mlx-lm's") {
  TinyRun run;
  run.config.max_steps = 2;
  run.config.keys = {"model.layers.0.self_attn.q_proj", "layers.2.mlp.down_proj",
                     "model.language_model.layers.2.mlp.up_proj"};
  Heard heard;
  train(run.config, heard);
  const auto model = load_model(run.config.model);
  const fs::path last = fs::path(run.config.adapter_path) / "last";
  const LoadedAdapter adapter = load_adapter(last.string(), model->config);
  CHECK(adapter.layout.entries().size() == 3);
  CHECK(adapter.layout.selection() == AdapterLayout::Selection::irregular);
  const Json config = Json::parse(read_whole_file(last / "adapter_config.json"));
  CHECK(config["target_modules"] ==
        Json({"model.layers.0.self_attn.q_proj", "model.layers.2.mlp.up_proj", "model.layers.2.mlp.down_proj"}));
  save_mlx_adapter((run.folder / "mlx").string(), adapter.layout, adapter.flat.data(), model->config.num_layers);
  CHECK(load_adapter((run.folder / "mlx").string(), model->config).flat == adapter.flat);
  const Json mlx = Json::parse(read_whole_file(run.folder / "mlx/adapter_config.json"));
  CHECK(mlx["lora_parameters"]["keys"].size() == 3);
  CHECK(mlx["lora_parameters"]["keys"][0] == "model.layers.0.self_attn.q_proj");
  run.config.resume = true;
  CHECK_NOTHROW(train(run.config, heard));
}

TEST_CASE("lora_parameters: all-linear is every linear layer; patterns that match nothing or are no rank are refused") {
  const auto model = load_model((oracle_dir() / "llama-gqa").string());
  TrainConfig config;
  config.keys = {"all-linear"};
  const AdapterLayout all = adapter_layout(config, *model);
  CHECK(all.entries().size() == static_cast<size_t>(7 * model->config.num_layers));
  CHECK(all.selection() == AdapterLayout::Selection::all_layers);
  config.rank_pattern = {"layers.99.mlp.down_proj=4"};
  std::string message = refusal([&] { adapter_layout(config, *model); });
  CHECK_MESSAGE(message.find("layers.99.mlp.down_proj") != std::string::npos, message);
  config.rank_pattern.clear();
  config.alpha_pattern = {"q_project=4"};
  message = refusal([&] { adapter_layout(config, *model); });
  CHECK_MESSAGE(message.find("q_project") != std::string::npos, message);
  TinyRun run;
  const auto problems = [&](const std::string& rank, const std::string& alpha,
                            const std::vector<std::string>& keys = {}) {
    TrainConfig c = run.config;
    if (!rank.empty()) c.rank_pattern = {rank};
    if (!alpha.empty()) c.alpha_pattern = {alpha};
    c.keys = keys;
    return fmt::format("{}", fmt::join(validate(c), "\n"));
  };
  CHECK(problems("q_proj=4", "q_proj=6.5").empty());
  for (const char* rank :
       {"q_proj=4.5", "q_proj=nan", "q_proj=-4", "q_proj=0", "q_proj=inf", "q_proj=9000", "=4", "q_proj"}) {
    CAPTURE(rank);
    CHECK(problems(rank, "").find("rank_pattern") != std::string::npos);
  }
  for (const char* alpha : {"q_proj=nan", "q_proj=-4", "q_proj=inf"})
    CHECK(problems("", alpha).find("alpha_pattern") != std::string::npos);
  CHECK(problems("", "", {"all-linear", "q_proj"}).find("all-linear") != std::string::npos);
}

}  // namespace sluice::test
