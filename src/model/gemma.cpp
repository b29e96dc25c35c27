// The Gemma family: Gemma 2, Gemma 3 (text), Gemma 4 (dense text decoders). Which layers are windowed, what rope they have, and what is shared.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/config_reader.h"
#include "model/registry.h"
#include "model/rope_config.h"

namespace sluice {

namespace {

enum Rope : int64_t { rope_sliding = 0, rope_full = 1 };

// Multimodal checkpoints keep the text decoder's fields in text_config.
Json text_config(const WeightSource& source) {
  const Json& config = source.config();
  return config.contains("text_config") && config["text_config"].is_object() ? config["text_config"] : config;
}

// Before "layers.0": the first of the known prefixes that this checkpoint has.
std::string find_prefix(const WeightSource& source) {
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model."}) {
    if (source.contains(std::string(prefix) + "embed_tokens.weight")) return prefix;
  }
  throw Error(ErrorCode::bad_file,
              source.path() + ": no embed_tokens.weight under model., model.language_model. or language_model.model.");
}

// Every period-th layer is full, the others slide.
std::vector<bool> by_period(int64_t num_layers, int64_t period, const std::string& where) {
  check(period > 0, ErrorCode::bad_config,
        fmt::format("{}: sliding_window_pattern is {}, needed at least 1", where, period));
  std::vector<bool> sliding;
  for (int64_t l = 0; l < num_layers; ++l) sliding.push_back((l + 1) % period != 0);
  return sliding;
}

void check_entries(const std::string& key, size_t entries, int64_t num_layers, const std::string& where) {
  check(static_cast<int64_t>(entries) == num_layers, ErrorCode::bad_config,
        fmt::format("{}: {} has {} entries for {} layers", where, key, entries, num_layers));
}

// true: sliding. From layer_types, or the family's rule.
std::vector<bool> sliding_layers(const ConfigReader& config, int64_t num_layers, int64_t period) {
  const Json types = config.array_or("layer_types", Json::array());
  if (types.empty()) return by_period(num_layers, period, config.where());
  check_entries("layer_types", types.size(), num_layers, config.where());
  std::vector<bool> sliding;
  for (const Json& type : types) {
    check(type == "sliding_attention" || type == "full_attention", ErrorCode::bad_config,
          fmt::format("{}: layer_types has {}; known: \"sliding_attention\", \"full_attention\"", config.where(),
                      type.dump().substr(0, 60)));
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

// 0: none. That is what null and 0 say; a key that is not there says Hugging Face's default.
int64_t window_of(const ConfigReader& config, int64_t otherwise) {
  return config.is_null("sliding_window") ? 0 : config.integer_or("sliding_window", otherwise);
}

// Gemma 4's full layers rotate a part of the pairs only; the others have frequency 0.
RopeConfig proportional_rope(const ConfigReader& parameters, double theta, int64_t head_dim) {
  RopeConfig rope{.frequencies = rope_frequencies(theta, head_dim, parameters.where())};
  const double share = parameters.number_or("partial_rotary_factor", 1), factor = parameters.positive_or("factor", 1);
  const auto rotated = static_cast<size_t>(std::floor(share * static_cast<double>(head_dim) / 2));
  for (size_t i = 0; i < rope.frequencies.size(); ++i)
    rope.frequencies[i] = i < rotated ? rope.frequencies[i] / factor : 0;
  return rope;
}

RopeConfig rope_of(const Json& parameters, const RopeDefaults& defaults, const std::string& where) {
  const ConfigReader reader(parameters.is_object() ? parameters : Json::object(), where);
  if (reader.string_or("rope_type", "default") == "proportional")
    return proportional_rope(reader, reader.positive_or("rope_theta", defaults.theta), defaults.head_dim);
  return rope_from_json(parameters, defaults, where);
}

// The blocks of rope_parameters by kind of layer; both null where the config has none.
std::pair<Json, Json> blocks_by_kind(const ConfigReader& config) {
  const Json both = config.object_or("rope_parameters", Json::object());
  for (const auto& [key, value] : both.items()) {
    check(key == "sliding_attention" || key == "full_attention", ErrorCode::bad_config,
          fmt::format("{}: rope_parameters has '{}'; this architecture has a block sliding_attention and a block "
                      "full_attention there",
                      config.where(), key));
  }
  const ConfigReader reader(both, config.where() + ": rope_parameters");
  return {reader.object_or("sliding_attention", Json()), reader.object_or("full_attention", Json())};
}

RopeDefaults defaults_of(const ModelConfig& m, double theta, int64_t head_dim) {
  return {.theta = theta, .head_dim = head_dim, .max_position_embeddings = m.max_position_embeddings};
}

// Gemma 2: one rope for both kinds of layers.
void set_one_rope(ModelConfig& m, const ConfigReader& config, int64_t head_dim) {
  const Json block = rope_block(config);
  m.ropes.assign(2, rope_from_json(block, defaults_of(m, 10000, head_dim), config.where()));
  m.max_position_embeddings = stretched_positions(block, m.max_position_embeddings);
}

// Gemma 3: two thetas. rope_scaling is for the full layers, on top of their block.
void set_gemma3_ropes(ModelConfig& m, const ConfigReader& config, int64_t head_dim) {
  auto [sliding, full] = blocks_by_kind(config);
  const Json scaling = config.object_or("rope_scaling", Json());
  if (scaling.is_object()) {
    check(scaling.contains("rope_type") || !scaling.contains("type"), ErrorCode::bad_config,
          config.where() +
              ": rope_scaling has 'type' and no 'rope_type', which versions of transformers read "
              "differently for Gemma 3; name it rope_type");
    if (full.is_null()) full = scaling;
    else full.update(scaling);
  }
  const double local = config.positive_or("rope_local_base_freq", 10000), theta = config.positive_or("rope_theta", 1e6);
  m.ropes.resize(2);
  m.ropes[rope_sliding] = rope_of(sliding, defaults_of(m, local, head_dim), config.where());
  m.ropes[rope_full] = rope_of(full, defaults_of(m, theta, head_dim), config.where());
}

// Gemma 4: rope_parameters alone, by default those of its published models.
void set_gemma4_ropes(ModelConfig& m, const ConfigReader& config, int64_t sliding_dim, int64_t full_dim) {
  for (const char* key : {"rope_scaling", "partial_rotary_factor"})
    config.refuse_if_present(key, "Gemma 4 reads rope_parameters alone");
  auto [sliding, full] = blocks_by_kind(config);
  if (!config.has("rope_parameters")) {
    sliding = {{"rope_type", "default"}, {"rope_theta", 1e4}};
    full = {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}};
  }
  check(
      sliding.is_object() && full.is_object() && sliding.contains("rope_theta") && full.contains("rope_theta"),
      ErrorCode::bad_config,
      config.where() + ": rope_parameters needs the blocks sliding_attention and full_attention, each with rope_theta");
  m.ropes.resize(2);
  m.ropes[rope_sliding] = rope_of(sliding, defaults_of(m, 1e4, sliding_dim), config.where());
  m.ropes[rope_full] = rope_of(full, defaults_of(m, 1e6, full_dim), config.where());
}

// What all generations have in common, from config.json.
ModelRecipe base_recipe(const WeightSource& source, const ConfigReader& config, const std::string& type) {
  ModelRecipe recipe{.prefix = find_prefix(source)};
  ModelConfig& m = recipe.config;
  m.model_type = type;
  m.hidden_size = config.integer("hidden_size");
  m.num_layers = config.num_layers("num_hidden_layers", source.names().size());
  m.vocab_size = source.need(recipe.prefix + "embed_tokens.weight").rows;
  m.max_position_embeddings = config.integer_or("max_position_embeddings", 0);
  m.rms_norm_eps = config.epsilon("rms_norm_eps");
  m.embedding_scale = std::sqrt(static_cast<float>(m.hidden_size));
  m.tied_head = config.boolean_or("tie_word_embeddings", true);
  m.post_norms = true;
  m.activation = Activation::gelu_tanh;
  m.final_softcap = config.number_in("final_logit_softcapping", 0, 0, 1e30);
  m.bos_token_id = config.integer_or("bos_token_id", -1);
  m.eos_token_ids = config.integers("eos_token_id");
  config.refuse_if_true("attention_bias", "attention biases are not supported for Gemma");
  const std::string act = config.string_or("hidden_activation", config.string_or("hidden_act", "gelu_pytorch_tanh"));
  check(act == "gelu_pytorch_tanh", ErrorCode::bad_config,
        fmt::format("{}: hidden_activation is '{}'; Gemma has gelu_pytorch_tanh", config.where(), act));
  return recipe;
}

ModelRecipe gemma2_or_3(const WeightSource& source, const ConfigReader& config, bool three) {
  ModelRecipe recipe = base_recipe(source, config, three ? "gemma3" : "gemma2");
  ModelConfig& m = recipe.config;
  config.refuse_if_true("use_bidirectional_attention", "an encoder is another architecture");
  m.norm_offset = 1;
  m.qk_norm = three;
  const int64_t head_dim = config.integer_or("head_dim", 256);
  m.attention_scale = 1.0F / std::sqrt(config.number_in("query_pre_attn_scalar", 256, 1e-6, 1e30));
  m.attention_softcap = config.number_in("attn_logit_softcapping", 0, 0, 1e30);
  if (three) set_gemma3_ropes(m, config, head_dim);
  else set_one_rope(m, config, head_dim);
  const std::vector<bool> sliding =
      sliding_layers(config, m.num_layers, three ? config.integer_or("sliding_window_pattern", 6) : 2);
  for (int64_t l = 0; l < m.num_layers; ++l) {
    const bool windowed = sliding[static_cast<size_t>(l)];
    m.layers.push_back({.num_heads = config.integer_or("num_attention_heads", 8),
                        .num_kv_heads = config.integer_or("num_key_value_heads", 4),
                        .head_dim = head_dim,
                        .intermediate_size = config.integer("intermediate_size"),
                        .window = windowed ? window_of(config, 4096) : 0,
                        .rope = windowed ? rope_sliding : rope_full});
  }
  return recipe;
}

// The last `shared` layers read keys and values of the last layer before them that has their kind of attention.
void share_keys(ModelConfig& m, const std::vector<bool>& sliding, int64_t shared) {
  const int64_t first = m.num_layers - shared;
  for (int64_t l = first; l < m.num_layers; ++l) {
    int64_t donor = first - 1;
    while (donor >= 0 && sliding[static_cast<size_t>(donor)] != sliding[static_cast<size_t>(l)]) --donor;
    check(donor >= 0, ErrorCode::bad_config,
          fmt::format("layer {} shares keys and values, but no earlier layer has its kind of attention", l));
    m.layers[static_cast<size_t>(l)].kv_donor = donor;
    m.layers[static_cast<size_t>(donor)].is_donor = true;
  }
}

ModelRecipe gemma4(const WeightSource& source, const ConfigReader& config) {
  ModelRecipe recipe = base_recipe(source, config, "gemma4");
  ModelConfig& m = recipe.config;
  config.refuse_if_true("enable_moe_block", "mixtures of experts (26B-A4B) are not supported");
  check(config.string_or_any("use_bidirectional_attention", "null") != "all", ErrorCode::bad_config,
        config.where() + ": use_bidirectional_attention is all; an encoder is another architecture");
  m.attention_scale = 1;
  m.qk_norm = m.value_norm = m.layer_scalar = true;
  m.per_layer_input_size = config.integer_or("hidden_size_per_layer_input", 0);
  const int64_t sliding_dim = config.integer("head_dim"), full_dim = config.integer_or("global_head_dim", sliding_dim);
  const bool keys_are_values = config.boolean_or("attention_k_eq_v", false);
  const int64_t heads = config.integer("num_attention_heads"),
                kv_heads = config.integer_or("num_key_value_heads", heads);
  const int64_t full_kv_heads = keys_are_values ? config.integer_or("num_global_key_value_heads", kv_heads) : kv_heads;
  std::vector<bool> sliding = sliding_layers(config, m.num_layers, 6);
  sliding.back() = false;  // the last layer is full in any case
  const int64_t shared = config.integer_or("num_kv_shared_layers", 0);
  const Json overrides = config.object_or("per_layer_config", Json::object());
  for (int64_t l = 0; l < m.num_layers; ++l) {
    const bool windowed = sliding[static_cast<size_t>(l)], sharing = l >= m.num_layers - shared;
    LayerConfig layer{.num_heads = heads,
                      .num_kv_heads = windowed ? kv_heads : full_kv_heads,
                      .head_dim = windowed ? sliding_dim : full_dim,
                      .intermediate_size = config.integer("intermediate_size") *
                                           (sharing && config.boolean_or("use_double_wide_mlp", false) ? 2 : 1),
                      .window = windowed ? window_of(config, 512) : 0,
                      .rope = windowed ? rope_sliding : rope_full,
                      .values_are_keys = keys_are_values && !windowed};
    for (const auto& [index, values] : overrides.items()) {
      if (std::atoll(index.c_str()) != l || !values.is_object()) continue;
      const ConfigReader own(values, config.where());
      layer.head_dim = own.integer_or("head_dim", layer.head_dim);
      layer.num_kv_heads = own.integer_or("num_key_value_heads", layer.num_kv_heads);
    }
    m.layers.push_back(layer);
  }
  // Newer files have no global_head_dim but overrides by layer.
  const auto dim_of = [&](int64_t rope, int64_t otherwise) {
    const auto found = std::find_if(m.layers.begin(), m.layers.end(), [&](auto& l) { return l.rope == rope; });
    return found == m.layers.end() ? otherwise : found->head_dim;
  };
  set_gemma4_ropes(m, config, dim_of(rope_sliding, sliding_dim), dim_of(rope_full, full_dim));
  share_keys(m, sliding, shared);
  return recipe;
}

// Arrays by layer or one number for all.
int64_t by_layer(const ConfigReader& config, const std::string& key, int64_t layer, int64_t otherwise) {
  const std::vector<int64_t> values = config.integers(key);
  if (values.empty()) return otherwise;
  if (values.size() == 1) return values.front();
  check(layer < static_cast<int64_t>(values.size()), ErrorCode::bad_config,
        fmt::format("{}: {} has {} entries, too few for layer {}", config.where(), key, values.size(), layer));
  return values[static_cast<size_t>(layer)];
}

// A period, or a bool for each layer; without the key the family's period. Gemma 4 files have the list.
std::vector<bool> gguf_sliding_layers(const ConfigReader& config, int64_t num_layers, int64_t period) {
  const Json pattern = config.any_or("attention.sliding_window_pattern", Json(period));
  if (!pattern.is_array())
    return by_period(num_layers, config.integer_or("attention.sliding_window_pattern", period), config.where());
  check_entries("attention.sliding_window_pattern", pattern.size(), num_layers, config.where());
  std::vector<bool> sliding;
  for (const Json& slides : pattern) sliding.push_back(slides == true);
  return sliding;
}

// Linear scaling is Gemma 3's, of the full layers only, and Gemma 2's, of all; the divisors in rope_freqs.weight are the full layers'.
void set_gguf_ropes(ModelConfig& m, const WeightSource& source, const ConfigReader& config, int64_t sliding_dim,
                    int64_t full_dim) {
  const std::string scaling = gguf_rope_block(config)["rope_type"];
  check(scaling == "default" || (scaling == "linear" && m.model_type != "gemma4"), ErrorCode::bad_config,
        fmt::format("{}: its rope scaling is '{}'; {} has none{}", config.where(), scaling, m.model_type,
                    m.model_type == "gemma4" ? "" : " or linear"));
  const double theta = config.positive_or("rope.freq_base", 10000);
  const RopeConfig full = rope_from_gguf(source, config, theta, full_dim);
  if (m.model_type == "gemma2") return m.ropes.assign(2, full);
  check_rotated(config, "rope.dimension_count_swa", sliding_dim);
  m.ropes.assign(2, full);
  m.ropes[rope_sliding].frequencies =
      rope_frequencies(config.positive_or("rope.freq_base_swa", 10000), sliding_dim, config.where());
}

ModelRecipe from_gguf(const WeightSource& source, const std::string& type) {
  const ConfigReader config(source.config(), source.path(), type + ".");
  ModelRecipe recipe;
  ModelConfig& m = recipe.config;
  const bool two = type == "gemma2", three = type == "gemma3", four = type == "gemma4";
  config.refuse_if_positive("expert_count", "mixtures of experts (26B-A4B) are not supported");
  m.model_type = type;
  m.hidden_size = config.integer("embedding_length");
  m.num_layers = config.num_layers("block_count", source.names().size());
  // Gemma 4 sees images, and Gemma 3 from 4B on: 34 layers, where 1B has 26.
  recipe.prefix = four || (three && m.num_layers > 26) ? "model.language_model." : "model.";
  m.vocab_size = source.need("token_embd.weight").rows;
  m.max_position_embeddings = config.integer_or("context_length", 0);
  m.rms_norm_eps = config.epsilon("attention.layer_norm_rms_epsilon");
  m.embedding_scale = std::sqrt(static_cast<float>(m.hidden_size));
  m.tied_head = !source.contains("output.weight");
  m.post_norms = true;
  m.activation = Activation::gelu_tanh;
  m.attention_softcap = two ? config.number_in("attn_logit_softcapping", 0, 0, 1e30) : 0;
  m.final_softcap = config.number_in("final_logit_softcapping", 0, 0, 1e30);
  m.qk_norm = three || four;
  m.value_norm = m.layer_scalar = four;
  m.per_layer_input_size = four ? config.integer_or("embedding_length_per_layer_input", 0) : 0;
  const int64_t heads = config.integer("attention.head_count");
  const int64_t full_dim = config.integer_or("attention.key_length", m.hidden_size / heads);
  const int64_t sliding_dim = config.integer_or("attention.key_length_swa", full_dim);
  // llama.cpp's converters do not write query_pre_attn_scalar: it is the head dimension but for the two 27B models.
  const bool by_width = (two && m.num_layers == 46) || (three && m.num_layers == 62);
  m.attention_scale = four ? 1.0F : 1.0F / std::sqrt(static_cast<float>(by_width ? m.hidden_size / heads : full_dim));
  set_gguf_ropes(m, source, config, sliding_dim, full_dim);
  const std::vector<bool> sliding = gguf_sliding_layers(config, m.num_layers, two ? 2 : 6);
  const int64_t shared = config.integer_or("attention.shared_kv_layers", 0);
  for (int64_t l = 0; l < m.num_layers; ++l) {
    const bool windowed = sliding[static_cast<size_t>(l)];
    LayerConfig layer{.num_heads = by_layer(config, "attention.head_count", l, heads),
                      .num_kv_heads = by_layer(config, "attention.head_count_kv", l, heads),
                      .head_dim = windowed ? sliding_dim : full_dim,
                      .intermediate_size = by_layer(config, "feed_forward_length", l, 0),
                      .window = windowed ? config.integer("attention.sliding_window") : 0,
                      .rope = windowed ? rope_sliding : rope_full};
    const bool sharing = l >= m.num_layers - shared;
    layer.values_are_keys = four && !sharing && !source.contains(fmt::format("blk.{}.attn_v.weight", l));
    m.layers.push_back(layer);
  }
  share_keys(m, sliding, shared);
  const ConfigReader tokenizer(source.config(), source.path(), "tokenizer.ggml.");
  m.bos_token_id = tokenizer.integer_or("bos_token_id", -1);
  for (const char* key : {"eos_token_id", "eot_token_id"}) {
    for (int64_t id : tokenizer.integers(key)) m.eos_token_ids.push_back(id);
  }
  return recipe;
}

}  // namespace

ModelRecipe gemma_recipe(const WeightSource& source) {
  const std::string type = model_type_of(source);
  if (source.kind() == SourceKind::gguf) return from_gguf(source, type);
  const ConfigReader config(text_config(source), source.path() + "/config.json");
  if (type.starts_with("gemma4")) return gemma4(source, config);
  return gemma2_or_3(source, config, type.starts_with("gemma3"));
}

}  // namespace sluice
