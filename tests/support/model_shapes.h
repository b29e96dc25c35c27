// Models that have the shapes of published ones and no data, for prices and for timing on a device that fills them with random weights.
//
//   std::unique_ptr<Model> model = bench::model_of_shape("llama-3.1-8b", "affine4");
//   model->device = Device::cuda();  model->upload_random(1);
//
// Written as the files that such a model would have, ending after their header (OpenOptions::allow_header_only).
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/json.h"
#include "model/model.h"

namespace sluice::bench {

// The header of a safetensors file, and config.json.
class ShapeWriter {
 public:
  explicit ShapeWriter(bool affine) : affine_(affine) {}

  void vector(const std::string& name, int64_t count) { add(name + ".weight", "BF16", {count}, 2); }
  void matrix(const std::string& name, int64_t rows, int64_t cols) {
    if (!affine_) return add(name + ".weight", "BF16", {rows, cols}, 2);
    add(name + ".weight", "U32", {rows, cols * bits / 32}, 4);
    for (const char* part : {".scales", ".biases"}) add(name + part, "BF16", {rows, cols / group_size}, 2);
  }
  void scalar(const std::string& name) { add(name, "BF16", {1}, 2); }

  std::unique_ptr<Model> load(Json config) const {
    if (affine_) config["quantization"] = {{"group_size", group_size}, {"bits", bits}};
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice-shape-XXXXXX").string();
    check(mkdtemp(pattern.data()) != nullptr, ErrorCode::bad_file, "cannot make a folder in the temporary directory");
    const std::filesystem::path folder = pattern;
    std::string text = header_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    std::ofstream weights(folder / "model.safetensors", std::ios::binary);
    weights.write(reinterpret_cast<const char*>(&length), sizeof length) << text;
    weights.close();
    std::ofstream(folder / "config.json") << config.dump();
    auto model = load_model(open_model(folder.string(), {.allow_header_only = true}));
    for (DecoderLayer& layer : model->layers) layer.scalar = 1;  // absent data reads as zero
    std::filesystem::remove_all(folder);                         // what is mapped stays
    return model;
  }

 private:
  static constexpr int64_t bits = 4, group_size = 64;

  void add(const std::string& name, const char* dtype, const std::vector<int64_t>& shape, int64_t element_bytes) {
    int64_t bytes = element_bytes;
    for (int64_t extent : shape) bytes *= extent;
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {at_, at_ + bytes}}};
    at_ += bytes;
  }

  bool affine_;
  Json header_ = Json::object();
  int64_t at_ = 0;
};

struct LlamaShape {
  int64_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim, vocab_size;
  double rope_theta;
};

inline std::unique_ptr<Model> llama_of_shape(const LlamaShape& s, bool affine) {
  ShapeWriter w(affine);
  w.matrix("model.embed_tokens", s.vocab_size, s.hidden_size);
  w.matrix("lm_head", s.vocab_size, s.hidden_size);
  w.vector("model.norm", s.hidden_size);
  for (int64_t l = 0; l < s.num_layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) w.vector(p + norm, s.hidden_size);
    w.matrix(p + "self_attn.q_proj", s.num_heads * s.head_dim, s.hidden_size);
    for (const char* kv : {"self_attn.k_proj", "self_attn.v_proj"})
      w.matrix(p + kv, s.num_kv_heads * s.head_dim, s.hidden_size);
    w.matrix(p + "self_attn.o_proj", s.hidden_size, s.num_heads * s.head_dim);
    for (const char* up : {"mlp.gate_proj", "mlp.up_proj"}) w.matrix(p + up, s.intermediate_size, s.hidden_size);
    w.matrix(p + "mlp.down_proj", s.hidden_size, s.intermediate_size);
  }
  return w.load({{"model_type", "llama"},
                 {"hidden_size", s.hidden_size},
                 {"intermediate_size", s.intermediate_size},
                 {"num_hidden_layers", s.num_layers},
                 {"num_attention_heads", s.num_heads},
                 {"num_key_value_heads", s.num_kv_heads},
                 {"head_dim", s.head_dim},
                 {"vocab_size", s.vocab_size},
                 {"rope_theta", s.rope_theta},
                 {"rms_norm_eps", 1e-6},
                 {"tie_word_embeddings", false},
                 {"max_position_embeddings", 131072}});
}

// One full layer in six, the last one full.
struct Gemma4Shape {
  int64_t hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, num_full_kv_heads;
  int64_t window, shared_layers, per_layer_input;
  bool keys_are_values;
};

