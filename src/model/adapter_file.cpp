#include "model/adapter_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "core/json.h"
#include "io/file_kind.h"
#include "io/file_error.h"
#include "io/gguf.h"
#include "io/json_file.h"
#include "io/safetensors.h"
#include "model/adapter_config.h"
#include "model/gguf_names.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

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
    for (int64_t c = 0; c < cols; ++c) {
      const float value = float_at(tensor, transposed ? c * rows + r : r * cols + c);
      check(std::isfinite(value), ErrorCode::bad_file,
            fmt::format("{} has {} among its numbers; the adapter was saved after its training failed", tensor.name,
                        value));
      to[r * cols + c] = value;
    }
  }
}

enum class Part : uint8_t { a, b, magnitude };

// Where a tensor of an adapter belongs.
struct Place {
  std::string_view prefix;  // before "layers." or "blk."
  int64_t layer = 0;
  Module module{};
  Part part{};
};

// How a format ends the names of the three, in the order of Part; an empty end is one it does not have.
std::array<std::string_view, 3> endings(AdapterFormat format) {
  if (format == AdapterFormat::peft) return {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"};
  if (format == AdapterFormat::mlx) return {".lora_a", ".lora_b", ".m"};
  return {".weight.lora_a", ".weight.lora_b", ""};
}

std::optional<Module> module_of(std::string_view path, AdapterFormat format) {
  for (int m = 0; m < num_modules; ++m) {
    const auto module = static_cast<Module>(m);
    std::string_view name = module_path(module);
    for (const auto& [hf, gguf] : gguf_names) {
      if (format == AdapterFormat::gguf && hf == module_path(module)) name = gguf;
    }
    if (path == name) return module;
  }
  return std::nullopt;
}

constexpr std::string_view peft_prefix = "base_model.model.";

// What the text decoder is called in the checkpoints of the families that are read. Other towers, and the layers of multi-token prediction, have
// layers too, but other names.
bool is_text_decoder(std::string_view prefix, AdapterFormat format) {
  if (format == AdapterFormat::gguf) return prefix.empty();
  if (prefix.starts_with(peft_prefix)) prefix.remove_prefix(peft_prefix.size());
  for (std::string_view known : {"", "model.", "model.language_model.", "language_model.model.", "language_model."}) {
    if (prefix == known) return true;
  }
  return false;
}

// "…layers.3.self_attn.q_proj.lora_A.weight", mlx-lm's "…layers.3.self_attn.q_proj.lora_a", llama.cpp's "blk.3.attn_q.weight.lora_a".
std::optional<Place> place_of(std::string_view name, AdapterFormat format, const ModelConfig& config) {
  Place place;
  std::string_view path;
  const std::array<std::string_view, 3> ends = endings(format);
  for (size_t i = 0; i < ends.size(); ++i) {
    if (ends[i].empty() || !name.ends_with(ends[i])) continue;
    path = name.substr(0, name.size() - ends[i].size());
    place.part = static_cast<Part>(i);
  }
  const std::string_view word = format == AdapterFormat::gguf ? "blk." : "layers.";
  const size_t at = path.find(word);
  if (at == std::string_view::npos || !is_text_decoder(path.substr(0, at), format)) return std::nullopt;
  place.prefix = path.substr(0, at);
  const size_t digits = at + word.size(), dot = path.find('.', digits);
  if (dot == std::string_view::npos || dot == digits || dot - digits > 6) return std::nullopt;
  const std::string number(path.substr(digits, dot - digits));
  if (number.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  if (number.size() > 1 && number.front() == '0') return std::nullopt;
  place.layer = std::stoll(number);
  if (place.layer >= config.num_layers) return std::nullopt;
  const std::optional<Module> module = module_of(path.substr(dot + 1), format);
  if (!module || linear_shape(config, place.layer, *module).out == 0) return std::nullopt;
  place.module = *module;
  return place;
}

struct Parts {
  const StoredTensor *a = nullptr, *b = nullptr, *magnitude = nullptr;
  int64_t rank = 0;
};
using PartsByModule = std::map<std::pair<int64_t, Module>, Parts>;

// Tensors by module, or every reason why not.
class PartsReader {
 public:
  PartsReader(AdapterFormat format, const ModelConfig& config, std::vector<std::string>& problems)
      : format_(format), config_(config), problems_(problems) {}

  PartsByModule read(const std::vector<StoredTensor>& tensors, bool dora) {
    PartsByModule all;
    for (const StoredTensor& tensor : tensors) {
      const std::optional<Place> place = place_of(tensor.name, format_, config_);
      if (place) add(tensor, *place, all[{place->layer, place->module}]);
      else if (tensor.name.find("layers.") != std::string::npos && tensor.name.find("lora") != std::string::npos)
        problems_.push_back(
            fmt::format("{} belongs to no linear layer of this {} model's text decoder; adapters on other towers and "
                        "on layers that the "
                        "model does not have are not supported",
                        tensor.name, config_.model_type));
      else
        problems_.push_back(
            fmt::format("{} belongs to no linear layer of this {} model", tensor.name, config_.model_type));
    }
    for (const auto& [key, parts] : all) {
      const auto miss = [&](const StoredTensor* part, const char* name) {
        if (part == nullptr) problems_.push_back(fmt::format("{} has no {}", module_name(key.first, key.second), name));
      };
      miss(parts.a, "lora_A");
      miss(parts.b, "lora_B");
      if (dora) miss(parts.magnitude, "magnitude, which a DoRA adapter needs");
      if (!dora && parts.magnitude != nullptr)
        problems_.push_back(fmt::format("{} is there, but the config says nothing of DoRA", parts.magnitude->name));
    }
    return all;
  }

  // What stands before "layers." in every name, without what PEFT puts before it: "model.".
  std::string prefix() const { return prefix_.starts_with(peft_prefix) ? prefix_.substr(peft_prefix.size()) : prefix_; }

 private:
  void add(const StoredTensor& tensor, const Place& place, Parts& parts) {
    const StoredTensor* same = place.part == Part::a ? parts.a : place.part == Part::b ? parts.b : parts.magnitude;
    if (same != nullptr) {
      problems_.push_back(fmt::format("{} and {} are of one module, which is named twice", same->name, tensor.name));
      return;
    }
    if (first_.empty()) prefix_ = place.prefix, first_ = tensor.name;
    else if (place.prefix != prefix_)
      problems_.push_back(fmt::format("{} begins otherwise than {}: they are of two models", tensor.name, first_));
    const auto [in, out] = linear_shape(config_, place.layer, place.module);
    const bool supported = tensor.dtype == "F32" || tensor.dtype == "F16" || tensor.dtype == "BF16";
    if (place.part == Part::magnitude) {
      if (supported && tensor.shape == std::vector<int64_t>{out}) parts.magnitude = &tensor;
      else refuse_shape(tensor, fmt::format("[{}]", out));
      return;
    }
    // As the format lays it out: [R, in] and [out, R], or mlx-lm's transposes.
    const bool is_b = place.part == Part::b, rank_first = (format_ != AdapterFormat::mlx) != is_b;
    const int64_t width = is_b ? out : in;
    if (!supported || tensor.shape.size() != 2 || tensor.shape[rank_first ? 1 : 0] != width ||
        tensor.shape[rank_first ? 0 : 1] < 1) {
      return refuse_shape(tensor, rank_first ? fmt::format("[rank, {}]", width) : fmt::format("[{}, rank]", width));
    }
    const int64_t rank = tensor.shape[rank_first ? 0 : 1];
    if (parts.rank != 0 && parts.rank != rank) {
      problems_.push_back(fmt::format("{} has rank {}, its other half {}", tensor.name, rank, parts.rank));
      return;
    }
    parts.rank = rank;
    (is_b ? parts.b : parts.a) = &tensor;
  }

  void refuse_shape(const StoredTensor& tensor, const std::string& needed) {
    problems_.push_back(fmt::format("{} is {} [{}], needed F32, F16 or BF16 {}", tensor.name, tensor.dtype,
                                    fmt::join(tensor.shape, ", "), needed));
  }

  AdapterFormat format_;
  const ModelConfig& config_;
  std::vector<std::string>& problems_;
  std::string prefix_, first_;
};

// Where an adapter's files are.
struct Files {
  AdapterFormat format{};
  std::string weights, config;  // GGUF has no config
};

// What to say of a path where no adapter is.
[[noreturn]] void no_adapter(const std::string& path) {
  const fs::path p(path);
  const std::string needed = fmt::format("needed a folder with {} and {} or {}, one of these files, or a .gguf file",
                                         adapter_config_name, peft_weights_name, mlx_weights_name);
  if (fs::is_directory(p)) {
    const std::string kind = kind_of_folder(path);
    if (!kind.empty()) bad_file(path, kind);
    if (fs::exists(p / "adapter_model.bin"))
      bad_file(path, fmt::format("has adapter_model.bin, a Python pickle, which is not read; {}", needed));
    if (fs::exists(p / "config.json")) bad_file(path, fmt::format("is a model, not an adapter; {}", needed));
  } else if (const auto kind = kind_of_file(path)) {
    bad_file(path, fmt::format("is {}; {}", kind->name, needed));
  }
  bad_file(path, fmt::format("no such adapter; {}", needed));
}

Files find_files(const std::string& path) {
  const fs::path p(path);
  if (p.extension() == ".gguf") return {AdapterFormat::gguf, path, ""};
  if (fs::is_directory(p)) {
    const bool peft = fs::exists(p / peft_weights_name);
    if (!peft && !fs::exists(p / mlx_weights_name)) no_adapter(path);
    return {peft ? AdapterFormat::peft : AdapterFormat::mlx,
            (p / (peft ? peft_weights_name : mlx_weights_name)).string(), (p / adapter_config_name).string()};
  }
  if (p.extension() != ".safetensors" || !fs::exists(p)) no_adapter(path);
  // mlx-lm numbers its files: 0000100_adapters.safetensors.
  const bool mlx = p.filename().string().ends_with(mlx_weights_name);
  return {mlx ? AdapterFormat::mlx : AdapterFormat::peft, path, (p.parent_path() / adapter_config_name).string()};
}

// A file read and checked: where every number lies in its mapping.
struct OpenAdapter {
  std::unique_ptr<SafetensorsFile> safetensors;
  std::unique_ptr<GgufFile> gguf;
  PartsByModule parts;
  LoadedAdapter about;  // flat is empty

  void read_into(const ModelConfig& config, float* flat) const {
    const bool transposed = about.format == AdapterFormat::mlx;
    for (const AdapterLayout::Entry& e : about.layout.entries()) {
      const Parts& p = parts.at({e.layer, e.module});
      read_matrix(*p.a, e.rank, e.in, transposed, flat + e.a_offset);
      read_matrix(*p.b, e.out, e.rank, transposed, flat + e.b_offset);
      if (p.magnitude != nullptr) read_matrix(*p.magnitude, e.out, 1, false, flat + e.magnitude_offset);
      if (about.format == AdapterFormat::gguf) unpermute(config, e, flat + e.b_offset);
    }
  }

 private:
  // llama.cpp interleaves the output rows of q and k, so those of B.
  static void unpermute(const ModelConfig& config, const AdapterLayout::Entry& e, float* b) {
    const int64_t head_dim = interleaved_head_dim(config, e.layer, e.module);
    if (head_dim == 0) return;
    const std::vector<float> stored(b, b + e.out * e.rank);
    const Weight rows{.interleaved_head_dim = head_dim};
    for (int64_t o = 0; o < e.out; ++o)
      std::copy_n(stored.data() + rows.stored_row(o) * e.rank, e.rank, b + o * e.rank);
  }
};

// Keys of llama.cpp's adapters, and of the description that any file may have.
void refuse_other_gguf_keys(const GgufFile& file) {
  for (const auto& [key, value] : file.header().metadata) {
    const bool known = key == "adapter.type" || key == "adapter.lora.alpha" || key == "adapter.lora.task_name" ||
                       key.starts_with("general.");
    check(known, ErrorCode::bad_config,
          fmt::format("{}: '{}' is not supported, and may change what the adapter does", file.path(), key));
  }
}

// One alpha for the file; 0 means that nothing is scaled. Ranks are those of the tensors.
float gguf_alpha(const GgufFile& file, const ModelConfig& config) {
  const auto text = [&](const char* key) {
    const GgufValue* value = file.get(key);
    return std::string(value != nullptr && value->string() ? *value->string() : "");
  };
  check(text("general.type") == "adapter" && text("adapter.type") == "lora", ErrorCode::bad_file,
        fmt::format("{}: general.type is '{}' and adapter.type '{}', needed adapter and lora; is it a model?",
                    file.path(), text("general.type"), text("adapter.type")));
  const std::string_view architecture = gguf_architecture(config.model_type);
  check(text("general.architecture") == architecture, ErrorCode::bad_file,
        fmt::format("{}: general.architecture is '{}', the base is '{}'; it is another model's adapter", file.path(),
                    text("general.architecture"), architecture));
  const GgufValue* alpha = file.get("adapter.lora.alpha");
  check(alpha != nullptr && alpha->number(), ErrorCode::bad_file,
        file.path() + ": adapter.lora.alpha is missing; the adapter's strength is not known");
  check(std::isfinite(*alpha->number()), ErrorCode::bad_file,
        file.path() + ": adapter.lora.alpha is not a finite number");
  return static_cast<float>(*alpha->number());
}

OpenAdapter open_gguf_adapter(const Files& files, const ModelConfig& config) {
  OpenAdapter opened;
  opened.gguf = std::make_unique<GgufFile>(files.weights);
  opened.about.format = AdapterFormat::gguf;
  AdapterSpec spec;
  spec.alpha = gguf_alpha(*opened.gguf, config);
  refuse_other_gguf_keys(*opened.gguf);
  std::vector<std::string> problems;
  opened.parts = PartsReader(AdapterFormat::gguf, config, problems).read(opened.gguf->tensors(), false);
  if (opened.parts.empty()) problems.emplace_back("there is no LoRA tensor in it");
  check(problems.empty(), ErrorCode::bad_file,
        fmt::format("{} does not fit:\n  {}", files.weights, fmt::join(problems, "\n  ")));
  spec.rank = opened.parts.begin()->second.rank;
  for (const auto& [key, parts] : opened.parts) {
    const std::string full = "model." + module_name(key.first, key.second);
    spec.targets.push_back(full);
    spec.rank_pattern.emplace_back(full, parts.rank);
    if (spec.alpha == 0) spec.alpha_pattern.emplace_back(full, parts.rank);
  }
  opened.about.layout = AdapterLayout(config, spec);
  return opened;
}

// What PEFT would give an adapter to and the file has not, and ranks that the config says otherwise.
void compare_with_config(const AdapterConfig& about, const PartsByModule& all, const std::string& prefix,
                         const ModelConfig& config, std::vector<std::string>& problems) {
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (int m = 0; m < num_modules; ++m) {
      const auto module = static_cast<Module>(m);
      if (linear_shape(config, layer, module).out == 0) continue;
      const std::string name = module_name(layer, module);
      const auto found = all.find({layer, module});
      if (found == all.end()) {
        if (about.targets(prefix + name))
          problems.push_back(fmt::format("{} is missing; {} targets it", name, adapter_config_name));
      } else if (found->second.rank != about.rank_of(prefix + name)) {
        problems.push_back(fmt::format("{} has rank {}, {} says {}", name, found->second.rank, adapter_config_name,
                                       about.rank_of(prefix + name)));
      }
    }
  }
}

AdapterConfig read_config(const Files& files) {
  const Json json = read_json_file(files.config);
  check(json.is_object(), ErrorCode::bad_file, files.config + ": needed a JSON object");
  return files.format == AdapterFormat::peft ? AdapterConfig::peft(json, files.config)
                                             : AdapterConfig::mlx(json, files.config);
}

OpenAdapter open_adapter(const std::string& path, const ModelConfig& config) {
  const Files files = find_files(path);
  if (files.format == AdapterFormat::gguf) return open_gguf_adapter(files, config);
  OpenAdapter opened;
  opened.about.format = files.format;
  const AdapterConfig about = read_config(files);
  opened.about.base = about.base();
  opened.safetensors = std::make_unique<SafetensorsFile>(files.weights);
  std::vector<std::string> problems;
  PartsReader reader(files.format, config, problems);
  opened.parts = reader.read(opened.safetensors->tensors(), about.spec().dora);
  const std::string prefix = reader.prefix();
  if (problems.empty()) compare_with_config(about, opened.parts, prefix, config, problems);
  if (opened.parts.empty()) problems.emplace_back("there is no LoRA tensor in it");
  check(problems.empty(), ErrorCode::bad_file,
        fmt::format("{} does not fit:\n  {}", files.weights, fmt::join(problems, "\n  ")));
  AdapterSpec spec = about.spec();
  for (const auto& [key, parts] : opened.parts) {
    const std::string name = module_name(key.first, key.second), full = "model." + name;
    spec.targets.push_back(full);
    if (!about.has_patterns()) continue;
    spec.rank_pattern.emplace_back(full, parts.rank);
    spec.alpha_pattern.emplace_back(full, about.alpha_of(prefix + name));
  }
  opened.about.layout = AdapterLayout(config, spec);
  return opened;
}

// A LoRA adapter without effect; DoRA's magnitudes act without B.
std::string note_of(const std::string& path, const AdapterLayout& layout, const float* flat) {
  if (layout.spec().dora) return "";
  for (const AdapterLayout::Entry& e : layout.entries()) {
    const float *b = flat + e.b_offset, *end = b + e.out * e.rank;
    if (e.scale != 0 && std::any_of(b, end, [](float v) { return v != 0; })) return "";
  }
  return fmt::format(
      "adapter {}: every B or its scale is zero, so it changes nothing; was it saved before its first step?", path);
}

// What differs, module by module: the scales within float rounding.
std::vector<std::string> differences(const AdapterLayout& wanted, const AdapterLayout& found) {
  std::vector<std::string> all;
  if (wanted.spec().dora != found.spec().dora)
    all.push_back(found.spec().dora ? "it is a DoRA adapter, the settings ask for LoRA"
                                    : "it is a LoRA adapter, the settings ask for DoRA");
  for (const AdapterLayout::Entry& w : wanted.entries()) {
    const AdapterLayout::Entry* f = found.find(w.layer, w.module);
    const std::string name = module_name(w.layer, w.module);
    if (f == nullptr) all.push_back(name + " is not in it");
    else if (f->rank != w.rank) all.push_back(fmt::format("{} has rank {}, needed {}", name, f->rank, w.rank));
    else if (std::abs(f->scale - w.scale) > 1e-6F * std::abs(w.scale))
      all.push_back(fmt::format("{} has scale {}, needed {}", name, f->scale, w.scale));
  }
  for (const AdapterLayout::Entry& f : found.entries()) {
    if (wanted.find(f.layer, f.module) == nullptr)
      all.push_back(fmt::format("{} is in it, but not adapted by the settings", module_name(f.layer, f.module)));
  }
  return all;
}

}  // namespace

