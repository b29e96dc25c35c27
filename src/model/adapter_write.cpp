#include <fmt/format.h>

#include <filesystem>
#include <regex>
#include <set>

#include "core/json.h"
#include "io/atomic_file.h"
#include "io/gguf_write.h"
#include "io/safetensors.h"
#include "model/adapter_file.h"
#include "model/gguf_names.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

std::span<const std::byte> bytes_of(const float* values, int64_t count) {
  return {reinterpret_cast<const std::byte*>(values), static_cast<size_t>(count) * sizeof(float)};
}

bool is_text_only(const std::string& prefix) { return prefix.empty() || prefix == "model."; }

}  // namespace

void save_peft_adapter(const std::string& folder, const AdapterLayout& layout, const float* flat,
                       const std::string& base, const std::string& prefix) {
  fs::create_directories(folder);
  std::vector<TensorToWrite> tensors;
  const bool text_only = is_text_only(prefix);
  const std::string module_prefix = text_only ? "model." : "model.language_model.";
  std::set<std::string> targets, names;  // by the last word, and as expressions
  std::vector<std::string> paths;
  Json rank_pattern = Json::object(), alpha_pattern = Json::object();
  const AdapterSpec& spec = layout.spec();
  for (const AdapterLayout::Entry& e : layout.entries()) {
    const std::string name = module_name(e.layer, e.module);
    const std::string key = "base_model.model." + module_prefix + name;
    tensors.push_back({key + ".lora_A.weight", "F32", {e.rank, e.in}, bytes_of(flat + e.a_offset, e.rank * e.in)});
    tensors.push_back({key + ".lora_B.weight", "F32", {e.out, e.rank}, bytes_of(flat + e.b_offset, e.out * e.rank)});
    if (spec.dora)
      tensors.push_back({key + ".lora_magnitude_vector", "F32", {e.out}, bytes_of(flat + e.magnitude_offset, e.out)});
    const std::string path(module_path(e.module));
    targets.insert(path.substr(path.rfind('.') + 1));
    // A regular expression for PEFT, so dots are escaped.
    const std::string escaped = std::regex_replace(name, std::regex("\\."), "\\.");
    names.insert(escaped);
    paths.push_back(module_prefix + name);
    if (e.rank != spec.rank) rank_pattern[escaped] = e.rank;
    if (e.alpha != spec.alpha) alpha_pattern[escaped] = e.alpha;
  }
  write_safetensors((fs::path(folder) / peft_weights_name).string(), tensors, {{"format", "pt"}});
  Json config = {{"peft_type", "LORA"},
                 {"task_type", "CAUSAL_LM"},
                 {"base_model_name_or_path", base},
                 {"r", spec.rank},
                 {"lora_alpha", spec.alpha},
                 {"lora_dropout", spec.dropout},
                 {"target_modules", targets},
                 {"bias", "none"},
                 {"fan_in_fan_out", false},
                 {"inference_mode", true},
                 {"use_rslora", spec.rank_stabilised},
                 {"use_dora", spec.dora},
                 {"rank_pattern", rank_pattern},
                 {"alpha_pattern", alpha_pattern},
                 {"modules_to_save", nullptr}};
  if (!text_only) {  // PEFT takes no layers_to_transform beside a pattern
    config["target_modules"] = fmt::format("model\\.language_model\\.(?:{})", fmt::join(names, "|"));
  } else if (layout.selection() == AdapterLayout::Selection::irregular) {
    config["target_modules"] = paths;
  } else if (layout.selection() == AdapterLayout::Selection::some_layers) {
    std::set<int64_t> layers;
    for (const AdapterLayout::Entry& e : layout.entries()) layers.insert(e.layer);
    config["layers_to_transform"] = layers;
    config["layers_pattern"] = "layers";
  }
  atomic_write_file((fs::path(folder) / adapter_config_name).string(), config.dump(2) + "\n");
}

