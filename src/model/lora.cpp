#include "model/lora.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/rng.h"

namespace sluice {

std::string_view module_path(Module module) {
  switch (module) {
    case Module::q_proj: return "self_attn.q_proj";
    case Module::k_proj: return "self_attn.k_proj";
    case Module::v_proj: return "self_attn.v_proj";
    case Module::o_proj: return "self_attn.o_proj";
    case Module::gate_proj: return "mlp.gate_proj";
    case Module::up_proj: return "mlp.up_proj";
    case Module::down_proj: return "mlp.down_proj";
    case Module::per_layer_input_gate: return "per_layer_input_gate";
    case Module::per_layer_projection: return "per_layer_projection";
  }
  return "?";
}

std::string module_name(int64_t layer, Module module) {
  return fmt::format("layers.{}.{}", layer, module_path(module));
}

LinearShape linear_shape(const ModelConfig& config, int64_t layer, Module module) {
  const LayerConfig& l = config.layers[static_cast<size_t>(layer)];
  const int64_t C = config.hidden_size, q = l.num_heads * l.head_dim, kv = l.num_kv_heads * l.head_dim;
  const int64_t F = l.intermediate_size, P = config.per_layer_input_size;
  switch (module) {
    case Module::q_proj: return {C, q};
    case Module::k_proj: return l.kv_donor < 0 ? LinearShape{C, kv} : LinearShape{};
    case Module::v_proj: return l.kv_donor < 0 && !l.values_are_keys ? LinearShape{C, kv} : LinearShape{};
    case Module::o_proj: return {q, C};
    case Module::gate_proj:
    case Module::up_proj: return {C, F};
    case Module::down_proj: return {F, C};
    case Module::per_layer_input_gate: return P > 0 ? LinearShape{C, P} : LinearShape{};
    case Module::per_layer_projection: return P > 0 ? LinearShape{P, C} : LinearShape{};
  }
  return {};
}

// PEFT: re.match(rf"(.*\.)?({key})$", path) with literal keys.
bool names_module(const std::string& key, const std::string& path) {
  if (path == key) return true;
  return path.size() > key.size() && path.ends_with(key) && path[path.size() - key.size() - 1] == '.';
}

std::string decoder_path(const std::string& key) {
  for (std::string_view prefix : {"model.language_model.", "language_model.model."}) {
    if (key.starts_with(prefix)) return "model." + key.substr(prefix.size());
  }
  return key;
}

namespace {

template <class U>
std::vector<std::pair<std::string, U>> with_decoder_paths(std::vector<std::pair<std::string, U>> patterns) {
  for (auto& [key, value] : patterns) key = decoder_path(key);
  return patterns;
}

// `names` are those of the adapted modules.
template <class U>
void check_patterns(const char* what, const std::vector<std::pair<std::string, U>>& patterns,
                    const std::vector<std::string>& names) {
  for (const auto& [key, value] : patterns) {
    const bool used =
        std::any_of(names.begin(), names.end(), [&, &key = key](const auto& name) { return names_module(key, name); });
    check(
        used, ErrorCode::bad_config,
        fmt::format("lora_parameters.{}: '{}' matches no adapted module; give a path or its end, such as down_proj or "
                    "layers.3.self_attn.q_proj",
                    what, key));
    check(std::isfinite(static_cast<double>(value)), ErrorCode::bad_config,
          fmt::format("lora_parameters.{}: '{}' is {}, needed a finite number", what, key, value));
  }
}

template <class T, class U>
T first_match(const std::vector<std::pair<std::string, U>>& patterns, const std::string& name, T otherwise) {
  for (const auto& [key, value] : patterns) {
    if (names_module(key, name)) return static_cast<T>(value);
  }
  return otherwise;
}

std::string known_targets() {
  std::string names;
  for (int m = 0; m < num_modules; ++m)
    names += fmt::format("{}{}", m > 0 ? ", " : "", module_path(static_cast<Module>(m)));
  return names;
}

// A module starts at a multiple of 64 elements, so that its rows are aligned as arena tensors are.
int64_t padded(int64_t elements) { return (elements + 63) / 64 * 64; }

}  // namespace

AdapterLayout::AdapterLayout(const ModelConfig& config, const AdapterSpec& spec) : spec_(spec) {
  std::vector<bool> used(spec.targets.size(), false);
  const auto ranks = with_decoder_paths(spec.rank_pattern);
  const auto alphas = with_decoder_paths(spec.alpha_pattern);
  std::vector<std::string> names;
  index_.resize(static_cast<size_t>(config.num_layers));
  for (auto& row : index_) row.fill(-1);
  const int64_t first = spec.last_layers < 0 ? 0 : std::max<int64_t>(0, config.num_layers - spec.last_layers);
  for (int64_t layer = first; layer < config.num_layers; ++layer) {
    for (int m = 0; m < num_modules; ++m) {
      const auto module = static_cast<Module>(m);
      const auto [in, out] = linear_shape(config, layer, module);
      if (out == 0) continue;
      const std::string name = "model." + module_name(layer, module);
      bool wanted = spec.targets.empty();
      for (size_t t = 0; t < spec.targets.size(); ++t) {
        if (!names_module(decoder_path(spec.targets[t]), name)) continue;
        wanted = true;
        used[t] = true;
      }
      if (!wanted) continue;
      Entry entry{.layer = layer, .module = module, .in = in, .out = out};
      entry.rank = first_match(ranks, name, spec.rank);
      entry.alpha = first_match(alphas, name, spec.alpha);
      check(entry.rank >= 1, ErrorCode::bad_config, fmt::format("rank of {} is {}; give at least 1", name, entry.rank));
      const auto rank = static_cast<float>(entry.rank);
      entry.scale = entry.alpha / (spec.rank_stabilised ? std::sqrt(rank) : rank);
      entry.a_offset = size_;
      size_ += padded(entry.rank * in);
      index_[static_cast<size_t>(layer)][static_cast<size_t>(m)] = static_cast<int32_t>(entries_.size());
      entries_.push_back(entry);
      names.push_back(name);
    }
  }
  b_begin_ = size_;
  for (Entry& entry : entries_) {
    entry.b_offset = size_;
    size_ += padded(entry.out * entry.rank);
  }
  magnitude_begin_ = size_;
  for (Entry& entry : entries_) {
    if (!spec.dora) break;
    entry.magnitude_offset = size_;
    entry.norm_offset = size_ - magnitude_begin_;
    size_ += padded(entry.out);
  }
  for (size_t t = 0; t < used.size(); ++t) {
    check(used[t], ErrorCode::bad_config,
          fmt::format("lora_parameters.keys: '{}' matches no linear layer of this {} model; known: {}", spec.targets[t],
                      config.model_type, known_targets()));
  }
  check(!entries_.empty(), ErrorCode::bad_config, "no layer is adapted; num_layers must be -1 (all) or at least 1");
  check_patterns("rank_pattern", ranks, names);
  check_patterns("alpha_pattern", alphas, names);
  find_selection(config);
}

void AdapterLayout::find_selection(const ModelConfig& config) {
  std::array<bool, num_modules> modules{};
  size_t layers = 0;
  for (const Entry& e : entries_) modules[static_cast<size_t>(e.module)] = true;
  for (size_t layer = 0; layer < index_.size(); ++layer) {
    const auto& row = index_[layer];
    if (std::all_of(row.begin(), row.end(), [](int32_t i) { return i < 0; })) continue;
    ++layers;
    for (size_t m = 0; m < modules.size(); ++m) {
      const bool exists = linear_shape(config, static_cast<int64_t>(layer), static_cast<Module>(m)).out > 0;
      if (modules[m] && exists && row[m] < 0) selection_ = Selection::irregular;
    }
  }
  if (selection_ == Selection::all_layers && layers < index_.size()) selection_ = Selection::some_layers;
}

const AdapterLayout::Entry* AdapterLayout::find(int64_t layer, Module module) const {
  const int32_t i = index_[static_cast<size_t>(layer)][static_cast<size_t>(module)];
  return i < 0 ? nullptr : &entries_[static_cast<size_t>(i)];
}

int64_t AdapterLayout::num_parameters() const {
  int64_t count = 0;
  for (const Entry& entry : entries_) count += entry.rank * (entry.in + entry.out) + (spec_.dora ? entry.out : 0);
  return count;
}

Adapter::Adapter(const AdapterLayout& layout, Tensor flat, Tensor norms)
    : layout_(&layout), flat_(flat), norms_(norms) {
  SLUICE_ASSERT(flat.shape == Shape{layout.size()} && flat.dtype == DType::f32);
  SLUICE_ASSERT(norms.empty() || (norms.shape == Shape{layout.num_norms()} && norms.dtype == DType::f32));
}

Lora Adapter::lora(int64_t layer, Module module) const {
  if (empty()) return {};
  const AdapterLayout::Entry* entry = layout_->find(layer, module);
  if (entry == nullptr) return {};
  const auto view = [](const Tensor& in, int64_t offset, Shape shape) {
    return Tensor{.data = in.as<float>() + offset, .dtype = DType::f32, .shape = shape};
  };
  Lora lora{.a = view(flat_, entry->a_offset, {entry->rank, entry->in}),
            .b = view(flat_, entry->b_offset, {entry->out, entry->rank}),
            .scale = entry->scale};
  if (layout_->spec().dora) lora.magnitude = view(flat_, entry->magnitude_offset, {entry->out});
  if (!norms_.empty()) lora.norm = view(norms_, entry->norm_offset, {entry->out});
  return lora;
}

void initialise_adapter(const AdapterLayout& layout, uint64_t seed, float* flat) {
  std::fill(flat, flat + layout.size(), 0.0F);
  for (const AdapterLayout::Entry& entry : layout.entries()) {
    const uint64_t stream =
        stream_of("lora_a", static_cast<uint64_t>(entry.layer), static_cast<uint64_t>(entry.module));
    const float bound = 1.0F / std::sqrt(static_cast<float>(entry.in));
    for (int64_t i = 0; i < entry.rank * entry.in; ++i) {
      flat[entry.a_offset + i] = (2 * random_uniform(seed, stream, static_cast<uint64_t>(i)) - 1) * bound;
    }
  }
}

void LowProducts::take(Arena& arena, const Adapter& adapter, int64_t layer, std::initializer_list<Module> modules,
                       int64_t num_tokens, DType dtype) {
  for (Module module : modules) {
    const Lora lora = adapter.lora(layer, module);
    if (!lora.empty()) of[static_cast<size_t>(module)] = arena.tensor(dtype, {num_tokens, xa_columns(lora.a.shape[0])});
  }
}

LowProducts LowProducts::rows(int64_t begin, int64_t count) const {
  LowProducts part;
  for (size_t m = 0; m < of.size(); ++m) {
    if (!of[m].empty()) part.of[m] = of[m].rows(begin, count);
  }
  return part;
}

Dropout LoraLinear::dropout(const DropoutKey& key, int64_t row_begin) const {
  if (key.p == 0) return {};
  const uint64_t when = stream_of("dropout", key.step, key.microbatch);
  return {.p = key.p,
          .seed = key.seed,
          .stream = stream_of(module_path(module).data(), when, static_cast<uint64_t>(layer)),
          .row_begin = row_begin};
}

void LoraLinear::forward(Context& ctx, const Adapter& adapter, const DropoutKey& key, int64_t row_begin, Tensor x,
                         Tensor residual, Tensor y, const LowProducts& low) const {
  const Lora lora = adapter.lora(layer, module);
  linear_forward(ctx, {.weight = weight,
                       .bias = bias,
                       .lora_a = lora.a,
                       .lora_b = lora.b,
                       .magnitude = lora.magnitude,
                       .norm = lora.norm,
                       .scale = lora.scale,
                       .dropout = dropout(key, row_begin),
                       .x = x,
                       .residual = residual,
                       .y = y,
                       .xa = low.of[static_cast<size_t>(module)]});
}

void LoraLinear::backward(Context& ctx, const Adapter& adapter, const DropoutKey& key, int64_t row_begin, Tensor x,
                          Tensor dy, Tensor dx, Write write, const LowProducts& low, const Adapter& grads) const {
  const Lora lora = adapter.lora(layer, module), dlora = grads.lora(layer, module);
  linear_backward(ctx, {.weight = weight,
                        .lora_a = lora.a,
                        .lora_b = lora.b,
                        .magnitude = lora.magnitude,
                        .norm = lora.norm,
                        .scale = lora.scale,
                        .dropout = dropout(key, row_begin),
                        .x = x,
                        .xa = low.of[static_cast<size_t>(module)],
                        .dy = dy,
                        .dx = dx,
                        .write = write,
                        .dlora_a = dlora.a,
                        .dlora_b = dlora.b,
                        .dmagnitude = dlora.magnitude});
}

}  // namespace sluice
