// adapter_config.json of PEFT and mlx-lm. A key or a value that is not implemented here is refused by name: PEFT's keys are a list of those that
// are read, those that change nothing in a trained adapter, and those that must be off; whatever stands in none of them must be off too.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "model/lora.h"
#include "model/python_regex.h"

namespace sluice {

class AdapterConfig {
 public:
  // Throw Error(bad_config) naming `path`, the key and its value.
  static AdapterConfig peft(const Json& json, const std::string& path);
  static AdapterConfig mlx(const Json& json, const std::string& path);

  const AdapterSpec& spec() const { return spec_; }  // without targets and patterns
  const std::string& base() const { return base_; }  // base_model_name_or_path, or empty

  // Of a module by its whole name in the model that was trained, such as model.layers.0.self_attn.q_proj. The first pattern that matches wins.
  int64_t rank_of(const std::string& name) const;
  float alpha_of(const std::string& name) const;
  bool has_patterns() const { return !ranks_.empty() || !alphas_.empty(); }
  // Whether PEFT gives it an adapter; false too where the config names no modules.
  bool targets(const std::string& name) const;

 private:
  // Ends of names, or one expression for the whole name.
  struct Names {
    std::vector<std::string> ends;
    std::vector<PythonRegex> whole;  // at most one
    bool all_linear = false;
    bool has(const std::string& name) const;
  };
  static Names names(const Json& json, const char* key, const std::string& path);
  void read_patterns(const Json& json, const std::string& path);
  void read_layers(const Json& json, const std::string& path);
  bool in_layers(const std::string& name) const;

  AdapterSpec spec_;
  std::string base_;
  std::vector<std::pair<PythonRegex, double>> ranks_, alphas_;
  Names targets_, excluded_;
  std::vector<int64_t> layers_;  // empty: all
  std::vector<PythonRegex> layer_patterns_;
};

}  // namespace sluice
