#include "model/adapter_file.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include "core/json.h"
#include "io/atomic_file.h"
#include "io/json_file.h"
#include "io/safetensors.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

constexpr const char* peft_weights = "adapter_model.safetensors";
constexpr const char* mlx_weights = "adapters.safetensors";
constexpr const char* config_name = "adapter_config.json";

std::span<const std::byte> bytes_of(const float* values, int64_t count) {
  return {reinterpret_cast<const std::byte*>(values), static_cast<size_t>(count) * sizeof(float)};
}

float float_at(const StoredTensor& tensor, int64_t i) {
  const std::byte* p = tensor.data.data();
  if (tensor.dtype == "F32") {
    float value = 0;
    std::memcpy(&value, p + 4 * i, 4);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, p + 2 * i, 2);
  if (tensor.dtype == "F16") return f16_to_float(half);
  bf16 wide;
  wide.bits = half;
  return static_cast<float>(wide);
}

// Into [rows, cols] of a flat buffer, from the same shape or its transpose.
void read_matrix(const StoredTensor& tensor, int64_t rows, int64_t cols, bool transposed, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) to[r * cols + c] = float_at(tensor, transposed ? c * rows + r : r * cols + c);
  }
}

// Where a tensor of an adapter belongs.
struct Place {
  int64_t layer = 0;
  Module module{};
  bool is_b = false;
};

