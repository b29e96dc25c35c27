// The Llama family: Llama 1-3, SmolLM2, MiniCPM5, Mistral, Qwen2, Qwen2.5, Qwen3 (dense). What a family adds to Llama is a few lines here.
#include <fmt/format.h>

#include <cmath>

#include "model/config_reader.h"
#include "model/registry.h"
#include "model/rope_config.h"

namespace sluice {

namespace {

// Layers whose keys are cut at `window`; 0 where the config says none.
int64_t window_of(const ConfigReader& config, const std::string& type, int64_t layer) {
  const int64_t window = config.integer_or("sliding_window", 0);
  if (type == "mistral") return window;
  if (type != "qwen2" && type != "qwen3") return 0;
  // Published Qwen configs hold a window that is switched off.
  if (!config.boolean_or("use_sliding_window", false)) return 0;
  return layer >= config.integer_or("max_window_layers", 0) ? window : 0;
}

void refuse_what_llama_lacks(const ConfigReader& config, const std::string& type) {
  for (const char* key : {"scale_emb", "scale_depth", "dim_model_base"}) {
    config.refuse_if_present(key, "the older MiniCPM scalings are another architecture");
  }
  config.refuse_if_true("mlp_bias", "biases in the MLP are not supported");
  if (type != "qwen2") config.refuse_if_true("attention_bias", "attention biases are supported for qwen2 only");
  const std::string act = config.string_or("hidden_act", "silu");
  check(act == "silu", ErrorCode::bad_config,
        fmt::format("{}: hidden_act is '{}'; this family has silu", config.where(), act));
  if (type == "mistral")
    config.refuse_if_present("layer_types", "a mistral config with layer_types is another architecture");
}

ModelRecipe from_huggingface(const WeightSource& source, const std::string& type) {
  const ConfigReader config(source.config(), source.path() + "/config.json");
  refuse_what_llama_lacks(config, type);
  ModelRecipe recipe{.prefix = "model.", .qkv_bias = type == "qwen2"};
  ModelConfig& m = recipe.config;
  m.model_type = type;
  m.hidden_size = config.integer("hidden_size");
  m.num_layers = config.num_layers("num_hidden_layers", source.names().size());
  m.vocab_size = config.integer("vocab_size");
  m.max_position_embeddings = config.integer_or("max_position_embeddings", 0);
  m.rms_norm_eps = config.epsilon("rms_norm_eps");
  m.tied_head = config.boolean_or("tie_word_embeddings", false);
  m.qk_norm = type == "qwen3";
  LayerConfig layer{.num_heads = config.integer("num_attention_heads")};
  layer.num_kv_heads = config.integer_or("num_key_value_heads", layer.num_heads);
  layer.head_dim = config.integer_or("head_dim", m.hidden_size / layer.num_heads);
  layer.intermediate_size = config.integer("intermediate_size");
  for (int64_t l = 0; l < m.num_layers; ++l) {
    layer.window = window_of(config, type, l);
    m.layers.push_back(layer);
  }
  const Json rope = rope_block(config);
  m.ropes = {rope_from_json(rope, {.head_dim = layer.head_dim, .max_position_embeddings = m.max_position_embeddings},
                            config.where())};
  m.max_position_embeddings = stretched_positions(rope, m.max_position_embeddings);
  m.bos_token_id = config.integer_or("bos_token_id", -1);
  m.eos_token_ids = config.integers("eos_token_id");
  return recipe;
}

ModelRecipe from_gguf(const WeightSource& source, const std::string& type) {
  const ConfigReader config(source.config(), source.path(), type + ".");
  ModelRecipe recipe{.permuted_qk = type == "llama", .qkv_bias = type == "qwen2"};
  ModelConfig& m = recipe.config;
  m.model_type = type;
  m.hidden_size = config.integer("embedding_length");
  m.num_layers = config.num_layers("block_count", source.names().size());
  m.max_position_embeddings = config.integer_or("context_length", 0);
  m.rms_norm_eps = config.epsilon("attention.layer_norm_rms_epsilon");
  m.qk_norm = type == "qwen3";
  config.refuse_if_positive("expert_count", "mixtures of experts are not supported");
  LayerConfig layer{.num_heads = config.integer("attention.head_count")};
  layer.num_kv_heads = config.integer_or("attention.head_count_kv", layer.num_heads);
  layer.head_dim = config.integer_or("attention.key_length", m.hidden_size / layer.num_heads);
  layer.intermediate_size = config.integer("feed_forward_length");
  m.layers.assign(static_cast<size_t>(m.num_layers), layer);
  const std::optional<Weight> embedding = source.find("token_embd.weight");
  check(embedding.has_value(), ErrorCode::bad_file, source.path() + ": no tensor token_embd.weight");
  m.vocab_size = embedding->rows;
  m.tied_head = !source.find("output.weight").has_value();

  const double theta = config.positive_or("rope.freq_base", 10000);
  check(config.number_or("rope.freq_base_swa", theta) == theta, ErrorCode::bad_config,
        fmt::format("{}: {}.rope.freq_base_swa is {} and freq_base {}; this architecture has one rope for all layers",
                    source.path(), type, config.number_or("rope.freq_base_swa", theta), theta));
  m.ropes = {rope_from_gguf(source, config, theta, layer.head_dim)};
  m.max_position_embeddings = stretched_positions(gguf_rope_block(config), m.max_position_embeddings);
  const ConfigReader tokenizer(source.config(), source.path(), "tokenizer.ggml.");
  m.bos_token_id = tokenizer.integer_or("bos_token_id", -1);
  for (const char* key : {"eos_token_id", "eot_token_id"}) {
    for (int64_t id : tokenizer.integers(key)) m.eos_token_ids.push_back(id);
  }
  return recipe;
}

}  // namespace

ModelRecipe llama_recipe(const WeightSource& source) {
  const std::string type = model_type_of(source);
  ModelRecipe recipe = source.kind() == SourceKind::gguf ? from_gguf(source, type) : from_huggingface(source, type);
  ModelConfig& m = recipe.config;
  m.attention_scale = 1.0F / std::sqrt(static_cast<float>(m.layers.front().head_dim));
  return recipe;
}

}  // namespace sluice