inline std::unique_ptr<Model> gemma4_of_shape(const Gemma4Shape& s, bool affine) {
  constexpr int64_t vocab_size = 262144, head_dim = 256, full_head_dim = 512;
  ShapeWriter w(affine);
  const int64_t C = s.hidden_size, P = s.per_layer_input;
  w.matrix("model.embed_tokens", vocab_size, C);
  w.vector("model.norm", C);
  if (P > 0) {
    w.matrix("model.embed_tokens_per_layer", vocab_size, s.num_layers * P);
    w.matrix("model.per_layer_model_projection", s.num_layers * P, C);
    w.vector("model.per_layer_projection_norm", P);
  }
  for (int64_t l = 0; l < s.num_layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    const bool full = (l + 1) % 6 == 0, own_kv = l < s.num_layers - s.shared_layers;
    const int64_t D = full ? full_head_dim : head_dim, kv = (full ? s.num_full_kv_heads : s.num_kv_heads) * D;
    for (const char* norm :
         {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
      w.vector(p + norm, C);
    w.scalar(p + "layer_scalar");
    w.matrix(p + "self_attn.q_proj", s.num_heads * D, C);
    w.vector(p + "self_attn.q_norm", D);
    if (own_kv) {
      w.matrix(p + "self_attn.k_proj", kv, C);
      w.vector(p + "self_attn.k_norm", D);
      if (!full || !s.keys_are_values) w.matrix(p + "self_attn.v_proj", kv, C);
    }
    w.matrix(p + "self_attn.o_proj", C, s.num_heads * D);
    for (const char* up : {"mlp.gate_proj", "mlp.up_proj"}) w.matrix(p + up, s.intermediate_size, C);
    w.matrix(p + "mlp.down_proj", C, s.intermediate_size);
    if (P > 0) {
      w.matrix(p + "per_layer_input_gate", P, C);
      w.matrix(p + "per_layer_projection", C, P);
      w.vector(p + "post_per_layer_input_norm", C);
    }
  }
  return w.load({{"model_type", "gemma4_text"},
                 {"hidden_size", C},
                 {"intermediate_size", s.intermediate_size},
                 {"num_hidden_layers", s.num_layers},
                 {"num_attention_heads", s.num_heads},
                 {"num_key_value_heads", s.num_kv_heads},
                 {"num_global_key_value_heads", s.num_full_kv_heads},
                 {"head_dim", head_dim},
                 {"global_head_dim", full_head_dim},
                 {"attention_k_eq_v", s.keys_are_values},
                 {"sliding_window", s.window},
                 {"num_kv_shared_layers", s.shared_layers},
                 {"hidden_size_per_layer_input", P},
                 {"final_logit_softcapping", 30.0},
                 {"vocab_size", vocab_size},
                 {"rms_norm_eps", 1e-6},
                 {"tie_word_embeddings", true},
                 {"max_position_embeddings", 131072},
                 {"rope_parameters",
                  {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000}}},
                   {"full_attention",
                    {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1000000}}}}}});
}

inline const std::vector<std::string> model_shapes = {"smollm2-135m", "minicpm5-1b", "llama-3.1-8b", "gemma-4-e4b",
                                                      "gemma-4-31b"};

// `format` is bf16 or affine4 (MLX's 4 bits in groups of 64).
inline std::unique_ptr<Model> model_of_shape(const std::string& name, const std::string& format) {
  const bool affine = format == "affine4";
  check(affine || format == "bf16", ErrorCode::bad_config, "format is '" + format + "'; it may be bf16 or affine4");
  if (name == "smollm2-135m") return llama_of_shape({576, 1536, 30, 9, 3, 64, 49152, 1e5}, affine);
  if (name == "minicpm5-1b") return llama_of_shape({1536, 4608, 24, 16, 2, 128, 130560, 5e6}, affine);
  if (name == "llama-3.1-8b") return llama_of_shape({4096, 14336, 32, 32, 8, 128, 128256, 5e5}, affine);
  if (name == "gemma-4-e4b") return gemma4_of_shape({2560, 10240, 42, 8, 2, 2, 512, 18, 256, false}, affine);
  check(name == "gemma-4-31b", ErrorCode::bad_config, "no shape '" + name + "'");
  return gemma4_of_shape({5376, 21504, 60, 32, 16, 4, 1024, 0, 0, true}, affine);
}

}  // namespace sluice::bench
