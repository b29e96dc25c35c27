// Adapters on disk, as PEFT and mlx-lm write them.
//
//   save_peft_adapter("out/last", adapter_on_host, {.base = "SmolLM2-135M-Instruct"});
//   LoadedAdapter loaded = load_adapter("out/last", model.config);   // either format, told apart by its files
//
// PEFT: adapter_model.safetensors, keys base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight [R, in] and lora_B [out, R];
// adapter_config.json. mlx-lm: adapters.safetensors, keys model.layers.0.self_attn.q_proj.lora_a [in, R] and lora_b [R, out];
// one rank and one scale for all, so smaller ranks are padded with zeros and differing scales are folded into b. Values are F32.
// Loading is strict: every tensor must belong to a module of the model and every adapted module must be complete; all that
// is wrong is listed in one Error(bad_file). What cannot be represented (DoRA, modules_to_save, embeddings) is refused by name.
#pragma once

#include <string>
#include <vector>

#include "model/lora.h"

namespace sluice {

enum class AdapterFormat : uint8_t { peft, mlx };

struct LoadedAdapter {
  AdapterLayout layout;
  std::vector<float> flat;  // layout.size() numbers
  AdapterFormat format = AdapterFormat::peft;
  std::string base;  // base_model_name_or_path, or empty
};

// Throws Error(bad_file), Error(bad_config).
LoadedAdapter load_adapter(const std::string& folder, const ModelConfig& config);

// The same into memory of the caller's, layout.size() floats. Throws Error(bad_file) too when the folder's adapter has other modules, ranks or
// scales than `layout`.
void load_adapter_into(const std::string& folder, const ModelConfig& config, const AdapterLayout& layout, float* flat);

// `flat` is host memory in the layout's order. `base` is what base_model_name_or_path will say; `module_prefix` is what stands before
// "layers.0" in the checkpoint's names: "model." for the Llama family. Written atomically, the config last.
void save_peft_adapter(const std::string& folder, const AdapterLayout& layout, const float* flat,
                       const std::string& base, const std::string& module_prefix = "model.");
void save_mlx_adapter(const std::string& folder, const AdapterLayout& layout, const float* flat,
                      int64_t num_model_layers, const std::string& module_prefix = "model.");

}  // namespace sluice