// "…layers.3.self_attn.q_proj.lora_A.weight" and mlx-lm's "…layers.3.self_attn.q_proj.lora_a".
std::optional<Place> place_of(const std::string& name, AdapterFormat format, const ModelConfig& config) {
  std::string path = name;
  const std::string a = format == AdapterFormat::peft ? ".lora_A.weight" : ".lora_a";
  const std::string b = format == AdapterFormat::peft ? ".lora_B.weight" : ".lora_b";
  Place place;
  if (path.ends_with(a)) {
    path.resize(path.size() - a.size());
  } else if (path.ends_with(b)) {
    path.resize(path.size() - b.size());
    place.is_b = true;
  } else {
    return std::nullopt;
  }
  const size_t at = path.find("layers.");
  if (at == std::string::npos || (at > 0 && path[at - 1] != '.')) return std::nullopt;
  const size_t digits = at + 7, dot = path.find('.', digits);
  if (dot == std::string::npos || dot == digits || dot - digits > 6) return std::nullopt;
  const std::string number = path.substr(digits, dot - digits);
  if (number.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  place.layer = std::stoll(number);
  if (place.layer >= config.num_layers) return std::nullopt;
  for (int m = 0; m < num_modules; ++m) {
    place.module = static_cast<Module>(m);
    if (path.substr(dot + 1) == module_path(place.module)) {
      return linear_shape(config, place.layer, place.module).out > 0 ? std::optional(place) : std::nullopt;
    }
  }
  return std::nullopt;
}

struct Pair {
  const StoredTensor *a = nullptr, *b = nullptr;
  int64_t rank = 0;
};

// Tensors by module, or every reason why not.
std::map<std::pair<int64_t, Module>, Pair> read_pairs(const SafetensorsFile& file, AdapterFormat format,
                                                      const ModelConfig& config, std::vector<std::string>& problems) {
  std::map<std::pair<int64_t, Module>, Pair> pairs;
  for (const StoredTensor& tensor : file.tensors()) {
    const std::optional<Place> place = place_of(tensor.name, format, config);
    if (!place) {
      problems.push_back(fmt::format("{} belongs to no linear layer of this {} model", tensor.name, config.model_type));
      continue;
    }
    const auto [in, out] = linear_shape(config, place->layer, place->module);
    const bool supported = tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16";
    // As the format lays it out: [R, in] and [out, R], or mlx-lm's transposes.
    const bool rank_first = (format == AdapterFormat::peft) != place->is_b;
    const int64_t width = place->is_b ? out : in;
    if (!supported || tensor.shape.size() != 2 || tensor.shape[rank_first ? 1 : 0] != width ||
        tensor.shape[rank_first ? 0 : 1] < 1) {
      problems.push_back(fmt::format("{} is {} [{}], needed F32, F16 or BF16 {}", tensor.name, tensor.dtype,
                                     fmt::join(tensor.shape, ", "),
                                     rank_first ? fmt::format("[rank, {}]", width) : fmt::format("[{}, rank]", width)));
      continue;
    }
    Pair& pair = pairs[{place->layer, place->module}];
    const int64_t rank = tensor.shape[rank_first ? 0 : 1];
    if (pair.rank != 0 && pair.rank != rank) {
      problems.push_back(fmt::format("{} has rank {}, its other half {}", tensor.name, rank, pair.rank));
      continue;
    }
    pair.rank = rank;
    (place->is_b ? pair.b : pair.a) = &tensor;
  }
  for (const auto& [key, pair] : pairs) {
    if (pair.a == nullptr || pair.b == nullptr) {
      problems.push_back(
          fmt::format("{} has no {}", module_name(key.first, key.second), pair.a == nullptr ? "lora_A" : "lora_B"));
    }
  }
  return pairs;
}

void refuse(const Json& config, const std::string& path, const char* key, const Json& neutral, const char* what) {
  if (!config.contains(key) || config[key].is_null() || config[key] == neutral) return;
  if (config[key].is_array() && config[key].empty()) return;
  throw Error(ErrorCode::bad_config,
              fmt::format("{}: {} is {}; {}", path, key, config[key].dump().substr(0, 80), what));
}

std::vector<std::pair<std::string, double>> pattern(const Json& config, const char* key) {
  std::vector<std::pair<std::string, double>> entries;
  if (!config.contains(key) || !config[key].is_object()) return entries;
  for (const auto& [name, value] : config[key].items()) {
    if (value.is_number()) entries.emplace_back(name, value.get<double>());
  }
  return entries;
}

// PEFT matches a key as a regular expression: "(.*\.)?(key)$".
template <class T>
T by_pattern(const std::vector<std::pair<std::string, double>>& patterns, const std::string& name, T otherwise,
             const std::string& path) {
  for (const auto& [key, value] : patterns) {
    try {
      if (std::regex_match(name, std::regex("(.*\\.)?(" + key + ")"))) return static_cast<T>(value);
    } catch (const std::regex_error&) {
      throw Error(ErrorCode::bad_config, fmt::format("{}: '{}' is not a regular expression", path, key));
    }
  }
  return otherwise;
}

// Which modules a PEFT config names: a list of path ends, one regular expression, or "all-linear". Nothing when it names none.
std::vector<std::string> expected_modules(const Json& config, const ModelConfig& model, const std::string& path) {
  std::vector<std::string> names;
  if (!config.contains("target_modules")) return names;
  const Json& targets = config["target_modules"];
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (int m = 0; m < num_modules; ++m) {
      const auto module = static_cast<Module>(m);
      if (linear_shape(model, layer, module).out == 0) continue;
      const std::string name = "model." + module_name(layer, module);
      bool wanted = targets == "all-linear";
      if (targets.is_string() && !wanted)
        wanted = by_pattern<int>({{targets.get<std::string>(), 1}}, name, 0, path) == 1;
      for (const Json& target : targets.is_array() ? targets : Json::array()) {
        if (!target.is_string()) continue;
        const auto end = target.get<std::string>();
        wanted = wanted || name == end || name.ends_with("." + end);
      }
      const Json layers = config.value("layers_to_transform", Json());
      if (layers.is_array() && !layers.empty())
        wanted = wanted && std::find(layers.begin(), layers.end(), layer) != layers.end();
      if (wanted) names.push_back(module_name(layer, module));
    }
  }
  return names;
}

// A folder read and checked: where every number lies in the mapped file.
struct OpenAdapter {
  std::unique_ptr<SafetensorsFile> file;
  std::map<std::pair<int64_t, Module>, Pair> pairs;
  LoadedAdapter about;  // flat is empty

  void read_into(float* flat) const {
    const bool transposed = about.format == AdapterFormat::mlx;
    for (const AdapterLayout::Entry& entry : about.layout.entries()) {
      const Pair& pair = pairs.at({entry.layer, entry.module});
      read_matrix(*pair.a, entry.rank, entry.in, transposed, flat + entry.a_offset);
      read_matrix(*pair.b, entry.out, entry.rank, transposed, flat + entry.b_offset);
    }
  }
};

