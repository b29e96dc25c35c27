// MLX's affine quantisation in a folder's config.json: which modules are quantised, with how many bits and which group.
#pragma once

#include <string_view>

#include "core/json.h"

namespace sluice {

struct AffineSettings {
  int bits = 0, group_size = 0;
};

// True when the config says how MLX quantised the model. Throws Error(bad_file) for another tool's quantisation (GPTQ,
// AWQ, bitsandbytes …), named.
bool has_mlx_quantization(const Json& config, std::string_view file);

// The settings of one module, by its path in the checkpoint's own naming. As in mlx-lm, an entry under that path replaces
// the defaults of the whole model, and what it leaves out is 64 and 4. Throws Error(bad_file) when the config has none,
// says false, names another mode than affine, or gives bits or group_size that do not exist.
AffineSettings affine_settings(const Json& config, std::string_view module, std::string_view file);

}  // namespace sluice