void save_mlx_adapter(const std::string& folder, const AdapterLayout& layout, const float* flat,
                      int64_t num_model_layers, const std::string& prefix) {
  fs::create_directories(folder);
  int64_t rank = 0, first_layer = num_model_layers;
  for (const AdapterLayout::Entry& e : layout.entries()) {
    rank = std::max(rank, e.rank);
    first_layer = std::min(first_layer, e.layer);
  }
  const double scale = static_cast<double>(layout.entries().front().scale);
  // mlx-lm looks keys up among the modules of the last layers, and among the whole model's: by whole paths where the last layers do not tell.
  std::set<int64_t> layers;
  for (const AdapterLayout::Entry& e : layout.entries()) layers.insert(e.layer);
  const bool by_path = layout.selection() == AdapterLayout::Selection::irregular ||
                       static_cast<int64_t>(layers.size()) != num_model_layers - first_layer;
  std::vector<std::vector<float>> storage;
  storage.reserve(layout.entries().size() * 2);
  std::vector<TensorToWrite> tensors;
  std::set<std::string> keys;
  for (const AdapterLayout::Entry& e : layout.entries()) {
    const std::string key =
        (is_text_only(prefix) ? "model." : "language_model.model.") + module_name(e.layer, e.module);
    keys.insert(by_path ? key : std::string(module_path(e.module)));
    std::vector<float> a(static_cast<size_t>(e.in * rank), 0.0F), b(static_cast<size_t>(rank * e.out), 0.0F);
    // One scale for the file: what differs goes into b.
    const auto factor = static_cast<float>(static_cast<double>(e.scale) / scale);
    for (int64_t r = 0; r < e.rank; ++r) {
      for (int64_t i = 0; i < e.in; ++i) a[static_cast<size_t>(i * rank + r)] = flat[e.a_offset + r * e.in + i];
      for (int64_t o = 0; o < e.out; ++o) {
        const float value = flat[e.b_offset + o * e.rank + r];
        b[static_cast<size_t>(r * e.out + o)] = e.scale == layout.entries().front().scale ? value : factor * value;
      }
    }
    storage.push_back(std::move(a));
    tensors.push_back({key + ".lora_a", "F32", {e.in, rank}, bytes_of(storage.back().data(), e.in * rank)});
    storage.push_back(std::move(b));
    tensors.push_back({key + ".lora_b", "F32", {rank, e.out}, bytes_of(storage.back().data(), rank * e.out)});
    if (layout.spec().dora) tensors.push_back({key + ".m", "F32", {e.out}, bytes_of(flat + e.magnitude_offset, e.out)});
  }
  write_safetensors((fs::path(folder) / mlx_weights_name).string(), tensors, {{"format", "mlx"}});
  const Json config = {
      {"fine_tune_type", layout.spec().dora ? "dora" : "lora"},
      {"num_layers", num_model_layers - first_layer},
      {"lora_parameters", {{"rank", rank}, {"scale", scale}, {"dropout", layout.spec().dropout}, {"keys", keys}}}};
  atomic_write_file((fs::path(folder) / adapter_config_name).string(), config.dump(2) + "\n");
}

void save_gguf_adapter(const std::string& path, const AdapterLayout& layout, const float* flat,
                       const ModelConfig& config) {
  check(!layout.spec().dora, ErrorCode::bad_config,
        path + ": llama.cpp has no DoRA adapters; save it for PEFT or mlx-lm");
  const AdapterLayout::Entry& first = layout.entries().front();
  const float alpha = first.scale * static_cast<float>(first.rank);
  std::vector<std::vector<float>> storage;
  storage.reserve(layout.entries().size());
  std::vector<GgufTensorToWrite> tensors;
  for (const AdapterLayout::Entry& e : layout.entries()) {
    std::string_view name = module_path(e.module);
    for (const auto& [hf, gguf] : gguf_names) {
      if (hf == module_path(e.module)) name = gguf;
    }
    const std::string key = fmt::format("blk.{}.{}.weight", e.layer, name);
    // The file's scale is alpha / rank: what differs goes into b.
    const float factor = e.scale / (alpha / static_cast<float>(e.rank));
    const Weight rows{.interleaved_head_dim = interleaved_head_dim(config, e.layer, e.module)};
    std::vector<float>& b = storage.emplace_back(static_cast<size_t>(e.out * e.rank));
    for (int64_t o = 0; o < e.out; ++o) {
      for (int64_t r = 0; r < e.rank; ++r)
        b[static_cast<size_t>(rows.stored_row(o) * e.rank + r)] = factor * flat[e.b_offset + o * e.rank + r];
    }
    tensors.push_back({key + ".lora_a", {e.rank, e.in}, {flat + e.a_offset, static_cast<size_t>(e.rank * e.in)}});
    tensors.push_back({key + ".lora_b", {e.out, e.rank}, b});
  }
  write_gguf(path,
             {{"general.type", "adapter"},
              {"general.architecture", std::string(gguf_architecture(config.model_type))},
              {"adapter.type", "lora"},
              {"adapter.lora.alpha", alpha}},
             tensors);
}

}  // namespace sluice