int64_t interleaved_head_dim(const ModelConfig& config, int64_t layer, Module module) {
  const bool qk = module == Module::q_proj || module == Module::k_proj;
  return qk && gguf_permutes_qk(config.model_type) ? config.layers[static_cast<size_t>(layer)].head_dim : 0;
}

Adapter LoadedAdapter::view() {
  if (on_device) return {layout, device_flat, device_norms};
  const auto tensor = [](std::vector<float>& v) {
    if (v.empty()) return Tensor{};
    return Tensor{.data = v.data(), .dtype = DType::f32, .shape = {static_cast<int64_t>(v.size())}};
  };
  return {layout, tensor(flat), tensor(norms)};
}

void check_adapter_config(const std::string& folder) { read_config(find_files(folder)); }

LoadedAdapter load_adapter(const std::string& path, const ModelConfig& config) {
  OpenAdapter opened = open_adapter(path, config);
  opened.about.flat.assign(static_cast<size_t>(opened.about.layout.size()), 0.0F);
  opened.read_into(config, opened.about.flat.data());
  opened.about.note = note_of(path, opened.about.layout, opened.about.flat.data());
  return std::move(opened.about);
}

std::string load_adapter_into(const std::string& path, const ModelConfig& config, const AdapterLayout& layout,
                              float* flat) {
  const OpenAdapter opened = open_adapter(path, config);
  const std::vector<std::string> problems = differences(layout, opened.about.layout);
  check(problems.empty(), ErrorCode::bad_file,
        fmt::format("{}: its adapter is not the one that the settings ask for:\n  {}", path,
                    fmt::join(problems, "\n  ")));
  std::fill(flat, flat + layout.size(), 0.0F);
  opened.read_into(config, flat);
  return note_of(path, layout, flat);
}

}  // namespace sluice
