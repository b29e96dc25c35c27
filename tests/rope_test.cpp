// Rotary settings: what transformers and llama.cpp make of them, by value, and what is refused.
#include "model/rope_config.h"

#include "data/data_report.h"
#include "io/gguf_write.h"
#include "support/oracle_model.h"
#include "support/tiny_run.h"

namespace sluice::test {

namespace {

std::filesystem::path golden() { return source_dir() / "tests/golden"; }

using Key = std::pair<std::string, GgufScalar>;

// The config of a fixture with changes (null takes a key out) beside its weights.
ModelConfig changed_config(const std::string& folder, const Json& changes) {
  const TemporaryFolder temporary;
  Json config = Json::parse(read_whole_file(golden() / "fixtures" / folder / "config.json"));
  Json& text = config.contains("text_config") ? config["text_config"] : config;
  for (const auto& [key, value] : changes.items()) {
    text.erase(key);
    if (!value.is_null()) text[key] = value;
  }
  write_text(temporary / "config.json", config.dump());
  fs::copy_file(golden() / "fixtures" / folder / "model.safetensors", temporary / "model.safetensors");
  return read_recipe(*open_model((temporary / "").string(), {})).config;
}

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// A Llama's metadata with `changes`, without layers.
ModelConfig gguf_config(const std::string& architecture, const std::vector<Key>& changes) {
  const TemporaryFolder temporary;
  const std::string a = architecture + ".";
  std::vector<Key> keys = {{"general.architecture", architecture},
                           {a + "embedding_length", uint32_t{64}},
                           {a + "block_count", uint32_t{2}},
                           {a + "context_length", uint32_t{256}},
                           {a + "feed_forward_length", uint32_t{96}},
                           {a + "attention.head_count", uint32_t{4}},
                           {a + "attention.sliding_window", uint32_t{8}},
                           {a + "attention.layer_norm_rms_epsilon", 1e-5F}};
  for (const Key& change : changes) keys.push_back({a + change.first, change.second});
  const std::vector<float> table(8 * 64, 0.5F);
  const std::string path = (temporary / "model.gguf").string();
  const std::vector<float> norm(64, 1.0F);
  write_gguf(path, keys, {{"token_embd.weight", {8, 64}, table}, {"output_norm.weight", {64}, norm}});
  return read_recipe(*open_model(path, {})).config;
}

RopeConfig llama_rope(const std::vector<Key>& changes) { return gguf_config("llama", changes).ropes.front(); }

bool same(const RopeConfig& a, const RopeConfig& b) { return a.frequencies == b.frequencies && a.factor == b.factor; }

}  // namespace

TEST_CASE("rope: every combination of blocks, thetas and keys gives transformers' frequencies and factor") {
  const Json cases = Json::parse(read_whole_file(golden() / "rope.json"));
  for (const Json& c : cases) {
    CAPTURE(c["changes"].dump());
    const ModelConfig config = changed_config(c["folder"].get<std::string>(), c["changes"]);
    REQUIRE(config.ropes.size() == c["ropes"].size());
    for (size_t i = 0; i < config.ropes.size(); ++i) {
      const auto expected = c["ropes"][i]["frequencies"].get<std::vector<double>>();
      const std::vector<double>& ours = config.ropes[i].frequencies;
      REQUIRE(ours.size() == expected.size());
      // The reference is float32: a power, a logarithm and a few products.
      for (size_t f = 0; f < ours.size(); ++f) CHECK(std::abs(ours[f] - expected[f]) <= 2e-6 * expected[f]);
      CHECK(config.ropes[i].factor == doctest::Approx(c["ropes"][i]["factor"].get<double>()).epsilon(1e-7));
    }
  }
}

TEST_CASE("rope: what is contradictory, incomplete or not implemented is refused by file and key") {
  const struct {
    const char* folder;
    Json changes;
    const char* word;
  } cases[] = {
      {"llama-gqa", {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}}, "'dynamic'"},
      {"llama-gqa", {{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 2}}}}, "'longrope'"},
      {"llama-gqa", {{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}}}}, "'mrope'"},
      {"llama-gqa", {{"rope_scaling", {{"rope_type", "linear"}}}}, "'factor' is missing"},
      {"llama-gqa", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0}}}}, "'factor' is 0"},
      {"llama-gqa", {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", "4"}}}}, "'factor' is \"4\""},
      {"llama-gqa", {{"rope_scaling", {{"rope_type", 3}}}}, "'rope_type' is 3"},
      {"llama-gqa",
       {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"high_freq_factor", 4}}}},
       "'low_freq_factor' is missing"},
      {"llama-gqa",
       {{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}},
        {"rope_theta", nullptr},
        {"rope_parameters", {{"rope_theta", 5e4}}}},
       "leave one of the blocks out"},
      {"llama-gqa", {{"rope_parameters", {{"full_attention", {{"rope_theta", 5e4}}}}}}, "'full_attention'"},
      {"llama-gqa", {{"partial_rotary_factor", 0.5}}, "'partial_rotary_factor' is 0.5"},
      {"qwen3-like", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, "'partial_rotary_factor' is 0.5"},
      {"llama-gqa", {{"rope_theta", 0}}, "'rope_theta' is 0"},
      {"llama-gqa", {{"rope_theta", "1e4"}}, "'rope_theta' is \"1e4\""},
      {"llama-gqa", {{"rope_parameters", Json::array()}}, "'rope_parameters' is []"},
      {"gemma2-like", {{"rope_parameters", {{"full_attention", {{"rope_theta", 5e4}}}}}}, "'full_attention'"},
      {"gemma3-like", {{"rope_parameters", {{"rope_theta", 5e4}}}}, "rope_parameters has 'rope_theta'"},
      {"gemma3-like", {{"rope_scaling", {{"type", "linear"}, {"factor", 8}}}}, "name it rope_type"},
      {"gemma4-e4b-like", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}}, "'rope_scaling' is set"},
      {"gemma4-e4b-like", {{"rope_parameters", {{"full_attention", {{"rope_theta", 5e4}}}}}}, "sliding_attention"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.changes.dump());
    const std::string message = refusal([&] { changed_config(c.folder, c.changes); });
    CHECK_MESSAGE(message.find(c.word) != std::string::npos, message);
    CHECK_MESSAGE(message.find("config.json") != std::string::npos, message);
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("rope GGUF: a factor without a type is linear, the old key is the new one, and attn_factor multiplies") {
  const RopeConfig plain = llama_rope({});
  const RopeConfig linear = llama_rope({{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 4.0F}});
  CHECK(linear.frequencies[1] == plain.frequencies[1] / 4);
  CHECK(same(llama_rope({{"rope.scaling.factor", 4.0F}}), linear));
  CHECK(same(llama_rope({{"rope.scale_linear", 4.0F}}), linear));
  CHECK(same(llama_rope({{"rope.scaling.factor", 4.0F}, {"rope.scale_linear", 9.0F}}), linear));
  CHECK(same(llama_rope({{"rope.scaling.type", "none"}, {"rope.scaling.factor", 4.0F}}), plain));
  CHECK(same(llama_rope({{"rope.scaling.factor", 0.0F}}), plain));
  const std::vector<Key> keys = {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 4.0F}};
  const auto yarn = [&](std::vector<Key> more) {
    more.insert(more.begin(), keys.begin(), keys.end());
    return llama_rope(more);
  };
  // Without an original length, that of the context.
  const RopeConfig full = yarn({{"rope.scaling.original_context_length", uint32_t{256}}});
  CHECK(full.factor == doctest::Approx(0.1 * std::log(4) + 1));
  CHECK(same(yarn({}), full));
  CHECK(same(yarn({{"rope.scaling.original_context_length", uint32_t{0}}}), full));
  CHECK(same(yarn({{"rope.scaling.attn_factor", 1.0F}}), full));
  CHECK(yarn({{"rope.scaling.attn_factor", 1.25F}}).factor == doctest::Approx(1.25 * full.factor));
  CHECK(llama_rope({{"rope.scaling.attn_factor", 1.25F}}).factor == 1.25);
  CHECK(same(yarn({{"rope.scaling.yarn_beta_fast", 32.0F}, {"rope.scaling.yarn_log_multiplier", 0.0F}}), full));
  const std::pair<std::vector<Key>, const char*> refused[] = {
      {{{"rope.dimension_count", uint32_t{8}}}, "rope.dimension_count is 8"},
      {{{"rope.scaling.type", "longrope"}}, "'longrope'"},
      {{{"rope.scaling.attn_factor", 0.0F}}, "rope.scaling.attn_factor"},
      {{{"rope.scaling.factor", -2.0F}}, "'factor' is -2"},
      {{{"rope.freq_base", 0.0F}}, "rope.freq_base' is 0"},
      {{{"rope.freq_base_swa", 5e5F}}, "rope.freq_base_swa"},
      {{{"rope.scaling.yarn_beta_fast", 16.0F}}, "rope.scaling.yarn_beta_fast"},
      {{{"rope.scaling.yarn_log_multiplier", 0.1F}}, "rope.scaling.yarn_log_multiplier"}};
  for (const auto& [changes, word] : refused) {
    const std::string message = refusal([&, &changes = changes] { llama_rope(changes); });
    CHECK_MESSAGE(message.find(word) != std::string::npos, message);
  }
}

