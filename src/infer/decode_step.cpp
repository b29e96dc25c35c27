#include "infer/decode_step.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/device.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention_append.h"
#include "ops/common/copy.h"
#include "ops/dora/dora.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/quant/projections.h"
#include "ops/quant/quant.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rows/rows.h"

namespace sluice {

namespace {

constexpr int64_t most_layers_of_graph = 8;

Weight as_weight(const Tensor& matrix) {
  return {.format = WeightFormat::f32,
          .rows = matrix.shape[0],
          .cols = matrix.shape[1],
          .data = static_cast<const std::byte*>(matrix.data)};
}

class DecodeStep {
 public:
  DecodeStep(Context& ctx, const Model& model, const Adapter& adapter, const std::vector<KvCache*>& caches)
      : ctx_(ctx), model_(model), adapter_(adapter), caches_(caches), B_(static_cast<int64_t>(caches.size())) {
    std::vector<int32_t> positions;
    for (const KvCache* cache : caches) positions.push_back(static_cast<int32_t>(cache->length()));
    tables_ = model.rope_tables(ctx, positions);
  }

  struct Output {
    const LoraLinear* linear;
    Tensor y;
  };
  bool is_plain(const LoraLinear& l) const { return l.bias.empty() && adapter_.lora(l.layer, l.module).empty(); }

  // y_i = [magnitude / norm *] (x W_i^T + scale * (x A_i^T) B_i^T) + bias, with a norm's weight of norm(x).
  void project(const std::vector<Output>& outputs, Tensor x, std::optional<Tensor> norm_weight = {}) {
    ArenaScope scope(ctx_.arena);
    Projections all{.x = x};
    if (norm_weight) all.norm = norm_of(*norm_weight);
    const bool adapted = std::any_of(outputs.begin(), outputs.end(), [&](const Output& o) {
      return !adapter_.lora(o.linear->layer, o.linear->module).empty();
    });
    if (all.norm) {
      const Tensor normed = scope.like(x);
      if (adapted) {  // which reads it too
        norm(x, *norm_weight, normed);
        all.x = normed;
        all.norm.reset();
      }
    }
    for (const Output& o : outputs) all.parts.push_back({&o.linear->weight, o.y});
    projections(ctx_, all);
    for (const Output& o : outputs) {
      const LoraLinear& l = *o.linear;
      add_adapter(adapter_.lora(l.layer, l.module), all.x, o.y);
      for (int64_t b = 0; b < B_ && !l.bias.empty(); ++b) {
        Tensor bias = l.bias;
        bias.shape = {1, l.bias.shape[0]};
        scale_into(ctx_, {.x = bias, .y = o.y.rows(b, 1), .write = Write::add});
      }
    }
  }

  // x += [norm](linear(y))
  void project_back(const LoraLinear& l, Tensor y, Tensor norm_weight, Tensor x) {
    ArenaScope scope(ctx_.arena);
    const Tensor out = scope.like(x);
    if (!model_.config.post_norms && is_plain(l)) {
      projections(ctx_, {.x = y, .parts = {{&l.weight, x}}, .write = Write::add});
      return;
    }
    project({{&l, out}}, y);
    if (model_.config.post_norms) add_norm(out, norm_weight, x);
    else scale_into(ctx_, {.x = out, .y = x, .write = Write::add});
  }

  void add_adapter(const Lora& lora, Tensor x, Tensor y) {
    if (lora.empty()) return;
    ArenaScope scope(ctx_.arena);
    const Weight a = as_weight(lora.a), b = as_weight(lora.b);
    Tensor xa = scope.tensor(DType::f32, {B_, lora.a.shape[0]}), delta = scope.like(y);
    weight_matvec(ctx_, {.weight = a, .x = x, .y = xa});
    weight_matvec(ctx_, {.weight = b, .x = xa, .y = delta});
    scale_into(ctx_, {.x = delta, .y = y, .scale = lora.scale, .write = Write::add});
    if (!lora.magnitude.empty()) apply_magnitude(ctx_, {.magnitude = lora.magnitude, .norm = lora.norm, .y = y});
  }

  // inputs: per-layer inputs of all layers [B, L * P], or empty.
  void layer(int64_t index, Tensor x, Tensor inputs) {
    const DecoderLayer& l = model_.layers[static_cast<size_t>(index)];
    attention(index, l, x);
    ArenaScope scope(ctx_.arena);
    Tensor g = scope.tensor(DType::f32, {B_, l.config.intermediate_size}), u = scope.like(g);
    if (is_plain(l.gate) && is_plain(l.up)) {
      projections(ctx_, {.x = x,
                         .norm = norm_of(l.mlp_norm),
                         .parts = {{&l.gate.weight, g}, {&l.up.weight, u}},
                         .gate = model_.config.activation});
    } else {
      project({{&l.gate, g}, {&l.up, u}}, x, l.mlp_norm);
      gated_forward(ctx_, {.activation = model_.config.activation, .a = g, .b = u, .y = g});
    }
    project_back(l.down, g, l.post_mlp_norm, x);
    if (!inputs.empty()) {
      const int64_t P = model_.config.per_layer_input_size;
      Tensor own = scope.tensor(DType::f32, {B_, P}), z = scope.like(own), p = scope.like(x);
      gather_columns(ctx_, {.x = inputs, .begin = index * P, .y = own});
      project({{&l.input_gate, z}}, x);
      gated_forward(ctx_, {.activation = model_.config.activation, .a = z, .b = own, .y = z});
      project({{&l.input_projection, p}}, z);
      add_norm(p, l.post_input_norm, x);
    }
    if (model_.config.layer_scalar) scale_into(ctx_, {.x = x, .y = x, .scale = l.scalar});
  }

