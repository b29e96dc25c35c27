// What a decoder is made of, read from config.json or GGUF metadata by one file a model family (llama.cpp, …), and checked there.
// Everything that differs between families is a value here; the blocks (decoder_layer.h) read no names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/activation/activation.h"

namespace sluice {

// One set of rotary frequencies. Gemma has two, Llama one.
struct RopeConfig {
  std::vector<double> frequencies;  // [head_dim / 2]
  double factor = 1;                // on cos and sin (yarn)
};

struct LayerConfig {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t window = 0;            // 0: full attention; counts the query itself
  int64_t rope = 0;              // index into ModelConfig::ropes
  int64_t kv_donor = -1;         // >= 0: keys and values are those of that earlier layer
  bool values_are_keys = false;  // Gemma 4 31B's full layers: v is the raw k projection
  bool is_donor = false;         // a later layer names this one
};

struct ModelConfig {
  std::string model_type;
  int64_t hidden_size = 0, num_layers = 0, vocab_size = 0;
  int64_t max_position_embeddings = 0;  // 0: unknown
  float rms_norm_eps = 1e-6F;
  float norm_offset = 0;  // 1: y = (1 + w) x rstd
  float attention_scale = 0;
  float attention_softcap = 0;  // 0: none
  float final_softcap = 0;      // 0: none
  float embedding_scale = 1;
  bool tied_head = false;
  bool qk_norm = false;              // RMS norm of q and k by head, before RoPE
  bool value_norm = false;           // the same without weight on v (Gemma 4)
  bool post_norms = false;           // norms after attention and after the MLP (Gemma)
  bool layer_scalar = false;         // the layer's output times a learned scalar (Gemma 4)
  int64_t per_layer_input_size = 0;  // Gemma 4 e-models; 0: none
  Activation activation = Activation::silu;
  std::vector<RopeConfig> ropes;
  std::vector<LayerConfig> layers;
  int64_t bos_token_id = -1;
  std::vector<int64_t> eos_token_ids;
};

}  // namespace sluice