TEST_CASE("rope GGUF: Gemma 2 scales all layers, Gemma 3 the full ones, each with its theta") {
  const std::vector<Key> scaled = {{"rope.scaling.factor", 8.0F}, {"rope.freq_base", 1e6F}};
  const ModelConfig two = gguf_config("gemma2", scaled), three = gguf_config("gemma3", scaled);
  CHECK(same(two.ropes[0], two.ropes[1]));
  CHECK(three.ropes[1].frequencies[2] == std::pow(1e6, -4.0 / 16) / 8);
  CHECK(three.ropes[0].frequencies[2] == std::pow(1e4, -4.0 / 16));
  CHECK(refusal([&] { gguf_config("gemma3", {{"rope.scaling.type", "yarn"}}); }).find("'yarn'") != std::string::npos);
  CHECK(refusal([&] {
          gguf_config("gemma3", {{"rope.dimension_count_swa", uint32_t{8}}});
        }).find("rope.dimension_count_swa is 8") != std::string::npos);
}

TEST_CASE("rope: rows beyond the base's positions, as its scaling stretches them, are told with count and lengths") {
  const auto positions = [](const Json& changes) {
    return changed_config("llama-gqa", changes).max_position_embeddings;
  };
  CHECK(positions({{"max_position_embeddings", 2048}}) == 2048);
  CHECK(positions({{"max_position_embeddings", 2048}, {"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}) == 8192);
  const Json yarn = {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 1024}};
  CHECK(positions({{"max_position_embeddings", 2048}, {"rope_scaling", yarn}}) == 4096);
  CHECK(positions({{"max_position_embeddings", 4096}, {"rope_scaling", yarn}}) == 4096);
  const std::string told = beyond_positions({5, 11, 10, 300, 12}, 10);
  CHECK_MESSAGE(told.find("3 of 5 rows") != std::string::npos, told);
  CHECK_MESSAGE(told.find("10 positions") != std::string::npos, told);
  CHECK_MESSAGE(told.find("11 to 300 tokens") != std::string::npos, told);
  CHECK(beyond_positions({5, 10}, 10).empty());
  CHECK(beyond_positions({5, 11}, 0).empty());
}

}  // namespace sluice::test
