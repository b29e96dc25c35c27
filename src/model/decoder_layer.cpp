#include "model/decoder_layer.h"

#include "ops/activation/activation.h"
#include "ops/common/copy.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"

namespace sluice {

namespace {

// The rows of what is kept, or a fresh tile where nothing is.
Tensor rows_or(const Tensor& kept, int64_t begin, int64_t count, ArenaScope& scope, DType dtype, int64_t width) {
  return kept.empty() ? scope.tensor(dtype, {count, width}) : kept.rows(begin, count);
}
Tensor rows_of(const Tensor& whole, int64_t begin, int64_t count) {
  return whole.empty() ? Tensor{} : whole.rows(begin, count);
}
Tensor whole_or(const Tensor& kept, ArenaScope& scope, DType dtype, int64_t rows, int64_t width) {
  return kept.empty() ? scope.tensor(dtype, {rows, width}) : kept;
}

// A counting arena sees the last full tile and the rest only: no earlier one needs more.
template <class Body>
void for_each_tile(const Context& ctx, const LayerInputs& batch, Body body) {
  const int64_t N = batch.num_tokens();
  int64_t begin = ctx.counting() ? std::max<int64_t>(N / batch.tile - 1, 0) * batch.tile : 0;
  for (; begin < N; begin += batch.tile) body(begin, std::min(batch.tile, N - begin));
}

}  // namespace

DecoderLayer::Saved::Saved(Arena& arena, const DecoderLayer& layer, int64_t num_tokens, DType dtype, Level level,
                           const Adapter& adapter) {
  if (level == Level::input) return;
  const LayerConfig& c = layer.config;
  const int64_t N = num_tokens, C = layer.model->hidden_size, HD = c.num_heads * c.head_dim,
                KD = c.num_kv_heads * c.head_dim;
  o = arena.tensor(dtype, {N, HD});
  lse = arena.tensor(DType::f32, {N, c.num_heads});
  // down's product is not formed again unless a norm follows, so that its backward would have to read its input twice.
  if (level == Level::all || !layer.model->post_norms)
    low.take(arena, adapter, layer.q.layer, {Module::down_proj}, N, dtype);
  if (level == Level::attention) return;
  q = arena.tensor(dtype, {N, HD});
  const bool own = c.kv_donor < 0;
  if (own && (layer.model->qk_norm || !c.is_donor)) k = arena.tensor(dtype, {N, KD});
  if (own && !c.values_are_keys && (layer.model->value_norm || !c.is_donor)) v = arena.tensor(dtype, {N, KD});
  attention_out = arena.tensor(dtype, {N, C});
  gate = arena.tensor(dtype, {N, c.intermediate_size});
  up = arena.tensor(dtype, {N, c.intermediate_size});
  if (layer.model->post_norms) mlp_out = arena.tensor(dtype, {N, C});
  low.take(arena, adapter, layer.q.layer,
           {Module::q_proj, Module::k_proj, Module::v_proj, Module::o_proj, Module::gate_proj, Module::up_proj}, N,
           dtype);
}

AttentionShape DecoderLayer::attention_shape() const {
  return {.num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = model->attention_scale,
          .window = config.window,
          .softcap = model->attention_softcap};
}

void DecoderLayer::norm(Context& ctx, Tensor x, Tensor weight, Tensor residual, Tensor y) const {
  rmsnorm_forward(ctx, {.x = x,
                        .weight = weight,
                        .residual = residual,
                        .y = y,
                        .eps = model->rms_norm_eps,
                        .offset = model->norm_offset});
}

void DecoderLayer::head_norm(Context& ctx, Tensor x, Tensor weight, Tensor table, Tensor y) const {
  rmsnorm_forward(ctx, {.x = x,
                        .weight = weight,
                        .table = table,
                        .y = y,
                        .groups = x.shape[1] / config.head_dim,
                        .eps = model->rms_norm_eps,
                        .offset = weight.empty() ? 0 : model->norm_offset});
}

Tensor DecoderLayer::own_inputs(Context& ctx, Tensor u, int64_t begin, int64_t count, ArenaScope& scope) const {
  if (u.empty()) return {};
  const int64_t P = model->per_layer_input_size;
  Tensor own = scope.tensor(u.dtype, {count, P});
  gather_columns(ctx, {.x = u.rows(begin, count), .begin = q.layer * P, .y = own});
  return own;
}

void DecoderLayer::project(Context& ctx, const LayerInputs& batch, const Adapter& adapter, int64_t begin, Tensor x,
                           Tensor q0, Tensor k0, Tensor v0, const LowProducts& low) const {
  ArenaScope scope(ctx.arena);
  Tensor a = scope.like(x);
  norm(ctx, x, input_norm, {}, a);
  q.forward(ctx, adapter, batch.dropout, begin, a, {}, q0, low);
  if (!k0.empty()) k.forward(ctx, adapter, batch.dropout, begin, a, {}, k0, low);
  if (!v0.empty() && v0.data != k0.data) v.forward(ctx, adapter, batch.dropout, begin, a, {}, v0, low);
}

// From what the projections gave to what the attention reads. Each pair may be one tensor; empty ones are left out.
void DecoderLayer::rotate(Context& ctx, const LayerInputs& batch, int64_t begin, Tensor q0, Tensor k0, Tensor v0,
                          Tensor q, Tensor k, Tensor v) const {
  const Tensor table = batch.rope_tables[static_cast<size_t>(config.rope)].rows(begin, q0.shape[0]);
  const auto turn = [&](Tensor from, Tensor weight, Tensor to) {
    if (model->qk_norm) head_norm(ctx, from, weight, table, to);
    else rope(ctx, {.x = from, .table = table, .y = to, .head_dim = config.head_dim});
  };
  turn(q0, q_norm, q);
  if (!v.empty() && model->value_norm)
    head_norm(ctx, v0, {}, {}, v);  // before k, which may overwrite what both come from
  if (!k.empty()) turn(k0, k_norm, k);
}

void DecoderLayer::forward(Context& ctx, const LayerInputs& batch, const Adapter& adapter, Tensor x, Tensor y,
                           const Saved& saved, SharedKv* donor, Tensor u) const {
  ArenaScope scope(ctx.arena);
  const DType dtype = x.dtype;
  const int64_t N = batch.num_tokens(), C = model->hidden_size;
  const int64_t HD = config.num_heads * config.head_dim, KD = config.num_kv_heads * config.head_dim;
  const bool own = config.kv_donor < 0;
  Tensor keys = donor ? donor->k : whole_or(norms_qk() ? Tensor{} : saved.k, scope, dtype, N, KD);
  Tensor values = donor ? donor->v : whole_or(model->value_norm ? Tensor{} : saved.v, scope, dtype, N, KD);
  for_each_tile(ctx, batch, [&](int64_t begin, int64_t count) {
    ArenaScope tile(ctx.arena);
    Tensor xt = x.rows(begin, count), yt = y.rows(begin, count);
    Tensor kt = own ? keys.rows(begin, count) : Tensor{}, vt = own ? values.rows(begin, count) : Tensor{};
    Tensor q0 = rows_or(saved.q, begin, count, tile, dtype, HD), k0 = kt, v0 = vt;
    if (own && norms_qk()) k0 = rows_or(saved.k, begin, count, tile, dtype, KD);
    if (own && config.values_are_keys) v0 = k0;
    else if (own && model->value_norm) v0 = rows_or(saved.v, begin, count, tile, dtype, KD);
    Tensor qt = norms_qk() ? tile.like(q0) : q0;
    const LowProducts low = saved.low.rows(begin, count);
    project(ctx, batch, adapter, begin, xt, q0, k0, v0, low);  // 1  q, k, v
    rotate(ctx, batch, begin, q0, k0, v0, qt, kt, vt);         // 2  norm, RoPE
    Tensor ot = rows_or(saved.o, begin, count, tile, dtype, HD);
    Tensor lse = rows_or(saved.lse, begin, count, tile, DType::f32, config.num_heads);
    attention_forward(ctx, {.shape = attention_shape(),
                            .spans = *batch.spans,
                            .query_begin = begin,
                            .q = qt,
                            .k = keys,
                            .v = values,
                            .o = ot,
                            .lse = lse});  // 3  o
    Tensor out = rows_or(saved.attention_out, begin, count, tile, dtype, C), x1 = out;
    if (model->post_norms) {
      x1 = tile.like(out);
      o.forward(ctx, adapter, batch.dropout, begin, ot, {}, out, low);  // 4  x1 = x + o_proj(o)
      norm(ctx, out, post_attention_norm, xt, x1);
    } else {
      o.forward(ctx, adapter, batch.dropout, begin, ot, xt, out, low);  // 4
    }
    mlp_and_rest(ctx, batch, adapter, begin, x1, yt, saved, own_inputs(ctx, u, begin, count, tile));  // 5  y
  });
}

void DecoderLayer::mlp_and_rest(Context& ctx, const LayerInputs& batch, const Adapter& adapter, int64_t begin,
                                Tensor x1, Tensor y, const Saved& saved, Tensor u) const {
  ArenaScope scope(ctx.arena);
  const int64_t T = x1.shape[0], F = config.intermediate_size;
  const DropoutKey& key = batch.dropout;
  Tensor f = scope.like(x1);
  Tensor g = rows_or(saved.gate, begin, T, scope, x1.dtype, F), b = rows_or(saved.up, begin, T, scope, x1.dtype, F);
  Tensor h = scope.like(g);
  const LowProducts low = saved.low.rows(begin, T);
  norm(ctx, x1, mlp_norm, {}, f);                                                 // 1  f = norm(x1)
  gate.forward(ctx, adapter, key, begin, f, {}, g, low);                          // 2  g
  up.forward(ctx, adapter, key, begin, f, {}, b, low);                            // 3  b
  gated_forward(ctx, {.activation = model->activation, .a = g, .b = b, .y = h});  // 4  h = act(g) b
  Tensor m = rows_or(saved.mlp_out, begin, T, scope, x1.dtype, model->hidden_size);
  if (model->post_norms) {
    down.forward(ctx, adapter, key, begin, h, {}, m, low);  // 5  x2 = x1 + down(h)
    norm(ctx, m, post_mlp_norm, x1, y);
  } else {
    down.forward(ctx, adapter, key, begin, h, x1, y, low);  // 5
  }
  if (!u.empty()) {
    Tensor z = scope.like(u), p = scope.like(x1);
    input_gate.forward(ctx, adapter, key, begin, y, {}, z, low);                    // 6  z = input_gate(x2)
    gated_forward(ctx, {.activation = model->activation, .a = z, .b = u, .y = z});  // 7  z = act(z) u
    input_projection.forward(ctx, adapter, key, begin, z, {}, p, low);              // 8  x3 = x2 + norm(projection(z))
    norm(ctx, p, post_input_norm, y, y);
  }
  if (model->layer_scalar) scale_into(ctx, {.x = y, .y = y, .scale = scalar});  // 9  y = scalar x3
}

// d: dy on entry, dx1 on return.
void DecoderLayer::rest_backward(Context& ctx, const LayerInputs& batch, const Adapter& adapter, const Adapter& grads,
                                 int64_t begin, Tensor x1, const Saved& saved, Tensor d, Tensor u) const {
  ArenaScope scope(ctx.arena);
  const int64_t T = x1.shape[0], F = config.intermediate_size;
  const DropoutKey& key = batch.dropout;
  Tensor f = scope.like(x1), g = rows_or(saved.gate, begin, T, scope, x1.dtype, F),
         b = rows_or(saved.up, begin, T, scope, x1.dtype, F);
  Tensor h = scope.like(g), m = rows_or(saved.mlp_out, begin, T, scope, x1.dtype, model->hidden_size);
  LowProducts low = saved.low.rows(begin, T);
  const auto take_low = [&](std::initializer_list<Module> modules) {
    low.take(ctx.arena, adapter, q.layer, modules, T, x1.dtype);
  };
  norm(ctx, x1, mlp_norm, {}, f);
  if (saved.gate.empty()) {
    take_low({Module::gate_proj, Module::up_proj});
    gate.forward(ctx, adapter, key, begin, f, {}, g, low);
    up.forward(ctx, adapter, key, begin, f, {}, b, low);
  }
  gated_forward(ctx, {.activation = model->activation, .a = g, .b = b, .y = h});
  if (model->post_norms && saved.mlp_out.empty()) {
    take_low({Module::down_proj});
    down.forward(ctx, adapter, key, begin, h, {}, m, low);
  }

  const auto norm_backward = [&](Tensor x, Tensor weight, Tensor dy, Tensor dx, Write write) {
    rmsnorm_backward(ctx, {.x = x,
                           .weight = weight,
                           .dy = dy,
                           .dx = dx,
                           .write = write,
                           .eps = model->rms_norm_eps,
                           .offset = model->norm_offset});
  };
  if (model->layer_scalar) scale_into(ctx, {.x = d, .y = d, .scale = scalar});  // 9
  if (!u.empty()) {
    ArenaScope inner(ctx.arena);
    Tensor x2 = inner.like(x1), z = inner.like(u), t = inner.like(u), p = inner.like(x1), dp = inner.like(x1),
           dt = inner.like(u);
    norm(ctx, m, post_mlp_norm, x1, x2);
    take_low({Module::per_layer_input_gate, Module::per_layer_projection});
    input_gate.forward(ctx, adapter, key, begin, x2, {}, z, low);
    gated_forward(ctx, {.activation = model->activation, .a = z, .b = u, .y = t});
    input_projection.forward(ctx, adapter, key, begin, t, {}, p, low);
    norm_backward(p, post_input_norm, d, dp, Write::set);                                        // 8
    input_projection.backward(ctx, adapter, key, begin, t, dp, dt, Write::set, low, grads);      // 8
    gated_backward(ctx, {.activation = model->activation, .a = z, .b = u, .dy = dt, .da = dt});  // 7
    input_gate.backward(ctx, adapter, key, begin, x2, dt, d, Write::add, low, grads);            // 6
  }
  Tensor dm = d, dh = scope.like(g), df = scope.tensor(DType::f32, x1.shape);
  if (model->post_norms) {
    dm = scope.like(d);
    norm_backward(m, post_mlp_norm, d, dm, Write::set);  // 5
  }
  down.backward(ctx, adapter, key, begin, h, dm, dh, Write::set, low, grads);  // 5
  Tensor dg = scope.like(g);
  gated_backward(ctx, {.activation = model->activation, .a = g, .b = b, .dy = dh, .da = dg, .db = dh});  // 4
  up.backward(ctx, adapter, key, begin, f, dh, df, Write::set, low, grads);                              // 3
  gate.backward(ctx, adapter, key, begin, f, dg, df, Write::add, low, grads);  // 2  f was read twice
  norm_backward(x1, mlp_norm, df, d, Write::add);                              // 1
}

void DecoderLayer::backward(Context& ctx, const LayerInputs& batch, const Adapter& adapter, const Adapter& grads,
                            Tensor x, const Saved& saved, Tensor d, bool need_dx, SharedKv* donor, Tensor u) const {
  ArenaScope scope(ctx.arena);
  const DType dtype = x.dtype;
  const int64_t N = batch.num_tokens(), C = model->hidden_size;
  const int64_t HD = config.num_heads * config.head_dim, KD = config.num_kv_heads * config.head_dim;
  const bool own = config.kv_donor < 0, projected = !saved.q.empty();
  // As the projections gave them (q0, k0, v0), kept apart from what the attention reads only where a norm lies between.
  Tensor q0 = whole_or(saved.q, scope, dtype, N, HD), queries = norms_qk() ? scope.like(q0) : q0;
  Tensor keys = donor ? donor->k : whole_or(norms_qk() ? Tensor{} : saved.k, scope, dtype, N, KD);
  Tensor values = donor ? donor->v : whole_or(model->value_norm ? Tensor{} : saved.v, scope, dtype, N, KD);
  Tensor k0 = own ? keys : Tensor{}, v0 = own ? values : Tensor{};
  if (own && norms_qk()) k0 = whole_or(saved.k, scope, dtype, N, KD);
  if (own && config.values_are_keys) v0 = k0;
  else if (own && model->value_norm) v0 = whole_or(saved.v, scope, dtype, N, KD);
  Tensor o_all = whole_or(saved.o, scope, dtype, N, HD),
         lse = whole_or(saved.lse, scope, DType::f32, N, config.num_heads);
  // A donor's k and v are at hand since the forward; they are not formed again.
  const bool form_kv = own && donor == nullptr, form_k = form_kv || norms_qk(), form_v = form_kv || model->value_norm;
  LowProducts low = saved.low;
  const auto take_low = [&](Module module) { low.take(ctx.arena, adapter, q.layer, {module}, N, dtype); };
  if (!projected) {
    take_low(Module::q_proj);
    if (form_k) take_low(Module::k_proj);
    if (form_v) take_low(Module::v_proj);
  }
  for_each_tile(ctx, batch, [&](int64_t begin, int64_t count) {
    const auto tile = [&](const Tensor& t) { return rows_of(t, begin, count); };
    if (!projected)
      project(ctx, batch, adapter, begin, tile(x), tile(q0), form_k ? tile(k0) : Tensor{}, form_v ? tile(v0) : Tensor{},
              low.rows(begin, count));  // 1
    if (!projected || norms_qk()) {
      rotate(ctx, batch, begin, tile(q0), tile(k0), tile(v0), tile(queries), form_kv ? tile(keys) : Tensor{},
             form_kv ? tile(values) : Tensor{});  // 2
    }
    if (saved.o.empty()) {
      attention_forward(ctx, {.shape = attention_shape(),
                              .spans = *batch.spans,
                              .query_begin = begin,
                              .q = tile(queries),
                              .k = keys,
                              .v = values,
                              .o = tile(o_all),
                              .lse = tile(lse)});  // 3
    }
  });
  Tensor do_all = scope.tensor(dtype, {N, HD});
  for_each_tile(ctx, batch, [&](int64_t begin, int64_t count) {
    ArenaScope tile(ctx.arena);
    Tensor xt = x.rows(begin, count), dt = d.rows(begin, count), ot = o_all.rows(begin, count);
    Tensor out = rows_or(saved.attention_out, begin, count, tile, dtype, C), x1 = out;
    LowProducts own_low = low.rows(begin, count);
    if (saved.attention_out.empty()) {
      own_low.take(ctx.arena, adapter, q.layer, {Module::o_proj}, count, dtype);
      o.forward(ctx, adapter, batch.dropout, begin, ot, model->post_norms ? Tensor{} : xt, out, own_low);  // 4
    }
    if (model->post_norms) {
      x1 = tile.like(out);
      norm(ctx, out, post_attention_norm, xt, x1);
    }
    rest_backward(ctx, batch, adapter, grads, begin, x1, saved, dt, own_inputs(ctx, u, begin, count, tile));  // 5
    Tensor dout = dt;
    if (model->post_norms) {
      dout = tile.like(dt);
      rmsnorm_backward(ctx, {.x = out,
                             .weight = post_attention_norm,
                             .dy = dt,
                             .dx = dout,
                             .eps = model->rms_norm_eps,
                             .offset = model->norm_offset});  // 4
    }
    o.backward(ctx, adapter, batch.dropout, begin, ot, dout, do_all.rows(begin, count), Write::set, own_low,
               grads);  // 4
  });
  Tensor dq = scope.tensor(DType::f32, {N, HD});
  Tensor dk = donor ? donor->dk : scope.tensor(DType::f32, {N, KD}),
         dv = donor ? donor->dv : scope.tensor(DType::f32, {N, KD});
  if (donor == nullptr) {
    zero(ctx, {.tensor = dk});
    zero(ctx, {.tensor = dv});
  }
  attention_backward(ctx, {.shape = attention_shape(),
                           .spans = *batch.spans,
                           .q = queries,
                           .k = keys,
                           .v = values,
                           .o = o_all,
                           .lse = lse,
                           .do_ = do_all,
                           .dq = dq,
                           .dk = dk,
                           .dv = dv});  // 3
  for_each_tile(ctx, batch, [&](int64_t begin, int64_t count) {
    const auto tile = [&](const Tensor& t) { return rows_of(t, begin, count); };
    qkv_backward(ctx, batch, adapter, grads, begin, tile(x), tile(q0), tile(k0), tile(v0), tile(dq),
                 own ? tile(dk) : Tensor{}, own ? tile(dv) : Tensor{}, low.rows(begin, count), tile(d),
                 need_dx);  // 2, 1
  });
}

void DecoderLayer::qkv_backward(Context& ctx, const LayerInputs& batch, const Adapter& adapter, const Adapter& grads,
                                int64_t begin, Tensor x, Tensor q0, Tensor k0, Tensor v0, Tensor dq, Tensor dk,
                                Tensor dv, const LowProducts& low, Tensor d, bool need_dx) const {
  ArenaScope scope(ctx.arena);
  const int64_t T = x.shape[0];
  const Tensor table = batch.rope_tables[static_cast<size_t>(config.rope)].rows(begin, T);
  // Back through RoPE and the head norm; `into` is f32 or the operands' dtype.
  const auto turn_back = [&](Tensor from, Tensor weight, Tensor dy, Tensor into) {
    if (model->qk_norm) {
      rmsnorm_backward(ctx, {.x = from,
                             .weight = weight,
                             .table = table,
                             .dy = dy,
                             .dx = into,
                             .groups = dy.shape[1] / config.head_dim,
                             .eps = model->rms_norm_eps,
                             .offset = model->norm_offset});
    } else {
      rope(ctx, {.x = dy, .table = table, .y = into, .head_dim = config.head_dim, .inverse = true});
    }
  };
  const auto value_back = [&](Tensor into, Write write) {
    if (model->value_norm) {
      rmsnorm_backward(
          ctx,
          {.x = v0, .dy = dv, .dx = into, .write = write, .groups = config.num_kv_heads, .eps = model->rms_norm_eps});
    } else {
      scale_into(ctx, {.x = dv, .y = into, .write = write});
    }
  };
  Tensor a = scope.like(x), da = need_dx ? scope.tensor(DType::f32, x.shape) : Tensor{};
  norm(ctx, x, input_norm, {}, a);
  {
    ArenaScope inner(ctx.arena);
    Tensor dq0 = inner.tensor(x.dtype, q0.shape);
    turn_back(q0, q_norm, dq, dq0);                                                      // 2
    q.backward(ctx, adapter, batch.dropout, begin, a, dq0, da, Write::set, low, grads);  // 1
  }
  if (!dk.empty()) {
    ArenaScope inner(ctx.arena);
    Tensor dk0 = inner.tensor(x.dtype, k0.shape);
    if (config.values_are_keys) {
      Tensor sum = inner.tensor(DType::f32, k0.shape);
      turn_back(k0, k_norm, dk, sum);  // 2
      value_back(sum, Write::add);     // 2  k0 was read twice
      scale_into(ctx, {.x = sum, .y = dk0});
    } else {
      turn_back(k0, k_norm, dk, dk0);  // 2
    }
    k.backward(ctx, adapter, batch.dropout, begin, a, dk0, da, Write::add, low, grads);  // 1
    if (!config.values_are_keys) {
      Tensor dv0 = inner.tensor(x.dtype, v0.shape);
      value_back(dv0, Write::set);                                                         // 2
      v.backward(ctx, adapter, batch.dropout, begin, a, dv0, da, Write::add, low, grads);  // 1
    }
  }
  if (!need_dx) return;
  rmsnorm_backward(ctx, {.x = x,
                         .weight = input_norm,
                         .dy = da,
                         .dx = d,
                         .write = Write::add,
                         .eps = model->rms_norm_eps,
                         .offset = model->norm_offset});  // 1
}

}  // namespace sluice