OpenAdapter open_adapter(const std::string& folder, const ModelConfig& config) {
  check(fs::is_directory(folder), ErrorCode::bad_file,
        fmt::format("{}: no such folder; an adapter is a folder with {} and {} or {}", folder, config_name,
                    peft_weights, mlx_weights));
  OpenAdapter opened;
  LoadedAdapter& loaded = opened.about;
  loaded.format = fs::exists(fs::path(folder) / peft_weights) ? AdapterFormat::peft : AdapterFormat::mlx;
  const bool peft = loaded.format == AdapterFormat::peft;
  const std::string weights = (fs::path(folder) / (peft ? peft_weights : mlx_weights)).string();
  const std::string config_path = (fs::path(folder) / config_name).string();
  const Json json = read_json_file(config_path);
  check(json.is_object(), ErrorCode::bad_file, config_path + ": needed a JSON object");
  opened.file = std::make_unique<SafetensorsFile>(weights);
  std::vector<std::string> problems;
  opened.pairs = read_pairs(*opened.file, loaded.format, config, problems);
  const auto& pairs = opened.pairs;

  AdapterSpec spec;
  const std::vector<std::pair<std::string, double>> alphas = pattern(json, "alpha_pattern"),
                                                    ranks = pattern(json, "rank_pattern");
  if (peft) {
    check(json.value("peft_type", "LORA") == "LORA", ErrorCode::bad_config,
          config_path + ": peft_type is not LORA; only LoRA adapters are read");
    refuse(json, config_path, "use_dora", false, "DoRA adapters are not supported");
    refuse(json, config_path, "modules_to_save", nullptr, "whole saved modules are not supported");
    refuse(json, config_path, "trainable_token_indices", nullptr, "trained tokens are not supported");
    refuse(json, config_path, "bias", "none", "trained biases are not supported");
    refuse(json, config_path, "fan_in_fan_out", false, "transposed weights are not supported");
    spec.rank = json.value("r", int64_t{8});
    spec.alpha = json.value("lora_alpha", 8.0F);
    spec.rank_stabilised = json.value("use_rslora", false);
    spec.dropout = json.value("lora_dropout", 0.0F);
    loaded.base = json.contains("base_model_name_or_path") && json["base_model_name_or_path"].is_string()
                      ? json["base_model_name_or_path"].get<std::string>()
                      : "";
    for (const std::string& name : expected_modules(json, config, config_path)) {
      bool there = false;
      for (const auto& [key, pair] : pairs) there = there || module_name(key.first, key.second) == name;
      if (!there) problems.push_back(fmt::format("{} is missing; {} targets it", name, config_name));
    }
  } else {
    check(json.value("fine_tune_type", "lora") == "lora", ErrorCode::bad_config,
          config_path + ": fine_tune_type is not lora; only LoRA adapters are read");
    const Json parameters = json.value("lora_parameters", Json::object());
    spec.rank = parameters.value("rank", int64_t{8});
    const double scale = parameters.value("scale", 20.0);  // mlx-lm's default
    spec.alpha = static_cast<float>(scale * static_cast<double>(spec.rank));
    spec.dropout = parameters.value("dropout", 0.0F);
  }
  for (const auto& [key, pair] : pairs) {
    const std::string name = module_name(key.first, key.second), full = "model." + name;
    const int64_t rank = by_pattern(ranks, full, spec.rank, config_path);
    if (pair.rank != rank)
      problems.push_back(fmt::format("{} has rank {}, {} says {}", name, pair.rank, config_name, rank));
  }
  if (pairs.empty()) problems.emplace_back("there is no LoRA tensor in it");
  check(problems.empty(), ErrorCode::bad_file,
        fmt::format("{} does not fit:\n  {}", weights, fmt::join(problems, "\n  ")));

  for (const auto& [key, pair] : pairs) {
    const std::string name = module_name(key.first, key.second), full = "model." + name;
    spec.targets.push_back("model." + name);
    if (!ranks.empty()) spec.rank_pattern.emplace_back(full, pair.rank);
    if (!alphas.empty())
      spec.alpha_pattern.emplace_back(full, by_pattern(alphas, full, static_cast<double>(spec.alpha), config_path));
  }
  loaded.layout = AdapterLayout(config, spec);
  return opened;
}

}  // namespace

LoadedAdapter load_adapter(const std::string& folder, const ModelConfig& config) {
  OpenAdapter opened = open_adapter(folder, config);
  opened.about.flat.assign(static_cast<size_t>(opened.about.layout.size()), 0.0F);
  opened.read_into(opened.about.flat.data());
  return std::move(opened.about);
}

