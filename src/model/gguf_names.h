// llama.cpp's names for what Hugging Face calls otherwise.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace sluice {

// Inside a layer: "model.layers.3.self_attn.q_proj.weight" is "blk.3.attn_q.weight".
constexpr std::array<std::pair<std::string_view, std::string_view>, 14> gguf_names = {{
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"input_layernorm", "attn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
}};

// general.architecture of a model type of config.json.
constexpr std::string_view gguf_architecture(std::string_view model_type) {
  if (model_type == "mistral") return "llama";
  if (model_type.ends_with("_text")) return model_type.substr(0, model_type.size() - 5);
  return model_type;
}

// Whether llama.cpp stores q and k with the rows of each head interleaved (Weight::interleaved_head_dim).
constexpr bool gguf_permutes_qk(std::string_view model_type) { return gguf_architecture(model_type) == "llama"; }

}  // namespace sluice
