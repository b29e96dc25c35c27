#include "model/registry.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

const std::vector<ModelFamily>& model_families() {
  static const std::vector<ModelFamily> families = {
      {"llama", llama_recipe},       {"mistral", llama_recipe}, {"qwen2", llama_recipe},
      {"qwen3", llama_recipe},       {"gemma2", gemma_recipe},  {"gemma3", gemma_recipe},
      {"gemma3_text", gemma_recipe}, {"gemma4", gemma_recipe},  {"gemma4_text", gemma_recipe},
  };
  return families;
}

std::string model_type_of(const WeightSource& source) {
  const Json config = source.config();
  const char* key = source.kind() == SourceKind::gguf ? "general.architecture" : "model_type";
  check(config.contains(key) && config[key].is_string(), ErrorCode::bad_file,
        fmt::format("{}: no '{}'; is this a language model?", source.path(), key));
  return config[key].get<std::string>();
}

namespace {

// What the blocks rely on, whatever a config says.
void check_layers(const ModelConfig& m, const std::string& where) {
  constexpr int64_t most = int64_t{1} << 31;
  check(m.per_layer_input_size >= 0 && m.per_layer_input_size <= most, ErrorCode::bad_config,
        fmt::format("{}: per-layer inputs of {}, needed 0 (none) or more", where, m.per_layer_input_size));
  for (const RopeConfig& rope : m.ropes) {
    const bool turns =
        std::all_of(rope.frequencies.begin(), rope.frequencies.end(), [](double f) { return f >= 0 && f <= 1e6; });
    check(turns && rope.factor > 0 && rope.factor <= 1e6, ErrorCode::bad_config,
          fmt::format("{}: rope_theta or the rope scaling gives frequencies outside 0 to 1e6; is "
                      "the config damaged?",
                      where));
  }
  for (size_t l = 0; l < m.layers.size(); ++l) {
    const LayerConfig& c = m.layers[l];
    const auto need = [&](bool ok, const std::string& found, const char* needed) {
      check(ok, ErrorCode::bad_config, fmt::format("{}: layer {}: {}, needed {}", where, l, found, needed));
    };
    need(c.num_heads >= 1 && c.num_kv_heads >= 1 && c.num_heads % c.num_kv_heads == 0,
         fmt::format("{} query heads and {} key/value heads", c.num_heads, c.num_kv_heads),
         "the same number of query heads for each key/value head");
    const auto rotated = 2 * static_cast<int64_t>(m.ropes[static_cast<size_t>(c.rope)].frequencies.size());
    need(c.head_dim >= 2 && c.head_dim == rotated,
         fmt::format("head dimension {} and rope for {}", c.head_dim, rotated), "an even number, the same in both");
    need(c.intermediate_size >= 1, fmt::format("MLP width {}", c.intermediate_size), "at least 1");
    need(c.window >= 0 && c.window <= most, fmt::format("window {}", c.window), "0 (none) or more, at most 2^31");
    need(c.num_heads <= most && c.intermediate_size <= 2 * most,
         fmt::format("{} heads and MLP width {}", c.num_heads, c.intermediate_size), "at most 2^31");
    if (c.kv_donor < 0) continue;
    const LayerConfig& donor = m.layers[static_cast<size_t>(c.kv_donor)];
    need(donor.num_kv_heads == c.num_kv_heads && donor.head_dim == c.head_dim,
         fmt::format("{} key/value heads of {} and in its donor {} of {}", c.num_kv_heads, c.head_dim,
                     donor.num_kv_heads, donor.head_dim),
         "the same shape in both");
  }
}

ModelRecipe checked_recipe(const ModelFamily& family, const WeightSource& source) {
  try {
    ModelRecipe recipe = family.recipe(source);
    check_layers(recipe.config, source.path());
    return recipe;
  } catch (const Json::exception& e) {  // a value of another type than the readers expect
    throw Error(ErrorCode::bad_config, fmt::format("{}: {}; is the config damaged?", source.path(), e.what()));
  }
}

}  // namespace

ModelRecipe read_recipe(const WeightSource& source) {
  const std::string type = model_type_of(source);
  std::string known;
  for (const ModelFamily& family : model_families()) {
    if (type == family.name) return checked_recipe(family, source);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.name);
  }
  throw Error(ErrorCode::bad_config,
              fmt::format("{}: model type '{}' is not supported; known: {}", source.path(), type, known));
}

}  // namespace sluice