void load_adapter_into(const std::string& folder, const ModelConfig& config, const AdapterLayout& layout, float* flat) {
  const OpenAdapter opened = open_adapter(folder, config);
  const auto same = [](const AdapterLayout::Entry& a, const AdapterLayout::Entry& b) {
    return a.layer == b.layer && a.module == b.module && a.rank == b.rank && a.a_offset == b.a_offset &&
           a.scale == b.scale;
  };
  const auto& ours = layout.entries();
  const auto& theirs = opened.about.layout.entries();
  check(std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(), same), ErrorCode::bad_file,
        fmt::format("{}: its adapter has other modules, ranks or scales than the settings ask for; resume with the "
                    "settings it was started with, "
                    "or give another adapter_path",
                    folder));
  std::fill(flat, flat + layout.size(), 0.0F);
  opened.read_into(flat);
}

void save_peft_adapter(const std::string& folder, const AdapterLayout& layout, const float* flat,
                       const std::string& base, const std::string& module_prefix) {
  fs::create_directories(folder);
  std::vector<TensorToWrite> tensors;
  std::set<std::string> targets;
  Json rank_pattern = Json::object(), alpha_pattern = Json::object();
  const AdapterSpec& spec = layout.spec();
  for (const AdapterLayout::Entry& e : layout.entries()) {
    const std::string name = module_name(e.layer, e.module);
    const std::string key = "base_model.model." + module_prefix + name;
    tensors.push_back({key + ".lora_A.weight", "F32", {e.rank, e.in}, bytes_of(flat + e.a_offset, e.rank * e.in)});
    tensors.push_back({key + ".lora_B.weight", "F32", {e.out, e.rank}, bytes_of(flat + e.b_offset, e.out * e.rank)});
    const std::string path(module_path(e.module));
    targets.insert(path.substr(path.rfind('.') + 1));
    // A regular expression for PEFT, so dots are escaped.
    const std::string escaped = std::regex_replace(name, std::regex("\\."), "\\.");
    if (e.rank != spec.rank) rank_pattern[escaped] = e.rank;
    if (e.alpha != spec.alpha) alpha_pattern[escaped] = e.alpha;
  }
  write_safetensors((fs::path(folder) / peft_weights).string(), tensors, {{"format", "pt"}});
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
                 {"use_dora", false},
                 {"rank_pattern", rank_pattern},
                 {"alpha_pattern", alpha_pattern},
                 {"modules_to_save", nullptr}};
  if (spec.last_layers >= 0) {
    std::set<int64_t> layers;
    for (const AdapterLayout::Entry& e : layout.entries()) layers.insert(e.layer);
    config["layers_to_transform"] = layers;
    config["layers_pattern"] = "layers";
  }
  atomic_write_file((fs::path(folder) / config_name).string(), config.dump(2) + "\n");
}

void save_mlx_adapter(const std::string& folder, const AdapterLayout& layout, const float* flat,
                      int64_t num_model_layers, const std::string& module_prefix) {
  fs::create_directories(folder);
  int64_t rank = 0, first_layer = num_model_layers;
  for (const AdapterLayout::Entry& e : layout.entries()) {
    rank = std::max(rank, e.rank);
    first_layer = std::min(first_layer, e.layer);
  }
  const double scale = static_cast<double>(layout.entries().front().scale);
  std::vector<std::vector<float>> storage;
  storage.reserve(layout.entries().size() * 2);
  std::vector<TensorToWrite> tensors;
  std::set<std::string> keys;
  for (const AdapterLayout::Entry& e : layout.entries()) {
    const std::string key = module_prefix + module_name(e.layer, e.module);
    keys.insert(std::string(module_path(e.module)));
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
  }
  write_safetensors((fs::path(folder) / mlx_weights).string(), tensors, {{"format", "mlx"}});
  const Json config = {
      {"fine_tune_type", "lora"},
      {"num_layers", num_model_layers - first_layer},
      {"lora_parameters", {{"rank", rank}, {"scale", scale}, {"dropout", layout.spec().dropout}, {"keys", keys}}}};
  atomic_write_file((fs::path(folder) / config_name).string(), config.dump(2) + "\n");
}

}  // namespace sluice
