#include "io/affine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "io/file_error.h"

namespace sluice {
namespace {

// MLX writes the same object under both keys.
const Json* quantization_of(const Json& config) {
  for (const char* key : {"quantization", "quantization_config"}) {
    if (config.contains(key) && config.at(key).is_object()) return &config.at(key);
  }
  return nullptr;
}

template <size_t n>
int read_choice(const Json& entry, const char* key, int if_missing, const std::array<int, n>& allowed,
                std::string_view module, std::string_view file) {
  if (!entry.contains(key) || entry.at(key).is_null()) return if_missing;
  const Json& value = entry.at(key);
  const bool found = value.is_number_integer() && std::find(allowed.begin(), allowed.end(), value) != allowed.end();
  if (!found) {
    bad_file(file, fmt::format("config.json gives {} {} for {}, needed one of {}; quantise the model again", key,
                               printable(value.dump(-1, ' ', true)), printable(module), fmt::join(allowed, ", ")));
  }
  return value.get<int>();
}

}  // namespace

bool has_mlx_quantization(const Json& config, std::string_view file) {
  const Json* quantization = quantization_of(config);
  if (quantization == nullptr) return false;
  if (!config.contains("quantization") && quantization->contains("quant_method")) {
    bad_file(
        file,
        fmt::format("the model is quantised with {}, which is not read; take the bf16, MLX or GGUF form of this model",
                    printable(quantization->at("quant_method").dump(-1, ' ', true))));
  }
  return true;
}

AffineSettings affine_settings(const Json& config, std::string_view module, std::string_view file) {
  const Json* quantization = quantization_of(config);
  if (quantization == nullptr) {
    bad_file(
        file,
        fmt::format("{} is quantised, but config.json has no \"quantization\"; copy the config.json that belongs to it",
                    printable(module)));
  }
  const auto found = quantization->find(std::string(module));
  const bool own = found != quantization->end() && found->is_object();
  if (found != quantization->end() && found->is_boolean() && !found->get<bool>()) {
    bad_file(file, fmt::format("config.json says that {} is not quantised, the file holds U32 codes for it; "
                               "copy the config.json that belongs to it",
                               printable(module)));
  }
  const Json& entry = own ? *found : *quantization;
  const std::string mode =
      entry.contains("mode") && entry.at("mode").is_string() ? entry.at("mode").get<std::string>() : "affine";
  if (mode != "affine") {
    bad_file(file, fmt::format("{} is quantised in MLX's mode {}, only affine is read; convert the model with "
                               "mlx_lm.convert -q --q-mode affine",
                               printable(module), printable(mode)));
  }
  return {.bits = read_choice(entry, "bits", 4, std::array{2, 3, 4, 6, 8}, module, file),
          .group_size = read_choice(entry, "group_size", 64, std::array{32, 64, 128}, module, file)};
}

}  // namespace sluice
