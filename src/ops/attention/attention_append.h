// What stands between the projections of a decoding step and its attention: q and k of each sequence's new token are
// [normalised by head and] turned by RoPE, v is [normalised by head], and k and v go to their rows of the caches.
//
//   q = rope([norm](q))     k_row = rope([norm](k))     v_row = [norm](v)          ops/rope, ops/rmsnorm: in float32
//
// One kernel on CUDA. Rows are independent of each other. Deterministic.
#pragma once

#include <vector>

#include "ops/attention/attention.h"

namespace sluice {

struct AttentionAppend {
  struct Row {
    Tensor k, v;  // [1, K * D] f32 or bf16, out: of a cache
  };
  AttentionShape shape;
  const std::vector<Row>& rows;  // of B sequences; none where the layer reads another's keys and values
  Tensor q;                      // [B, H * D] f32, in and out
  Tensor k, v;                   // [B, K * D] f32, in; not read without rows; v may be k
  Tensor table;                  // [B, D] f32, in: RoPE's of these tokens
  bool norm_qk = false, norm_v = false;
  Tensor q_weight, k_weight;  // [D] f32, in; may be empty: factor 1
  float eps = 1e-6F, offset = 0;
};
void attention_append(Context& ctx, const AttentionAppend& args);

namespace cuda {
void attention_append(Context& ctx, const AttentionAppend& args);
}  // namespace cuda

}  // namespace sluice