  void norm(Tensor x, Tensor weight, Tensor y) {
    rmsnorm_forward(
        ctx_,
        {.x = x, .weight = weight, .y = y, .eps = model_.config.rms_norm_eps, .offset = model_.config.norm_offset});
  }

 private:
  Projections::Norm norm_of(Tensor weight) const {
    return {.weight = weight, .eps = model_.config.rms_norm_eps, .offset = model_.config.norm_offset};
  }

  // x += norm(y)
  void add_norm(Tensor y, Tensor weight, Tensor x) {
    rmsnorm_forward(ctx_, {.x = y,
                           .weight = weight,
                           .residual = x,
                           .y = x,
                           .eps = model_.config.rms_norm_eps,
                           .offset = model_.config.norm_offset});
  }

  void attention(int64_t index, const DecoderLayer& l, Tensor x) {
    ArenaScope scope(ctx_.arena);
    const LayerConfig& c = l.config;
    Tensor q = scope.tensor(DType::f32, {B_, c.num_heads * c.head_dim}), o = scope.like(q), k, v;
    std::vector<Output> outputs = {{&l.q, q}};
    std::vector<AttentionAppend::Row> rows;
    if (c.kv_donor < 0) {
      k = v = scope.tensor(DType::f32, {B_, c.num_kv_heads * c.head_dim});
      outputs.push_back({&l.k, k});
      if (!c.values_are_keys) outputs.push_back({&l.v, v = scope.like(k)});
      for (KvCache* cache : caches_) {
        const KvCache::Layer& kept = cache->layer(index);
        const int64_t row = kept.row_of(cache->length());
        rows.push_back({.k = kept.kv.k.rows(row, 1), .v = kept.kv.v.rows(row, 1)});
      }
    }
    project(outputs, x, l.input_norm);
    const AttentionShape shape{.num_heads = c.num_heads,
                               .num_kv_heads = c.num_kv_heads,
                               .head_dim = c.head_dim,
                               .scale = model_.config.attention_scale,
                               .window = c.window,
                               .softcap = model_.config.attention_softcap};
    attention_append(ctx_, {.shape = shape,
                            .rows = rows,
                            .q = q,
                            .k = k,
                            .v = v,
                            .table = tables_[static_cast<size_t>(c.rope)],
                            .norm_qk = model_.config.qk_norm,
                            .norm_v = model_.config.value_norm,
                            .q_weight = l.q_norm,
                            .k_weight = l.k_norm,
                            .eps = model_.config.rms_norm_eps,
                            .offset = model_.config.norm_offset});
    std::vector<AttentionDecode::Sequence> sequences;
    for (KvCache* cache : caches_) {
      const int64_t end = cache->length() + 1;
      const KvCache::Layer& kept = cache->layer(index);
      sequences.push_back({.k = kept.kv.k,
                           .v = kept.kv.v,
                           .begin = c.window > 0 ? std::max<int64_t>(0, end - c.window) : 0,
                           .end = end,
                           .ring = kept.ring});
    }
    attention_decode(ctx_, {.shape = shape, .sequences = sequences, .q = q, .o = o});
    project_back(l.o, o, l.post_attention_norm, x);
  }

  Context& ctx_;
  const Model& model_;
  const Adapter& adapter_;
  const std::vector<KvCache*>& caches_;
  int64_t B_;
  std::vector<Tensor> tables_;
};

}  // namespace

void decode_step(Context& ctx, const Model& model, const Adapter& adapter, const std::vector<int32_t>& tokens,
                 const std::vector<KvCache*>& caches, Tensor logits) {
  ArenaScope scope(ctx.arena);
  const auto B = static_cast<int64_t>(tokens.size());
  DecodeStep step(ctx, model, adapter, caches);
  Tensor ids = scope.tensor(DType::i32, {B}), x = scope.tensor(DType::f32, {B, model.config.hidden_size});
  copy_from_host(ctx, {.host = tokens.data(), .tensor = ids});
  model.embed(ctx, ids, x);
  Tensor u;
  if (model.config.per_layer_input_size > 0) {
    u = scope.tensor(DType::f32, {B, model.config.num_layers * model.config.per_layer_input_size});
    model.layer_inputs(ctx, ids, x, u);
  }
  // The first graphs are short, so that the device begins early; the later ones long, since each begins with a pause.
  for (int64_t begin = 0, end = 1; begin < model.config.num_layers;
       begin = std::exchange(end, end + std::min(end, most_layers_of_graph))) {
    GraphCapture graph(ctx, B);
    for (int64_t l = begin; l < std::min(end, model.config.num_layers); ++l) step.layer(l, x, u);
    graph.launch();
  }
  Tensor h = scope.like(x);
  step.norm(x, model.final_norm, h);
  head_logits(ctx, {.weight = model.head, .h = h, .softcap = model.config.final_softcap, .logits = logits});
  if (ctx.counting()) return;
  for (KvCache* cache : caches) cache->set_length(cache->length() + 1);
}

}  // namespace sluice
