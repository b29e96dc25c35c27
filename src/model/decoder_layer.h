// One decoder layer: forward and backward by hand, tile by tile. What families differ in is a value of ModelConfig.
//
//   a = norm(x)    q, k, v = proj(a)    o = attention(rope(qnorm(q)), rope(knorm(k)), v)
//   x1 = x + [norm](o_proj(o))          f = norm(x1)
//   x2 = x1 + [norm](down(act(gate(f)) * up(f)))
//   y = [scalar *] (x2 [+ norm(projection(act(input_gate(x2)) * u))])          [ ]: Gemma only
//
// Touvron et al. 2023 (Llama, arXiv:2302.13971); the Gemma parts as docs/math/gemma4.md. What is per token runs in tiles of
// `batch.tile` tokens, so that no [N, F] tensor exists unless the level keeps it. Every value is the same bits for any tile
// (a multiple of row_chunk) and any level.
#pragma once

#include "core/spans.h"
#include "model/lora.h"
#include "ops/attention/attention.h"

namespace sluice {

// What one microbatch is, for the layers: everything but the loss.
struct LayerInputs {
  const Spans* spans = nullptr;
  Tensor ids;                       // [N] i32
  std::vector<Tensor> rope_tables;  // one for each ModelConfig::ropes: [N, D] f32
  DropoutKey dropout;
  int64_t tile = row_chunk;  // tokens at once; a multiple of row_chunk
  int64_t num_tokens() const { return spans->num_tokens(); }
};

// How much a layer's last forward keeps for its backward; the rest is recomputed, to the same bits.
enum class Level : uint8_t {
  input,      // the layer's input only
  attention,  // also the attention's output and lse: its scores are not formed again in a forward
  all,        // every product of a matrix multiplication that the backward reads
};

// Keys and values of a donor layer, after norm and RoPE, and their gradients, summed in layer order from the last sharer down
// to the donor itself.
struct SharedKv {
  Tensor k, v;    // [N, K * D]
  Tensor dk, dv;  // [N, K * D] f32
};

struct DecoderLayer {
  // All tensors may be empty: what is empty is recomputed.
  struct Saved {
    Tensor q, k, v;        // [N, H * D], [N, K * D]: as projected before a q/k norm, else after RoPE
    Tensor o, lse;         // [N, H * D], [N, H] f32
    Tensor attention_out;  // [N, C]: x1, or o_proj(o) where a norm follows
    Tensor gate, up;       // [N, F]
    Tensor mlp_out;        // [N, C]: down(…), only where a norm follows
    LowProducts low;       // of q, k, v, o, gate, up, down
    Saved() = default;
    Saved(Arena& arena, const DecoderLayer& layer, int64_t num_tokens, DType dtype, Level level,
          const Adapter& adapter);
  };

  const ModelConfig* model = nullptr;
  LayerConfig config;
  Tensor input_norm, mlp_norm;                                 // [C] f32
  Tensor post_attention_norm, post_mlp_norm, post_input_norm;  // [C] f32, Gemma
  Tensor q_norm, k_norm;                                       // [D] f32
  LoraLinear q, k, v, o, gate, up, down, input_gate, input_projection;
  float scalar = 1;

  // y = layer(x). `donor` is the donor's entry in a sharing layer or the layer's own in a donor, else null; a donor writes k and v
  // there. `u` [N, L * P] are the per-layer inputs of all layers (Model::layer_inputs), or empty.
  void forward(Context& ctx, const LayerInputs& batch, const Adapter& adapter, Tensor x, Tensor y, const Saved& saved,
               SharedKv* donor, Tensor u) const;

  // d holds dy on entry and dx on return (unless `need_dx` is false: then its contents are unspecified). Gradients of the
  // adapter are added into `grads`.
  void backward(Context& ctx, const LayerInputs& batch, const Adapter& adapter, const Adapter& grads, Tensor x,
                const Saved& saved, Tensor d, bool need_dx, SharedKv* donor, Tensor u) const;

 private:
  AttentionShape attention_shape() const;
  bool norms_qk() const { return model->qk_norm; }
  void norm(Context& ctx, Tensor x, Tensor weight, Tensor residual, Tensor y) const;
  void head_norm(Context& ctx, Tensor x, Tensor weight, Tensor table, Tensor y) const;  // and RoPE, with a table
  Tensor own_inputs(Context& ctx, Tensor u, int64_t begin, int64_t count, ArenaScope& scope) const;
  void project(Context& ctx, const LayerInputs& batch, const Adapter& adapter, int64_t begin, Tensor x, Tensor q0,
               Tensor k0, Tensor v0, const LowProducts& low) const;
  void rotate(Context& ctx, const LayerInputs& batch, int64_t begin, Tensor q0, Tensor k0, Tensor v0, Tensor q,
              Tensor k, Tensor v) const;
  void mlp_and_rest(Context& ctx, const LayerInputs& batch, const Adapter& adapter, int64_t begin, Tensor x1, Tensor y,
                    const Saved& saved, Tensor u) const;
  void rest_backward(Context& ctx, const LayerInputs& batch, const Adapter& adapter, const Adapter& grads,
                     int64_t begin, Tensor x1, const Saved& saved, Tensor d, Tensor u) const;
  void qkv_backward(Context& ctx, const LayerInputs& batch, const Adapter& adapter, const Adapter& grads, int64_t begin,
                    Tensor x, Tensor q0, Tensor k0, Tensor v0, Tensor dq, Tensor dk, Tensor dv, const LowProducts& low,
                    Tensor d, bool need_dx) const;
};

}  // namespace sluice
