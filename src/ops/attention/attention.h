// Attention over a forest of spans (core/spans.h): forward, backward, and one query against a cache.
//
//   S[h,i,j] = scale * q[i,h] . k[j,h / (H/K)]      capped: softcap * tanh(S / softcap)
//   visible(i, j): j in i's span or an ancestor, 0 <= position(i) - position(j) (< window, if window > 0)
//   lse[i,h] = log sum_j exp S      o[i,h] = sum_j exp(S - lse) v[j]
//
// Flash-style (Dao et al. 2022, arXiv:2205.14135; backward as FlashAttention-2, arXiv:2307.08691): blocks of scores in float32, never
// rounded; P and dS are rounded to the operands' dtype for their products only. Memory O(N D), time O(visible pairs):
// blocks that causality, window or spans hide are skipped. Backward: docs/math/attention.md.
// Deterministic and the same for any number of threads and any tiling of the queries: key blocks are cut at fixed multiples
// from token 0, and dQ, dK, dV are summed in block order without atomics.
#pragma once

#include <vector>

#include "core/spans.h"
#include "core/tensor.h"
#include "ops/common/dispatch.h"

namespace sluice {

struct AttentionShape {
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 64;
  float scale = 1;
  int64_t window = 0;  // 0: none; counts the query itself
  float softcap = 0;   // 0: none
};

struct AttentionForward {
  AttentionShape shape;
  const Spans& spans;
  int64_t query_begin =
      0;        // q, o and lse hold the tokens [query_begin, query_begin + Nq): any, a row's bits are the same
  Tensor q;     // [Nq, H * D] f32 or bf16, in
  Tensor k, v;  // [>= query_begin + Nq, K * D] in: rows of tokens 0 …
  Tensor o;     // [Nq, H * D] out
  Tensor lse;   // [Nq, H] f32 out
};
void attention_forward(Context& ctx, const AttentionForward& args);

struct AttentionBackward {
  AttentionShape shape;
  const Spans& spans;  // of all N tokens; q … are whole
  Tensor q, k, v;      // as in the forward pass
  Tensor o, lse, do_;  // [N, H * D], [N, H], [N, H * D] in
  Tensor dq;           // [N, H * D] f32 out
  Tensor dk, dv;       // [N, K * D] f32 sum: a donor's come from several layers
};
void attention_backward(Context& ctx, const AttentionBackward& args);

// Decoding: each of B sequences has one query and its own cache; row b sees cache rows [begin_b, end_b).
struct AttentionDecode {
  struct Sequence {
    Tensor k, v;                 // [capacity, K * D] f32 or bf16
    int64_t begin = 0, end = 0;  // visible rows, end > begin; the window has been applied by the caller
    int64_t ring = 0;            // > 0: a ring buffer of that many rows; logical row r lies at r % ring
  };
  AttentionShape shape;
  const std::vector<Sequence>& sequences;
  Tensor q;  // [B, H * D] in
  Tensor o;  // [B, H * D] out
};
void attention_decode(Context& ctx, const AttentionDecode& args);

SLUICE_BACKENDS(attention_forward, AttentionForward)
SLUICE_BACKENDS(attention_backward, AttentionBackward)
SLUICE_BACKENDS(attention_decode, AttentionDecode)

}  // namespace sluice
