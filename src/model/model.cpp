#include "model/model.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/device.h"
#include "io/row_access.h"
#include "model/gguf_names.h"
#include "model/registry.h"
#include "ops/common/copy.h"
#include "ops/quant/quant.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"

namespace sluice {

namespace {

class Loader {
 public:
  Loader(Model& model, const WeightSource& source, const ModelRecipe& recipe,
         std::vector<std::unique_ptr<std::vector<float>>>& vectors)
      : model_(model), source_(source), recipe_(recipe), vectors_(vectors), gguf_(source.kind() == SourceKind::gguf) {}

  void load() {
    ModelConfig& m = model_.config;
    model_.embedding =
        weight(gguf_ ? "token_embd.weight" : recipe_.prefix + "embed_tokens.weight", m.vocab_size, m.hidden_size);
    model_.head = m.tied_head ? model_.embedding
                              : weight(gguf_ ? "output.weight" : "lm_head.weight", m.vocab_size, m.hidden_size);
    if (!m.tied_head) read_by_row(model_.embedding);
    model_.final_norm = vector(gguf_ ? "output_norm.weight" : recipe_.prefix + "norm.weight", m.hidden_size);
    for (int64_t l = 0; l < m.num_layers; ++l) model_.layers.push_back(layer(l));
    const int64_t P = m.per_layer_input_size;
    if (P == 0) return;
    const Weight table =
        source_.need(gguf_ ? "per_layer_token_embd.weight" : recipe_.prefix + "embed_tokens_per_layer.weight");
    model_.input_table =
        weight(gguf_ ? "per_layer_token_embd.weight" : recipe_.prefix + "embed_tokens_per_layer.weight", table.rows,
               m.num_layers * P);
    read_by_row(model_.input_table);
    model_.input_projection =
        weight(gguf_ ? "per_layer_model_proj.weight" : recipe_.prefix + "per_layer_model_projection.weight",
               m.num_layers * P, m.hidden_size);
    model_.input_norm =
        vector(gguf_ ? "per_layer_proj_norm.weight" : recipe_.prefix + "per_layer_projection_norm.weight", P);
  }

 private:
  std::string name(int64_t layer, std::string_view path, std::string_view suffix) const {
    if (!gguf_) return fmt::format("{}layers.{}.{}.{}", recipe_.prefix, layer, path, suffix);
    for (const auto& [hf, gguf] : gguf_names) {
      if (hf == path) return fmt::format("blk.{}.{}.{}", layer, gguf, suffix);
    }
    // The same Hugging Face name is the norm before the MLP in Llama and one after the attention in Gemma.
    if (path == "pre_feedforward_layernorm") return fmt::format("blk.{}.ffn_norm.{}", layer, suffix);
    SLUICE_ASSERT(path == "post_attention_layernorm");
    return fmt::format("blk.{}.{}.{}", layer, recipe_.config.post_norms ? "post_attention_norm" : "ffn_norm", suffix);
  }

  Weight weight(const std::string& tensor, int64_t rows, int64_t cols) const {
    const std::optional<Weight> found = source_.find(tensor);
    check(found.has_value(), ErrorCode::bad_file,
          fmt::format("{}: tensor {} is missing; the {} architecture needs it", source_.path(), tensor,
                      recipe_.config.model_type));
    check(found->rows == rows && found->cols == cols, ErrorCode::bad_file,
          fmt::format("{}: tensor {} is [{}, {}], its config needs [{}, {}]; is the config from another model?",
                      source_.path(), tensor, found->rows, found->cols, rows, cols));
    return *found;
  }

  Tensor vector(const std::string& tensor, int64_t count) {
    auto values = std::make_unique<std::vector<float>>(source_.read_vector(tensor));
    check(static_cast<int64_t>(values->size()) == count, ErrorCode::bad_file,
          fmt::format("{}: tensor {} has {} entries, its config needs {}", source_.path(), tensor, values->size(),
                      count));
    Tensor view{.data = values->data(), .dtype = DType::f32, .shape = {count}};
    vectors_.push_back(std::move(values));
    return view;
  }

