// Gemma models as files have them: GGUF under llama.cpp's keys, multimodal folders, newer and older configs, and what is refused.
#include "support/gemma_dense.h"
#include "support/oracle_model.h"
#include "support/source_dir.h"
#include "support/tiny_run.h"

namespace sluice::test {

namespace {

constexpr double fp32_logp = 3e-4;  // tests/oracle/README.md

// Made from the fixtures beside them, whatever ORACLE_DIR says.
fs::path gguf_fixtures() { return source_dir() / "tests/golden/fixtures"; }

std::string gguf_file(const std::string& name) {
  return (source_dir() / "tests/golden/gemma_gguf" / (name + ".gguf")).string();
}

// Every log-probability that the oracle has of this model, with or without the adapter.
void check_logps(OracleModel& m, bool lora) {
  const std::string prefix = lora ? "lora/logp/" : "base/logp/";
  TestContext ctx(detect_isa());
  int64_t compared = 0;
  for (const auto& [tensor, expected] : m.oracle.tensors()) {
    if (!tensor.starts_with(prefix)) continue;
    CAPTURE(tensor);
    CHECK(max_difference(m.logps(ctx, m.sample(tensor.substr(prefix.size())), lora, DType::f32), expected.values) <
          fp32_logp);
    ++compared;
  }
  CHECK(compared >= 5);
}

// A copy of an oracle folder with another config. The fields of a multimodal folder's text decoder are in text_config.
class ChangedFolder {
 public:
  ChangedFolder(const std::string& name, const Json& changes, const std::vector<std::string>& removed = {}) {
    Json config = Json::parse(read_whole_file(oracle_dir() / name / "config.json"));
    Json& text = config.contains("text_config") ? config["text_config"] : config;
    text.update(changes);
    if (changes.contains("model_type")) config["model_type"] = changes["model_type"];
    for (const std::string& key : removed) text.erase(key);
    write_text(folder_ / "config.json", config.dump());
    fs::copy_file(oracle_dir() / name / "model.safetensors", folder_ / "model.safetensors");
  }
  std::string path() const { return (folder_ / "").string(); }

