// Adapters on disk: what is written loads again to the same bits, what does not fit is refused with every reason.
#include "model/adapter_file.h"

#include <regex>

#include "io/safetensors.h"
#include "model/dora.h"
#include "support/oracle_model.h"
#include "support/tiny_run.h"

namespace sluice::test {

namespace {

// The oracle's adapter with names or shapes changed on the way.
template <class Change>
void copy_changed(const fs::path& from, const fs::path& to, Change change) {
  fs::create_directories(to);
  fs::copy_file(from / "adapter_config.json", to / "adapter_config.json");
  const SafetensorsFile file((from / "adapter_model.safetensors").string());
  std::vector<TensorToWrite> tensors;
  for (const StoredTensor& t : file.tensors()) tensors.push_back({t.name, t.dtype, t.shape, t.data});
  change(tensors);
  write_safetensors((to / "adapter_model.safetensors").string(), tensors);
}

std::string refusal(const fs::path& folder, const ModelConfig& config) {
  try {
    load_adapter(folder.string(), config);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("FieldC8_strict: a renamed, a missing and an added tensor are all listed and nothing is loaded") {
  OracleModel m("llama-gqa");
  TemporaryFolder folder;
  copy_changed(m.oracle.path() / "adapter", folder / "a", [](std::vector<TensorToWrite>& tensors) {
    tensors[0].name += "x";
    TensorToWrite extra = tensors[3];
    tensors.erase(tensors.begin() + 5);
    extra.name = "base_model.model.model.layers.99.self_attn.q_proj.lora_A.weight";
    tensors.push_back(extra);
  });
  const std::string message = refusal(folder / "a", m.model->config);
  CAPTURE(message);
  CHECK(message.find("weightx") != std::string::npos);
  CHECK(message.find("layers.99") != std::string::npos);
  CHECK(message.find("has no lora_") != std::string::npos);
}

TEST_CASE("adapter: what Sluice cannot represent is refused by name") {
  OracleModel m("llama-gqa");
  TemporaryFolder folder;
  const std::pair<const char*, Json> cases[] = {
      {"modules_to_save", Json{"lm_head"}}, {"bias", "all"}, {"peft_type", "LOHA"}};
  for (const auto& [key, value] : cases) {
    CAPTURE(key);
    fs::remove_all(folder / "a");
    fs::copy(m.oracle.path() / "adapter", folder / "a");
    Json config = Json::parse(read_whole_file(folder / "a/adapter_config.json"));
    config[key] = value;
    write_text(folder / "a/adapter_config.json", config.dump());
    CHECK(refusal(folder / "a", m.model->config).find(key) != std::string::npos);
  }
}

TEST_CASE(
    "FieldC11_transpose: a square adapter survives PEFT, mlx-lm and PEFT again to the bit, and so do its numbers") {
  // rank = in = 64 for the attention's projections: a transposed half would fit and be wrong.
  OracleModel m("llama-gqa");
  const AdapterLayout layout(m.model->config, {.rank = 64, .alpha = 32, .targets = {"q_proj", "o_proj"}});
  std::vector<float> flat(static_cast<size_t>(layout.size()), 0.0F);
  for (const AdapterLayout::Entry& e : layout.entries()) {
    const std::vector<float> a = random_values(static_cast<size_t>(e.rank * e.in), 3, 0.1F),
                             b = random_values(static_cast<size_t>(e.out * e.rank), 4, 0.1F);
    std::copy(a.begin(), a.end(), flat.begin() + e.a_offset);
    std::copy(b.begin(), b.end(), flat.begin() + e.b_offset);
  }
  TemporaryFolder folder;
  save_peft_adapter((folder / "peft").string(), layout, flat.data(), "base");
  const LoadedAdapter first = load_adapter((folder / "peft").string(), m.model->config);
  save_mlx_adapter((folder / "mlx").string(), first.layout, first.flat.data(), m.model->config.num_layers);
  const LoadedAdapter second = load_adapter((folder / "mlx").string(), m.model->config);
  save_peft_adapter((folder / "again").string(), second.layout, second.flat.data(), "base");
  const LoadedAdapter third = load_adapter((folder / "again").string(), m.model->config);
  CHECK(first.flat == flat);
  CHECK(second.format == AdapterFormat::mlx);
  CHECK(second.flat == flat);
  CHECK(third.flat == flat);
  CHECK(read_whole_file(folder / "peft/adapter_model.safetensors") ==
        read_whole_file(folder / "again/adapter_model.safetensors"));
  const SafetensorsFile mlx((folder / "mlx/adapters.safetensors").string());
  const StoredTensor* a = mlx.find("model.layers.0.self_attn.q_proj.lora_a");
  REQUIRE(a != nullptr);
  float corner = 0;
  std::memcpy(&corner, a->data.data() + 4, 4);  // [in, r]: row 0, column 1 is A[1][0]
  CHECK(corner == flat[static_cast<size_t>(layout.entries()[0].a_offset + 64)]);
}

TEST_CASE("adapter: differing ranks and scales are padded and folded for mlx-lm, and give the same product") {
  OracleModel m("llama-gqa");
  AdapterSpec spec{.rank = 4, .alpha = 8, .targets = {"q_proj", "down_proj"}};
  spec.rank_pattern = {{"down_proj", 2}};
  spec.alpha_pattern = {{"down_proj", 6}};
  const AdapterLayout layout(m.model->config, spec);
  std::vector<float> flat = random_values(static_cast<size_t>(layout.size()), 8);
  TemporaryFolder folder;
  save_mlx_adapter((folder / "mlx").string(), layout, flat.data(), m.model->config.num_layers);
  const LoadedAdapter loaded = load_adapter((folder / "mlx").string(), m.model->config);
  for (size_t i = 0; i < layout.entries().size(); ++i) {
    const AdapterLayout::Entry &e = layout.entries()[i], &l = loaded.layout.entries()[i];
    CHECK(l.rank == 4);
    double worst = 0;
    for (int64_t o = 0; o < e.out; ++o) {
      for (int64_t c = 0; c < e.in; ++c) {
        double ours = 0, theirs = 0;
        for (int64_t r = 0; r < e.rank; ++r) {
          ours += static_cast<double>(e.scale) *
                  static_cast<double>(flat[static_cast<size_t>(e.b_offset + o * e.rank + r)]) *
                  static_cast<double>(flat[static_cast<size_t>(e.a_offset + r * e.in + c)]);
        }
        for (int64_t r = 0; r < l.rank; ++r) {
          theirs += static_cast<double>(l.scale) *
                    static_cast<double>(loaded.flat[static_cast<size_t>(l.b_offset + o * l.rank + r)]) *
                    static_cast<double>(loaded.flat[static_cast<size_t>(l.a_offset + r * l.in + c)]);
        }
        worst = std::max(worst, std::abs(ours - theirs));
      }
    }
    CHECK(worst < 1e-5);
  }
}

TEST_CASE(
    "adapter: the oracle's variants (rank-stabilised scale, rank and alpha patterns, DoRA) give its log-probabilities "
    "and "
    "gradients") {
  OracleModel m("llama-gqa");
  const Oracle variants("lora_variants");
  for (const char* variant : {"rslora", "patterns", "dora"}) {
    CAPTURE(variant);
    TestContext ctx(detect_isa());
    m.adapter = load_adapter((variants.path() / variant).string(), m.model->config);
    prepare_adapter(ctx.pool, *m.model, m.adapter);
    m.grads.assign(m.adapter.flat.size(), 0.0F);
    for (const char* sample : {"len5", "len24", "len48", "sft0"}) {
      const std::string key = std::string(variant) + "/logp/" + sample;
      CAPTURE(key);
      if (variants.has(key))
        CHECK(max_difference(m.logps(ctx, m.sample(sample), true, DType::f32), variants.values(key)) < 3e-4);
    }
    m.sft(ctx, {m.sample("sft0")}, false, DType::f32, m.schedule());
    for (const AdapterLayout::Entry& e : m.adapter.layout.entries()) {
      const auto check_part = [&](int64_t begin, int64_t count, const char* part) {
        const std::string key =
            std::string(variant) + "/grad/sft_response/" + module_name(e.layer, e.module) + "/" + part;
        CAPTURE(key);
        const auto at = m.grads.begin() + begin;
        CHECK(relative_l2(to_double(std::vector<float>(at, at + count)), variants.values(key)) < 3e-4);
      };
      check_part(e.a_offset, e.rank * e.in, "A");
      check_part(e.b_offset, e.out * e.rank, "B");
      if (m.adapter.layout.spec().dora) check_part(e.magnitude_offset, e.out, "mag");
    }
  }
}

TEST_CASE("adapter: a setting of another type is one line with file, key and value") {
  const OracleModel m("llama-gqa");
  const AdapterLayout layout(m.model->config, {.rank = 2, .alpha = 4, .targets = {"q_proj"}});
  const std::vector<float> flat(static_cast<size_t>(layout.size()), 0.5F);
  TemporaryFolder folder;
  save_peft_adapter((folder / "peft").string(), layout, flat.data(), "base");
  save_mlx_adapter((folder / "mlx").string(), layout, flat.data(), m.model->config.num_layers);
  const auto changed = [&](const std::string& format, const char* pointer, const Json& value) {
    const fs::path path = folder / format / "adapter_config.json";
    const std::string before = read_whole_file(path);
    Json config = Json::parse(before);
    config[Json::json_pointer(pointer)] = value;
    write_text(path, config.dump());
    const std::string message = refusal(folder / format, m.model->config);
    write_text(path, before);
    CHECK_MESSAGE(message.starts_with(path.string() + ": "), message);
    CHECK_MESSAGE(message.find('\n') == std::string::npos, message);
    CHECK_MESSAGE(message.find(value.dump()) != std::string::npos, message);
  };
  changed("peft", "/r", "eight");
  changed("peft", "/r", -3);
  changed("peft", "/lora_alpha", "x");
  changed("peft", "/lora_dropout", Json::array());
  changed("peft", "/use_dora", 3);
  changed("peft", "/use_rslora", "yes");
  changed("peft", "/peft_type", 5);
  changed("mlx", "/fine_tune_type", 3);
  changed("mlx", "/lora_parameters", 4);
  changed("mlx", "/lora_parameters/rank", 1.5);
  changed("mlx", "/lora_parameters/scale", "20");
}

TEST_CASE(
    "adapter: of a checkpoint with other towers, PEFT and mlx-lm find the modules by the names that they have there") {
  const OracleModel m("gemma4-e4b-like");
  CHECK(m.model->prefix == "model.language_model.");
  AdapterSpec spec{.rank = 4, .alpha = 8, .targets = {"q_proj", "per_layer_projection"}, .last_layers = 3};
  const AdapterLayout layout(m.model->config, spec);
  const std::vector<float> flat = random_values(static_cast<size_t>(layout.size()), 8);
  TemporaryFolder folder;
  save_peft_adapter((folder / "peft").string(), layout, flat.data(), "base", m.model->prefix);
  save_mlx_adapter((folder / "mlx").string(), layout, flat.data(), m.model->config.num_layers, m.model->prefix);
  for (const char* format : {"peft", "mlx"})
    CHECK(load_adapter((folder / format).string(), m.model->config).flat == flat);
  const int64_t last = m.model->config.num_layers - 1;
  const SafetensorsFile peft((folder / "peft/adapter_model.safetensors").string());
  CHECK(peft.find(fmt::format("base_model.model.model.language_model.layers.{}.self_attn.q_proj.lora_A.weight",
                              last)) != nullptr);
  const SafetensorsFile mlx((folder / "mlx/adapters.safetensors").string());
  CHECK(mlx.find(fmt::format("language_model.model.layers.{}.per_layer_projection.lora_b", last)) != nullptr);
  // PEFT gives an adapter to every module whose whole name matches: none of the other towers', and no layer before the last three.
  const Json config = Json::parse(read_whole_file(folder / "peft/adapter_config.json"));
  CHECK(!config.contains("layers_to_transform"));
  const std::regex targets(config["target_modules"].get<std::string>());
  CHECK(std::regex_match(fmt::format("model.language_model.layers.{}.self_attn.q_proj", last), targets));
  CHECK(!std::regex_match(fmt::format("model.language_model.layers.{}.self_attn.q_proj", last - 3), targets));
  CHECK(!std::regex_match(fmt::format("model.language_model.layers.{}.self_attn.k_proj", last), targets));
  CHECK(!std::regex_match(fmt::format("model.vision_tower.encoder.layers.{}.self_attn.q_proj", last), targets));
}

}  // namespace sluice::test