  LoraLinear linear(int64_t layer, Module module, bool bias) {
    const auto [in, out] = linear_shape(model_.config, layer, module);
    LoraLinear linear{.layer = layer, .module = module};
    if (out == 0) return linear;
    linear.weight = weight(name(layer, module_path(module), "weight"), out, in);
    if (recipe_.permuted_qk && (module == Module::q_proj || module == Module::k_proj)) {
      linear.weight.interleaved_head_dim = model_.config.layers[static_cast<size_t>(layer)].head_dim;
    }
    if (bias) linear.bias = vector(name(layer, module_path(module), "bias"), out);
    return linear;
  }

  DecoderLayer layer(int64_t l) {
    const ModelConfig& m = model_.config;
    DecoderLayer layer{.model = &m, .config = m.layers[static_cast<size_t>(l)]};
    layer.input_norm = vector(name(l, "input_layernorm", "weight"), m.hidden_size);
    layer.mlp_norm = vector(name(l, m.post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", "weight"),
                            m.hidden_size);
    if (m.post_norms) {
      layer.post_attention_norm = vector(name(l, "post_attention_layernorm", "weight"), m.hidden_size);
      layer.post_mlp_norm = vector(name(l, "post_feedforward_layernorm", "weight"), m.hidden_size);
    }
    if (m.qk_norm) {
      layer.q_norm = vector(name(l, "self_attn.q_norm", "weight"), layer.config.head_dim);
      if (layer.config.kv_donor < 0)
        layer.k_norm = vector(name(l, "self_attn.k_norm", "weight"), layer.config.head_dim);
    }
    if (m.layer_scalar) {
      layer.scalar = source_
                         .read_vector(gguf_ ? fmt::format("blk.{}.layer_output_scale.weight", l)
                                            : fmt::format("{}layers.{}.layer_scalar", recipe_.prefix, l))
                         .at(0);
    }
    if (m.per_layer_input_size > 0) {
      layer.post_input_norm = vector(name(l, "post_per_layer_input_norm", "weight"), m.hidden_size);
      layer.input_gate = linear(l, Module::per_layer_input_gate, false);
      layer.input_projection = linear(l, Module::per_layer_projection, false);
    }
    layer.q = linear(l, Module::q_proj, recipe_.qkv_bias);
    layer.k = linear(l, Module::k_proj, recipe_.qkv_bias);
    layer.v = linear(l, Module::v_proj, recipe_.qkv_bias);
    layer.o = linear(l, Module::o_proj, false);
    layer.gate = linear(l, Module::gate_proj, false);
    layer.up = linear(l, Module::up_proj, false);
    layer.down = linear(l, Module::down_proj, false);
    return layer;
  }

  Model& model_;
  const WeightSource& source_;
  const ModelRecipe& recipe_;
  std::vector<std::unique_ptr<std::vector<float>>>& vectors_;
  bool gguf_;
};

}  // namespace

namespace {

constexpr int64_t staging_bytes = int64_t{8} << 20;

template <class Model, class Visit>
void for_each_linear(Model& model, Visit visit) {
  for (auto& l : model.layers) {
    for (auto* linear : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.input_gate, &l.input_projection})
      visit(*linear);
  }
}

int64_t group_bytes(const Weight& w) {  // of the scales, and of the biases
  return w.format == WeightFormat::affine ? w.rows * (w.cols / w.group_size) * size_of(w.scale_dtype) : 0;
}

}  // namespace

void Model::embed(Context& ctx, Tensor ids, Tensor x) const { gather(ctx, embedding, ids, config.embedding_scale, x); }

bool Model::on_device(const Weight& weight) const {
  if (device.type == DeviceType::cpu) return true;
  return &weight == &embedding ? config.tied_head : &weight != &input_table;
}

void Model::gather(Context& ctx, const Weight& table, Tensor ids, float scale, Tensor y) const {
  if (on_device(table)) {
    gather_weight_rows(ctx, {.table = table, .ids = ids, .scale = scale, .y = y});
    return;
  }
  if (ctx.counting()) return;
  if (table.empty()) {  // upload_random
    device_random(device, y.data, y.dtype, y.numel(), 1, scale);
    return;
  }
  std::vector<int32_t> host(static_cast<size_t>(ids.numel()));
  copy_to_host(ctx, {.tensor = ids, .host = host.data()});
  Context cpu{.arena = *staging_, .pool = ctx.pool};
  const int64_t N = ids.numel(), at_once = std::max<int64_t>(1, staging_bytes / (y.shape[1] * size_of(y.dtype)));
  for (int64_t begin = 0; begin < N; begin += at_once) {
    ArenaScope scope(*staging_);
    const int64_t count = std::min(at_once, N - begin);
    Tensor rows = scope.tensor(y.dtype, {count, y.shape[1]});
    const Tensor some{.data = host.data() + begin, .dtype = DType::i32, .shape = {count}};
    gather_weight_rows(cpu, {.table = table, .ids = some, .scale = scale, .y = rows});
    copy_from_host(ctx, {.host = rows.data, .tensor = y.rows(begin, count)});
  }
}

// Takes room for everything that goes to the device, in one order, and hands each piece to
// `place_bytes(const std::byte* from, std::byte* to, int64_t bytes, what)`, which may be asked on a counting arena.
template <class Place>
void Model::place(Arena& arena, Place place_bytes) {
  const bool moves = !arena.is_counting();
  const auto piece = [&](const std::byte*& data, int64_t bytes, DType dtype) {
    if (bytes == 0) return;
    std::byte* to = arena.bytes(bytes);
    if (!moves) return;
    place_bytes(data, to, bytes, dtype);
    data = to;
  };
  const auto weight = [&](Weight& w) {
    if (w.rows == 0) return;
    piece(w.data, w.rows * w.row_bytes(), w.format == WeightFormat::bf16 ? DType::bf16 : DType::f32);
    piece(w.scales, group_bytes(w), w.scale_dtype);
    piece(w.biases, group_bytes(w), w.scale_dtype);
  };
  const auto vector = [&](Tensor& t) {
    if (t.empty()) return;
    const auto* from = static_cast<const std::byte*>(t.data);
    piece(from, t.size_bytes(), DType::u8);
    if (moves) t.data = const_cast<std::byte*>(from);
  };
  weight(head);
  if (moves && config.tied_head) embedding = head;
  if (input_projection.rows > 0) weight(input_projection);
  for (Tensor* t : {&final_norm, &input_norm}) vector(*t);
  for (DecoderLayer& l : layers) {
    for (Tensor* t : {&l.input_norm, &l.mlp_norm, &l.post_attention_norm, &l.post_mlp_norm, &l.post_input_norm,
                      &l.q_norm, &l.k_norm})
      vector(*t);
  }
  for_each_linear(*this, [&](LoraLinear& linear) {
    weight(linear.weight);
    vector(linear.bias);
  });
}

int64_t Model::device_bytes() const {
  if (device.type == DeviceType::cpu) return 0;
  Arena arena = Arena::counting(device);
  const_cast<Model*>(this)->place(
      arena, [](const std::byte*, std::byte*, int64_t, DType) {});  // a counting arena moves nothing
  return arena.peak();
}

// As place, with a context on the device before the piece.
template <class Place>
void Model::move_to_device(Place place_bytes) {
  device_memory_ = Arena::allocate(device, device_bytes());
  staging_ = Arena::pinned(staging_bytes + (1 << 20));
  ThreadPool pool(1);
  Context ctx{.arena = *device_memory_, .pool = pool, .device = device};
  place(*device_memory_, [&](const std::byte* from, std::byte* to, int64_t bytes, DType dtype) {
    place_bytes(ctx, from, to, bytes, dtype);
  });
}

void Model::upload() {
  if (device.type == DeviceType::cpu || device_memory_) return;
  move_to_device([&](Context& ctx, const std::byte* from, std::byte* to, int64_t bytes, DType) {
    check(from != nullptr, ErrorCode::bad_file,
          source->path() + ": the file is a header without weights; download it whole");
    copy_from_host(ctx, {.host = from, .tensor = {.data = to, .dtype = DType::u8, .shape = {bytes}}});
  });
}

void Model::upload_random(uint64_t seed) {
  SLUICE_ASSERT(device.type == DeviceType::cuda && !device_memory_);
  move_to_device([&](Context& ctx, const std::byte*, std::byte* to, int64_t bytes, DType dtype) {
    if (dtype == DType::u8) {  // norms, biases
      const std::vector<float> ones(static_cast<size_t>(bytes) / sizeof(float), 1.0F);
      copy_from_host(ctx, {.host = ones.data(), .tensor = {.data = to, .dtype = DType::u8, .shape = {bytes}}});
    } else {
      device_random(device, to, dtype, bytes / size_of(dtype), seed++, 0.02F);
    }
  });
}

void Model::layer_inputs(Context& ctx, Tensor ids, Tensor e, Tensor u) const {
  // tok = sqrt(P) table[id], ctx = norm(W e / sqrt(C)) by layer, u = (tok + ctx) / sqrt(2): docs/math/gemma4.md
  ArenaScope scope(ctx.arena);
  const float P = static_cast<float>(config.per_layer_input_size), C = static_cast<float>(config.hidden_size);
  Tensor projected = scope.like(u);
  linear_forward(ctx, {.weight = input_projection, .x = e, .y = projected});
  scale_into(ctx, {.x = projected, .y = projected, .scale = 1 / std::sqrt(C)});
  gather(ctx, input_table, ids, std::sqrt(P), u);
  rmsnorm_forward(ctx, {.x = projected,
                        .weight = input_norm,
                        .residual = u,
                        .y = u,
                        .groups = config.num_layers,
                        .eps = config.rms_norm_eps});
  scale_into(ctx, {.x = u, .y = u, .scale = 1 / std::sqrt(2.0F)});
}

std::vector<Tensor> Model::rope_tables(Context& ctx, const std::vector<int32_t>& positions) const {
  const auto N = static_cast<int64_t>(positions.size());
  std::vector<Tensor> tables;
  for (const RopeConfig& rope : config.ropes) {
    tables.push_back(ctx.arena.tensor(DType::f32, {N, static_cast<int64_t>(rope.frequencies.size()) * 2}));
  }
  ArenaScope scope(ctx.arena);
  Tensor on_device = scope.tensor(DType::i32, {N});
  copy_from_host(ctx, {.host = positions.data(), .tensor = on_device});
  for (size_t i = 0; i < tables.size(); ++i) {
    rope_table(ctx, {.frequencies = config.ropes[i].frequencies.data(),
                     .factor = config.ropes[i].factor,
                     .positions = on_device,
                     .table = tables[i]});
  }
  return tables;
}

const LoraLinear& linear_of(const Model& model, int64_t layer, Module module) {
  const DecoderLayer& l = model.layers[static_cast<size_t>(layer)];
  switch (module) {
    case Module::q_proj: return l.q;
    case Module::k_proj: return l.k;
    case Module::v_proj: return l.v;
    case Module::o_proj: return l.o;
    case Module::gate_proj: return l.gate;
    case Module::up_proj: return l.up;
    case Module::down_proj: return l.down;
    case Module::per_layer_input_gate: return l.input_gate;
    case Module::per_layer_projection: break;
  }
  return l.input_projection;
}

int64_t Model::num_weights() const {
  int64_t count = 0;
  for (const DecoderLayer& l : layers) {
    for (const LoraLinear* linear :
         {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.input_gate, &l.input_projection}) {
      count += linear->weight.rows * linear->weight.cols;
    }
  }
  return count;
}

int64_t Model::weight_bytes() const {
  int64_t bytes = embedding.size_bytes() + (config.tied_head ? 0 : head.size_bytes());
  if (config.per_layer_input_size > 0) bytes += input_table.size_bytes() + input_projection.size_bytes();
  for (const DecoderLayer& l : layers) {
    for (const LoraLinear* linear :
         {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.input_gate, &l.input_projection}) {
      if (linear->weight.rows > 0) bytes += linear->weight.size_bytes();
    }
  }
  return bytes;
}

std::unique_ptr<Model> load_model(std::unique_ptr<WeightSource> source) {
  const ModelRecipe recipe = read_recipe(*source);
  auto model = std::make_unique<Model>();
  model->config = recipe.config;
  model->prefix = recipe.prefix;
  model->source = std::move(source);
  Loader(*model, *model->source, recipe, model->vectors_).load();
  return model;
}

std::unique_ptr<Model> load_model(const std::string& path) { return load_model(open_model(path)); }

}  // namespace sluice