 private:
  TemporaryFolder folder_;
};

// `path` is refused with Error(code) in one line that has all of `words`.
void check_refused(const std::string& path, ErrorCode code, const std::vector<std::string>& words) {
  std::string message;
  try {
    load_model(path);
  } catch (const Error& e) {
    CHECK(e.code() == code);
    message = e.what();
  }
  CAPTURE(message);
  CHECK(message.find('\n') == std::string::npos);
  for (const std::string& word : words) {
    CAPTURE(word);
    CHECK(message.find(word) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("gemma GGUF: Gemma 2, 3 and 4 under llama.cpp's keys and names give the oracle's log-probabilities") {
  for (const char* name : {"gemma2-like", "gemma3-like", "gemma4-e2b-like", "gemma4-31b-like"}) {
    CAPTURE(name);
    OracleModel m(name, gguf_fixtures());
    m.model = on_test_device(load_model(gguf_file(name)));
    check_logps(m, false);
    // In gemma2-like.gguf a factor of the scores is folded into W_q, which the adapter does not know.
    if (std::string(name) != "gemma2-like") check_logps(m, true);
  }
}

TEST_CASE("gemma GGUF: a mixture of experts is refused by name") {
  check_refused(gguf_file("moe"), ErrorCode::bad_config,
                {"moe.gguf", "'gemma4.expert_count'", "mixtures of experts (26B-A4B) are not supported"});
}

TEST_CASE(
    "gemma folders: other towers are ignored, whatever their type, and so is a shard of theirs that is not there") {
  const std::string name = "gemma4-e4b-like";
  OracleModel m(name);
  TemporaryFolder folder;
  Json config = Json::parse(read_whole_file(oracle_dir() / name / "config.json"));
  config["vision_config"] = {{"model_type", "gemma4_vision"}, {"hidden_size", 768}, {"num_hidden_layers", 16}};
  config["audio_config"] = {{"model_type", "gemma4_audio"}, {"hidden_size", 1024}};
  write_text(folder / "config.json", config.dump());
  const SafetensorsFile file((oracle_dir() / name / "model.safetensors").string());
  const std::vector<uint8_t> bytes(24, 0xff);
  std::vector<TensorToWrite> tensors;
  Json index = Json::object();
  for (const StoredTensor& t : file.tensors()) {
    tensors.push_back({t.name, t.dtype, t.shape, t.data});
    index[t.name] = "model-00001-of-00002.safetensors";
  }
  // A type that no weight may have, and a shard that was not downloaded.
  tensors.push_back({"model.audio_tower.conv.weight", "F8_E4M3", {4, 6}, std::as_bytes(std::span(bytes))});
  index["model.audio_tower.conv.weight"] = "model-00001-of-00002.safetensors";
  index["model.vision_tower.patch.weight"] = "model-00002-of-00002.safetensors";
  write_safetensors((folder / "model-00001-of-00002.safetensors").string(), tensors);
  write_text(folder / "model.safetensors.index.json", Json({{"weight_map", index}}).dump());
  const int64_t text_bytes = m.model->weight_bytes();
  m.model = on_test_device(load_model((folder / "").string()));
  CHECK(m.model->weight_bytes() == text_bytes);
  check_logps(m, true);
}

TEST_CASE("gemma folders: overrides by layer say the same as global_head_dim and num_global_key_value_heads") {
  for (const auto& [name, full] : {std::pair("gemma4-e4b-like", Json{{"head_dim", 32}}),
                                   {"gemma4-31b-like", Json{{"head_dim", 32}, {"num_key_value_heads", 1}}}}) {
    CAPTURE(name);
    OracleModel m(name);
    Json overrides = Json::object();
    for (int64_t l = 2; l < m.model->config.num_layers; l += 3) overrides[fmt::format("{:02}", l)] = full;
    const ChangedFolder newer(name, {{"per_layer_config", overrides}},
                              {"global_head_dim", "num_global_key_value_heads"});
    m.model = on_test_device(load_model(newer.path()));
    check_logps(m, false);
  }
}

TEST_CASE("FieldL15_none: a window of null or 0 is no window, in Gemma and in Mistral") {
  for (const char* name : {"gemma3-like", "mistral-like"}) {
    const DenseModel dense(oracle_dir() / name);
    OracleModel m(name);
    OracleSample sample{.ids = m.sample("len24").ids};
    const DenseModel::Matrix logits = dense.logits(sample.ids, /*windowed=*/false);
    std::vector<double> exact;
    for (size_t t = 0; t + 1 < sample.ids.size(); ++t) {
      double sum = 0;
      for (double z : logits[t]) sum += std::exp(z);
      exact.push_back(logits[t][static_cast<size_t>(sample.ids[t + 1])] - std::log(sum));
    }
    TestContext ctx(detect_isa());
    CHECK(max_difference(m.logps(ctx, sample, false, DType::f32), exact) > 0.01);
    for (const Json& none : {Json(nullptr), Json(0)}) {
      const ChangedFolder folder(name, {{"sliding_window", none}});
      m.model = on_test_device(load_model(folder.path()));
      for (const DecoderLayer& l : m.model->layers) CHECK(l.config.window == 0);
      CHECK(max_difference(m.logps(ctx, sample, false, DType::f32), exact) < fp32_logp);
    }
  }
}

TEST_CASE("gemma folders: optiq_metadata.json is read where it is there, and says what the modules are stored in") {
  const auto source = open_model((oracle_dir() / "gemma4-e4b-like-mixed").string());
  const std::optional<Json> about = source->side_file("optiq_metadata.json");
  REQUIRE(about);
  int64_t modules = 0;
  for (const auto& [module, entry] : (*about)["per_layer"].items()) {
    CAPTURE(module);
    CHECK(source->need(module + ".weight").bits == entry["bits"].get<int>());
    ++modules;
  }
  CHECK(modules > 50);
  CHECK_FALSE(open_model((oracle_dir() / "gemma4-e4b-like").string())->side_file("optiq_metadata.json"));
}

TEST_CASE("gemma folders: what is not supported or cannot be is refused by name") {
  const struct {
    const char* name;
    Json changes;
    std::vector<std::string> words;
  } cases[] = {
      {"gemma4-e4b-like", {{"enable_moe_block", true}}, {"mixtures of experts (26B-A4B) are not supported"}},
      {"gemma4-e4b-like", {{"model_type", "gemma3n"}}, {"model type 'gemma3n' is not supported"}},
      {"gemma3-like", {{"model_type", "gemma3n_text"}}, {"model type 'gemma3n_text' is not supported"}},
      {"gemma4-e4b-like", {{"use_bidirectional_attention", "all"}}, {"encoder"}},
      {"gemma4-31b-like", {{"layer_types", {"full_attention"}}}, {"layer_types has 1 entries for 6 layers"}},
      {"gemma3-like",
       {{"layer_types", {"sliding_attention", "chunked_attention", "full_attention", "full_attention"}}},
       {"layer_types has \"chunked_attention\""}},
      {"gemma3-like", {{"sliding_window_pattern", 0}}, {"sliding_window_pattern is 0"}},
      {"gemma3-like", {{"sliding_window", -1}}, {"layer 0", "window -1"}},
      {"gemma3-like", {{"num_key_value_heads", 3}}, {"4 query heads and 3 key/value heads"}},
      {"gemma3-like", {{"head_dim", 15}}, {"config.json: the head dimension is 15"}},
      {"gemma3-like", {{"rope_scaling", {{"rope_type", "dynamic"}}}}, {"rope scaling 'dynamic' is not supported"}},
      {"gemma4-e4b-like", {{"num_kv_shared_layers", 12}}, {"no earlier layer has its kind of attention"}},
      {"gemma4-e4b-like", {{"per_layer_config", {{"5", {{"num_key_value_heads", 1}}}}}}, {"layer 5", "in its donor"}},
      {"gemma4-e4b-like",
       {{"per_layer_config", {{"5", {{"head_dim", "wide"}}}}}},
       {"config.json: 'head_dim' is \"wide\"", "needed an integer"}},
  };
  for (const auto& c : cases) {
    CAPTURE(c.changes.dump());
    check_refused(ChangedFolder(c.name, c.changes).path(), ErrorCode::bad_config, c.words);
  }
}

}  // namespace sluice::test
