#include "model/registry.h"

#include <fmt/format.h>

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

ModelRecipe read_recipe(const WeightSource& source) {
  const std::string type = model_type_of(source);
  std::string known;
  for (const ModelFamily& family : model_families()) {
    if (type == family.name) return family.recipe(source);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.name);
  }
  throw Error(ErrorCode::bad_config,
              fmt::format("{}: model type '{}' is not supported; known: {}", source.path(), type, known));
}

}  // namespace sluice
