#include "model/adapter_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "model/config_reader.h"

namespace sluice {

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& key, const Json& value, const std::string& why) {
  throw Error(ErrorCode::bad_config, fmt::format("{}: '{}' is {}; {}", path, key, value.dump().substr(0, 80), why));
}

bool is_off(const Json& value) {
  return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

// PEFT 0.21's LoraConfig and PeftConfig. Keys that are read:
constexpr std::array<std::string_view, 16> read_keys = {"peft_type",
                                                        "task_type",
                                                        "base_model_name_or_path",
                                                        "r",
                                                        "lora_alpha",
                                                        "lora_dropout",
                                                        "use_dora",
                                                        "use_rslora",
                                                        "target_modules",
                                                        "exclude_modules",
                                                        "layers_to_transform",
                                                        "layers_pattern",
                                                        "rank_pattern",
                                                        "alpha_pattern",
                                                        "init_lora_weights",
                                                        "bias"};

// Of the training, the software or an initialisation that init_lora_weights names: nothing in them changes what trained numbers mean.
constexpr std::array<std::string_view, 12> idle_keys = {
    "auto_mapping", "inference_mode", "revision",       "peft_version",      "megatron_core",  "loftq_config",
    "eva_config",   "corda_config",   "lora_ga_config", "qalora_group_size", "runtime_config", "ensure_weight_tying"};

struct Off {
  std::string_view key, why;
};
constexpr std::array<Off, 14> off_keys = {{
    {"modules_to_save", "whole saved modules are not supported"},
    {"trainable_token_indices", "trained tokens are not supported"},
    {"target_parameters", "adapters on parameters (experts) are not supported"},
    {"fan_in_fan_out", "transposed weights are not supported"},
    {"layer_replication", "the adapter is for a base whose layers are repeated, not for the files of this one"},
    {"alora_invocation_tokens", "an activated adapter acts on a part of the text only; that is not supported"},
    {"lora_bias", "trained biases are not supported"},
    {"use_qalora", "QALoRA's grouped inputs are not supported"},
    {"use_bdlora", "block-diagonal adapters are not supported"},
    {"arrow_config", "routing among adapters is not supported"},
    {"kasa_config", "KaSA changes the base's weights; that is not supported"},
    {"monteclora_config", "sampled adapters are not supported"},
    {"velora_config", "VeLoRA is not supported"},
    {"megatron_config", "Megatron's parallel layers are not supported"},
}};

template <class Keys>
bool has_key(const Keys& keys, const std::string& key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

void refuse_what_is_on(const Json& json, const std::string& path) {
  for (const auto& [key, value] : json.items()) {
    if (is_off(value) || has_key(read_keys, key) || has_key(idle_keys, key)) continue;
    const auto* off = std::find_if(off_keys.begin(), off_keys.end(), [&](const Off& o) { return o.key == key; });
    refuse(path, key, value,
           off != off_keys.end() ? std::string(off->why)
                                 : "this key of PEFT is not known here, and may change the adapter");
  }
}

// Initialisations that leave the base as it is; the others move a part of its weights into the adapter's start.
void check_initialisation(const Json& json, const std::string& path) {
  const Json value = json.value("init_lora_weights", Json());
  std::string name = value.is_string() ? value.get<std::string>() : "";
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (value.is_null() || value.is_boolean()) return;
  for (const char* harmless : {"gaussian", "eva", "orthogonal", "mica"}) {
    if (name == harmless) return;
  }
  refuse(path, "init_lora_weights", value,
         "such an adapter is for a base whose weights its initialisation changed, not for the files of this one; "
         "convert it in "
         "PEFT by save_pretrained with path_initial_model_for_weight_conversion");
}

double finite(const Json& json, const char* key, double otherwise, const std::string& path) {
  const double value = ConfigReader(json, path).number_or(key, otherwise);
  if (!std::isfinite(value) || value < 0) refuse(path, key, json[key], "needed a number of 0 or more");
  return value;
}

int64_t rank_of(const Json& json, const char* key, const std::string& path) {
  const ConfigReader reader(json, path);
  return reader.has(key) ? reader.integer(key) : 8;
}

}  // namespace

bool AdapterConfig::Names::has(const std::string& name) const {
  if (all_linear) return true;
  if (!whole.empty()) return whole.front().matches_all(name);
  return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return names_module(end, name); });
}

AdapterConfig::Names AdapterConfig::names(const Json& json, const char* key, const std::string& path) {
  Names found;
  const Json value = json.value(key, Json());
  if (value.is_null()) return found;
  if (value.is_string()) {
    auto text = value.get<std::string>();
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    found.all_linear = lower == "all-linear";
    if (!found.all_linear) found.whole.emplace_back(text, fmt::format("{}: {}", path, key));
    return found;
  }
  if (!value.is_array()) refuse(path, key, value, "needed a list of names or a regular expression");
  for (const Json& item : value) {
    if (!item.is_string()) refuse(path, key, item, "needed names");
    found.ends.push_back(item.get<std::string>());
  }
  return found;
}

// PEFT: re.match(rf"(.*\.)?({key})$", name).
void AdapterConfig::read_patterns(const Json& json, const std::string& path) {
  const auto read = [&](const char* key, std::vector<std::pair<PythonRegex, double>>& to) {
    const Json patterns = ConfigReader(json, path).object_or(key, Json::object());
    for (const auto& [name, value] : patterns.items()) {
      const bool rank = std::string_view(key) == "rank_pattern";
      const bool good = rank ? value.is_number_integer() && value.get<int64_t>() > 0
                             : value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0;
      if (!good)
        refuse(path, fmt::format("{}.{}", key, name), value,
               rank ? "needed an integer above 0" : "needed a number of 0 or more");
      to.emplace_back(PythonRegex("(.*\\.)?(" + name + ")", fmt::format("{}: {}", path, key)), value.get<double>());
    }
  };
  read("rank_pattern", ranks_);
  read("alpha_pattern", alphas_);
}

