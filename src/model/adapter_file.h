// Adapters on disk, as PEFT, mlx-lm and llama.cpp write them.
//
//   save_peft_adapter("out/last", layout, flat, "SmolLM2-135M-Instruct");
//   LoadedAdapter loaded = load_adapter("out/last", model.config);   // any of the three, told apart by its files
//
// PEFT: adapter_model.safetensors, keys base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight [R, in], lora_B [out, R] and, of a DoRA
// adapter, lora_magnitude_vector [out]; adapter_config.json. mlx-lm: adapters.safetensors, keys model.layers.0.self_attn.q_proj.lora_a [in, R],
// lora_b [R, out] and m [out]; one rank and one scale for all, so smaller ranks are padded with zeros and differing scales are folded into b.
// llama.cpp: one .gguf, blk.0.attn_q.weight.lora_a [R, in] and lora_b [out, R], whose rows lie as the base's do; one alpha for all, scale =
// alpha / R, so rank-stabilised and differing scales are folded into b; DoRA does not exist there. Values are F32.
//
// Loading is strict: every tensor must belong to a module of the text decoder, once, and every adapted module must be complete; all that
// is wrong is listed in one Error(bad_file). What cannot be represented (modules_to_save, embeddings, other towers) is refused by name, and so is
// what the config says and is not implemented (adapter_config.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/lora.h"

namespace sluice {

// Files of an adapter's folder.
constexpr const char* peft_weights_name = "adapter_model.safetensors";
constexpr const char* mlx_weights_name = "adapters.safetensors";
constexpr const char* adapter_config_name = "adapter_config.json";

enum class AdapterFormat : uint8_t { peft, mlx, gguf };

struct LoadedAdapter {
  AdapterLayout layout;
  std::vector<float> flat;   // layout.size() numbers
  std::vector<float> norms;  // DoRA: layout.num_norms() numbers once prepare_adapter (model/dora.h) has filled them
  AdapterFormat format = AdapterFormat::peft;
  std::string base;  // base_model_name_or_path, or empty
  std::string note;  // one line for the user when the adapter has no effect, or empty
  std::optional<Arena>
      on_device;  // flat and norms once model/dora.h's prepare_adapter has placed them on a CUDA device
  Tensor device_flat, device_norms;

  Adapter view();
};

// `path` is a folder, a .safetensors file with adapter_config.json beside it, or a .gguf file. Throws Error(bad_file), Error(bad_config).
LoadedAdapter load_adapter(const std::string& path, const ModelConfig& config);

// What can be said without a base: throws Error(bad_config) for a setting of `folder`'s adapter_config.json that load_adapter would refuse.
void check_adapter_config(const std::string& folder);

// The same as load_adapter into memory of the caller's, layout.size() floats. Throws Error(bad_file) too when the adapter has other modules, ranks or scales than
// `layout`, listing each. Returns what LoadedAdapter::note would say.
std::string load_adapter_into(const std::string& path, const ModelConfig& config, const AdapterLayout& layout,
                              float* flat);

// `flat` is host memory in the layout's order. `base` is what base_model_name_or_path will say; `prefix` is the model's (ModelRecipe):
// where a checkpoint has more than text, PEFT's names begin with model.language_model., mlx-lm's with language_model.model., and PEFT is given
// a pattern of the text's modules, so that it leaves the other towers alone. Written atomically, the config last.
void save_peft_adapter(const std::string& folder, const AdapterLayout& layout, const float* flat,
                       const std::string& base, const std::string& prefix = "model.");
void save_mlx_adapter(const std::string& folder, const AdapterLayout& layout, const float* flat,
                      int64_t num_model_layers, const std::string& prefix = "model.");
// Throws Error(bad_config) for a DoRA adapter.
void save_gguf_adapter(const std::string& path, const AdapterLayout& layout, const float* flat,
                       const ModelConfig& config);

// > 0: llama.cpp stores the output rows of this module with those of each head interleaved (Weight::interleaved_head_dim).
int64_t interleaved_head_dim(const ModelConfig& config, int64_t layer, Module module);

}  // namespace sluice
