// Adapters: which modules they sit on, their parameters as one flat buffer, and the adapted linear layer.
//
//   AdapterLayout layout(config, spec);                       // modules, ranks, offsets
//   Adapter adapter(layout, arena.tensor(f32, {layout.size()}));
//   adapter.lora(3, Module::q_proj).a                          // [R, in], a view
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "ops/linear/linear.h"

namespace sluice {

// Linear layers inside a decoder layer that can carry an adapter, in the order of their names' use.
enum class Module : uint8_t {
  q_proj,
  k_proj,
  v_proj,
  o_proj,
  gate_proj,
  up_proj,
  down_proj,
  per_layer_input_gate,
  per_layer_projection
};
constexpr int num_modules = 9;

// Path inside a layer as Hugging Face names it: "self_attn.q_proj", "mlp.gate_proj", "per_layer_input_gate".
std::string_view module_path(Module module);
// "layers.3.self_attn.q_proj"
std::string module_name(int64_t layer, Module module);

// Whether a target or a pattern's key names a module, as PEFT matches literal keys: the path itself or its end after a dot.
bool names_module(const std::string& key, const std::string& path);

// A path as it is here, where a checkpoint that has more than text calls it otherwise: "model.language_model.layers.3…" is "model.layers.3…".
std::string decoder_path(const std::string& key);

struct LinearShape {
  int64_t in = 0, out = 0;  // 0: this layer has no such module
};
LinearShape linear_shape(const ModelConfig& config, int64_t layer, Module module);

struct Lora {
  Tensor a;                // [R, in] f32    empty: not adapted
  Tensor b;                // [out, R] f32
  Tensor magnitude, norm;  // [out] f32    DoRA; norm is empty in an adapter that holds gradients
  float scale = 0;
  bool empty() const { return a.empty(); }
};

// What a user asks for.
struct AdapterSpec {
  int64_t rank = 8;
  float alpha = 16;
  bool dora = false;             // weight-decomposed: Liu et al. 2024, arXiv:2402.09353
  bool rank_stabilised = false;  // scale = alpha / sqrt(rank): Kalajdzievski 2023, arXiv:2312.03732
  float dropout = 0;
  // Patterns as PEFT matches them: a module is adapted if its path equals a target or ends with "." + target. A whole path begins with "model.",
  // or as the checkpoint has it. Empty: every linear layer inside the blocks.
  std::vector<std::string> targets;
  int64_t last_layers = -1;  // only the last n layers; -1: all
  // PEFT's rank_pattern and alpha_pattern: the first match in this order wins.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
};

class AdapterLayout {
 public:
  struct Entry {
    int64_t layer = 0;
    Module module{};
    int64_t in = 0, out = 0, rank = 0;
    float alpha = 0, scale = 0;
    // In elements of the flat buffer: every A, every B, every magnitude. norm_offset is in that of the norms.
    int64_t a_offset = 0, b_offset = 0, magnitude_offset = 0, norm_offset = 0;
  };

  // How the adapted modules can be told: the same kinds in every layer, the same in some layers, or each by its name.
  enum class Selection : uint8_t { all_layers, some_layers, irregular };

  AdapterLayout() = default;
  // Throws Error(bad_config) naming a target or pattern that matches nothing, or a rank < 1.
  AdapterLayout(const ModelConfig& config, const AdapterSpec& spec);

  const AdapterSpec& spec() const { return spec_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* find(int64_t layer, Module module) const;
  Selection selection() const { return selection_; }
  int64_t size() const { return size_; }        // elements of the flat buffer, padded entries included
  int64_t b_begin() const { return b_begin_; }  // where the Bs begin
  int64_t magnitude_begin() const { return magnitude_begin_; }
  int64_t num_norms() const { return size_ - magnitude_begin_; }  // 0 without DoRA
  int64_t num_parameters() const;                                 // trained numbers

 private:
  void find_selection(const ModelConfig& config);

  AdapterSpec spec_;
  Selection selection_ = Selection::all_layers;
  std::vector<Entry> entries_;
  std::vector<std::array<int32_t, num_modules>> index_;  // by layer; -1: none
  int64_t b_begin_ = 0, magnitude_begin_ = 0, size_ = 0;
};

// Views into one flat f32 buffer: parameters, gradients and moments all have this layout. What DoRA derives from the parameters, the norms of
// the adapted weights' rows, lies in a buffer of its own: model/dora.h fills it, anew whenever A or B change.
class Adapter {
 public:
  Adapter() = default;
  // norms: [layout.num_norms()] f32, in an adapter that a DoRA layer is run with.
  Adapter(const AdapterLayout& layout, Tensor flat, Tensor norms = {});

  bool empty() const { return flat_.empty(); }
  const AdapterLayout& layout() const { return *layout_; }
  Tensor flat() const { return flat_; }
  Tensor norms() const { return norms_; }
  Lora lora(int64_t layer, Module module) const;  // empty when not adapted

 private:
  const AdapterLayout* layout_ = nullptr;
  Tensor flat_, norms_;
};

// A: Kaiming uniform with a = sqrt(5), that is U(-1/sqrt(in), 1/sqrt(in)); B = 0. Element i of a module is a function of (seed, module, i).
// Magnitudes are 0: model/dora.h starts them. `flat` is host memory of layout.size() floats.
void initialise_adapter(const AdapterLayout& layout, uint64_t seed, float* flat);

// Random numbers of one forward/backward: dropout masks depend on these and on nothing else.
struct DropoutKey {
  float p = 0;
  uint64_t seed = 0, step = 0, microbatch = 0;
};

// x A^T of a layer's adapted modules (ops/linear/linear.h, xa): a forward leaves its own here and its backward reads it instead of x. What is
// empty is formed again, to the same bits.
struct LowProducts {
  std::array<Tensor, num_modules> of;  // [N, xa_columns(R)], by module

  // Room for those of `modules` that are adapted.
  void take(Arena& arena, const Adapter& adapter, int64_t layer, std::initializer_list<Module> modules,
            int64_t num_tokens, DType dtype);
  LowProducts rows(int64_t begin, int64_t count) const;
};

// A frozen linear layer with a place for an adapter.
struct LoraLinear {
  Weight weight;  // [out, in]; empty when the layer has no such module
  Tensor bias;    // [out] f32, may be empty
  int64_t layer = 0;
  Module module{};

  Dropout dropout(const DropoutKey& key, int64_t row_begin) const;
  void forward(Context& ctx, const Adapter& adapter, const DropoutKey& key, int64_t row_begin, Tensor x,
               Tensor residual, Tensor y, const LowProducts& low) const;
  // Gradients are added into `grads`, which has the adapter's layout. An empty dx is not formed.
  void backward(Context& ctx, const Adapter& adapter, const DropoutKey& key, int64_t row_begin, Tensor x, Tensor dy,
                Tensor dx, Write write, const LowProducts& low, const Adapter& grads) const;
};

}  // namespace sluice