void AdapterConfig::read_layers(const Json& json, const std::string& path) {
  layers_ = ConfigReader(json, path).integers("layers_to_transform");
  const Json pattern = json.value("layers_pattern", Json());
  if (json.value("target_modules", Json()).is_string()) {
    for (const char* key : {"layers_to_transform", "layers_pattern"}) {
      if (!is_off(json.value(key, Json())))
        refuse(path, key, json[key], "PEFT takes it beside a list of target_modules only");
    }
  }
  if (is_off(pattern)) {
    layer_patterns_.emplace_back(R"(.*?\.[^.]*\.(?P<idx>\d+)\.)", path);
    return;
  }
  if (json.value("layers_to_transform", Json()).is_null())
    refuse(path, "layers_pattern", pattern, "PEFT takes it beside layers_to_transform only");
  for (const std::string& one :
       names(pattern.is_string() ? Json{{"layers_pattern", Json::array({pattern})}} : json, "layers_pattern", path)
           .ends)
    layer_patterns_.emplace_back(R"((?:^|.*?\.))" + one + R"(\.(?P<idx>\d+)\.)", path + ": layers_pattern");
}

bool AdapterConfig::in_layers(const std::string& name) const {
  if (layers_.empty()) return true;
  for (const PythonRegex& pattern : layer_patterns_) {
    const std::optional<std::string> index = pattern.group_at_start(name, "idx");
    if (index) return std::find(layers_.begin(), layers_.end(), std::stoll(*index)) != layers_.end();
  }
  return false;
}

AdapterConfig AdapterConfig::peft(const Json& json, const std::string& path) {
  const ConfigReader config(json, path);
  const std::string type = config.string_or("peft_type", "LORA"), task = config.string_or("task_type", "CAUSAL_LM");
  if (type != "LORA") refuse(path, "peft_type", json["peft_type"], "only LoRA adapters are read");
  if (task != "CAUSAL_LM" && task != "FEATURE_EXTRACTION")
    refuse(path, "task_type", json["task_type"], "only adapters of language models (CAUSAL_LM) are read");
  if (config.string_or("bias", "none") != "none")
    refuse(path, "bias", json["bias"], "trained biases are not supported");
  check_initialisation(json, path);
  refuse_what_is_on(json, path);
  AdapterConfig read;
  read.spec_ = {.rank = sluice::rank_of(json, "r", path),
                .alpha = static_cast<float>(finite(json, "lora_alpha", 8, path)),
                .dora = config.boolean_or("use_dora", false),
                .rank_stabilised = config.boolean_or("use_rslora", false),
                .dropout = static_cast<float>(finite(json, "lora_dropout", 0, path))};
  read.base_ = config.string_or("base_model_name_or_path", "");
  read.targets_ = names(json, "target_modules", path);
  read.excluded_ = names(json, "exclude_modules", path);
  read.read_layers(json, path);
  read.read_patterns(json, path);
  return read;
}

// The file holds all settings of the run; these say what the tensors mean.
AdapterConfig AdapterConfig::mlx(const Json& json, const std::string& path) {
  const ConfigReader config(json, path);
  const std::string type = config.string_or("fine_tune_type", "lora");
  if (type != "lora" && type != "dora")
    refuse(path, "fine_tune_type", json["fine_tune_type"], "only lora and dora adapters are read");
  const Json parameters = config.object_or("lora_parameters", Json::object());
  const std::string where = path + ": lora_parameters";
  for (const auto& [key, value] : parameters.items()) {
    if (key == "rank" || key == "scale" || key == "dropout" || key == "keys" || is_off(value)) continue;
    refuse(where, key, value,
           key == "alpha" ? "versions of mlx-lm that write it scale by it too; give scale alone (scale * alpha / rank)"
                          : "this key of mlx-lm is not known here, and may change the adapter");
  }
  AdapterConfig read;
  read.spec_ = {.rank = sluice::rank_of(parameters, "rank", where),
                .dora = type == "dora" || config.boolean_or("use_dora", false)};
  const double scale = finite(parameters, "scale", 20, where);  // mlx-lm's default
  read.spec_.alpha = static_cast<float>(scale * static_cast<double>(read.spec_.rank));
  read.spec_.dropout = static_cast<float>(finite(parameters, "dropout", 0, where));
  return read;
}

int64_t AdapterConfig::rank_of(const std::string& name) const {
  for (const auto& [pattern, rank] : ranks_) {
    if (pattern.matches_all(name)) return static_cast<int64_t>(rank);
  }
  return spec_.rank;
}

float AdapterConfig::alpha_of(const std::string& name) const {
  for (const auto& [pattern, alpha] : alphas_) {
    if (pattern.matches_all(name)) return static_cast<float>(alpha);
  }
  return spec_.alpha;
}

bool AdapterConfig::targets(const std::string& name) const {
  if (excluded_.has(name)) return false;
  if (!targets_.has(name)) return false;
  // A module that is listed by its whole name is adapted whatever layers are named.
  if (std::find(targets_.ends.begin(), targets_.ends.end(), name) != targets_.ends.end()) return true;
  return in_layers(name);
}

}  // namespace sluice
