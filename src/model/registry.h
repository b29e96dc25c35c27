// Model families by the name their files give: config.json's `model_type`, GGUF's `general.architecture`.
#pragma once

#include "model/model.h"

namespace sluice {

ModelRecipe llama_recipe(const WeightSource& source);  // llama, mistral, qwen2, qwen3 (llama.cpp)
ModelRecipe gemma_recipe(const WeightSource& source);  // gemma2, gemma3, gemma4 (gemma.cpp)

struct ModelFamily {
  const char* name;
  ModelRecipe (*recipe)(const WeightSource& source);
};

const std::vector<ModelFamily>& model_families();

// The name that a source gives: model_type (of text_config too), or general.architecture.
std::string model_type_of(const WeightSource& source);

}  // namespace sluice
