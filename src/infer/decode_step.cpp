#include "infer/decode_step.h"

#include "core/device.h"
#include "ops/activation/activation.h"
#include "ops/common/copy.h"
#include "ops/dora/dora.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/quant/quant.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"

namespace sluice {

namespace {

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

  // y = [magnitude / norm *] (x W^T + scale * (x A^T) B^T) + bias
  void linear(const LoraLinear& l, Tensor x, Tensor y) {
    weight_matvec(ctx_, {.weight = l.weight, .x = x, .y = y});
    add_adapter(adapter_.lora(l.layer, l.module), x, y);
    for (int64_t b = 0; b < B_ && !l.bias.empty(); ++b) {
      Tensor bias = l.bias;
      bias.shape = {1, l.bias.shape[0]};
      scale_into(ctx_, {.x = bias, .y = y.rows(b, 1), .write = Write::add});
    }
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
    const int64_t F = l.config.intermediate_size;
    Tensor f = scope.like(x), g = scope.tensor(DType::f32, {B_, F}), u = scope.like(g), m = scope.like(x);
    norm(x, l.mlp_norm, f);
    linear(l.gate, f, g);
    linear(l.up, f, u);
    gated_forward(ctx_, {.activation = model_.config.activation, .a = g, .b = u, .y = g});
    linear(l.down, g, m);
    add_back(m, l.post_mlp_norm, x);
    if (!inputs.empty()) {
      const int64_t P = model_.config.per_layer_input_size;
      Tensor own = scope.tensor(DType::f32, {B_, P}), z = scope.like(own), p = scope.like(x);
      gather_columns(ctx_, {.x = inputs, .begin = index * P, .y = own});
      linear(l.input_gate, x, z);
      gated_forward(ctx_, {.activation = model_.config.activation, .a = z, .b = own, .y = z});
      linear(l.input_projection, z, p);
      rmsnorm_forward(ctx_, {.x = p,
                             .weight = l.post_input_norm,
                             .residual = x,
                             .y = x,
                             .eps = model_.config.rms_norm_eps,
                             .offset = model_.config.norm_offset});
    }
    if (model_.config.layer_scalar) scale_into(ctx_, {.x = x, .y = x, .scale = l.scalar});
  }

  void norm(Tensor x, Tensor weight, Tensor y) {
    rmsnorm_forward(
        ctx_,
        {.x = x, .weight = weight, .y = y, .eps = model_.config.rms_norm_eps, .offset = model_.config.norm_offset});
  }

 private:
  // x += [norm](y)
  void add_back(Tensor y, Tensor weight, Tensor x) {
    if (model_.config.post_norms) {
      rmsnorm_forward(ctx_, {.x = y,
                             .weight = weight,
                             .residual = x,
                             .y = x,
                             .eps = model_.config.rms_norm_eps,
                             .offset = model_.config.norm_offset});
    } else {
      scale_into(ctx_, {.x = y, .y = x, .write = Write::add});
    }
  }

  void attention(int64_t index, const DecoderLayer& l, Tensor x) {
    ArenaScope scope(ctx_.arena);
    const LayerConfig& c = l.config;
    Tensor a = scope.like(x), q = scope.tensor(DType::f32, {B_, c.num_heads * c.head_dim}), o = scope.like(q),
           out = scope.like(x);
    const Tensor table = tables_[static_cast<size_t>(c.rope)];
    norm(x, l.input_norm, a);
    linear(l.q, a, q);
    turn(q, l.q_norm, c, table);
    if (c.kv_donor < 0) {
      Tensor k = scope.tensor(DType::f32, {B_, c.num_kv_heads * c.head_dim}), v = scope.like(k);
      linear(l.k, a, k);
      if (c.values_are_keys) scale_into(ctx_, {.x = k, .y = v});
      else linear(l.v, a, v);
      turn(k, l.k_norm, c, table);
      if (model_.config.value_norm) head_norm(v, {}, c, {});
      for (int64_t b = 0; b < B_; ++b) {
        KvCache& cache = *caches_[static_cast<size_t>(b)];
        const KvCache::Layer& kept = cache.layer(index);
        const int64_t row = kept.row_of(cache.length());
        scale_into(ctx_, {.x = k.rows(b, 1), .y = kept.kv.k.rows(row, 1)});
        scale_into(ctx_, {.x = v.rows(b, 1), .y = kept.kv.v.rows(row, 1)});
      }
    }
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
    const AttentionShape shape{.num_heads = c.num_heads,
                               .num_kv_heads = c.num_kv_heads,
                               .head_dim = c.head_dim,
                               .scale = model_.config.attention_scale,
                               .window = c.window,
                               .softcap = model_.config.attention_softcap};
    attention_decode(ctx_, {.shape = shape, .sequences = sequences, .q = q, .o = o});
    linear(l.o, o, out);
    add_back(out, l.post_attention_norm, x);
  }

  // And RoPE, with a table.
  void head_norm(Tensor x, Tensor weight, const LayerConfig& c, Tensor table) {
    rmsnorm_forward(ctx_, {.x = x,
                           .weight = weight,
                           .table = table,
                           .y = x,
                           .groups = x.shape[1] / c.head_dim,
                           .eps = model_.config.rms_norm_eps,
                           .offset = weight.empty() ? 0 : model_.config.norm_offset});
  }

  void turn(Tensor x, Tensor weight, const LayerConfig& c, Tensor table) {
    if (model_.config.qk_norm) head_norm(x, weight, c, table);
    else rope(ctx_, {.x = x, .table = table, .y = x, .head_dim = c.head_dim});
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
  for (int64_t l = 0; l < model.config.num_layers; ++l) {
    GraphCapture graph(ctx, B);
    step.layer(l, x, u);
    graph.launch();
  }
  Tensor h = scope.like(x);
  step.norm(x, model.final_norm, h);
  head_logits(ctx, {.weight = model.head, .h = h, .softcap = model.config.final_softcap, .logits = logits});
  if (ctx.counting()) return;
  for (KvCache* cache : caches) cache->set_length(cache->length() + 1);
}

}  // namespace sluice
