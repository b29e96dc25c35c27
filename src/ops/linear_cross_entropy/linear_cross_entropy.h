// The head: log-probabilities of targets and their gradient without logits in memory.
//
//   z[m,v] = h[m] . W[v]                    l = softcap * tanh(z / softcap)  (or z)
//   lse[m] = log sum_v exp l                logp[m] = l[m,target] - lse[m]
//   d logp[m] / dh[m] = sum_v ((v == target) - exp(l - lse)) * (1 - (l / softcap)^2) * W[v]
//
// Two exact schedules. By rows: `rows_per_chunk` rows at a time against the whole vocabulary; the gradient is that of
// each row's logp with weight one, to be scaled afterwards (rows are independent, so every objective fits). By blocks:
// the vocabulary in blocks with an online log-sum-exp; the backward recomputes a block. Cut cross-entropy:
// arXiv:2411.09009; fused linear cross-entropy: Liger. Derivation: docs/math/linear_cross_entropy.md. h is bf16 or f32,
// the operands' dtype of the products; logits and sums are float32, coefficients are rounded to the operands' dtype. A
// row depends on no other row, so results do not depend on rows_per_chunk, and logp and lse are the same bits by rows,
// by blocks and in evaluation; so are the hits. M may be 0. Scratch on the CPU, by rows: rows_per_chunk * V * (2 for bf16, 4 for f32)
// bytes, the units' sums (V / 32 bytes a row) and a few panels of 2^20 weights; otherwise a few MiB. On CUDA, by rows: R = rows_per_chunk
// held between 2,048 and 8,192, R * 8,192 * 2 bytes for softmax's terms, and a panel of up to 64 MiB of a quantised weight. None grows with M.
// Targets outside [0, V) are our own mistake: Error(bug). Deterministic.
#pragma once

#include "core/tensor.h"
#include "core/weight.h"
#include "ops/common/dispatch.h"

namespace sluice {

struct LinearCrossEntropyByRows {
  const Weight& weight;  // [V, C]
  Tensor h;              // [M, C] in
  Tensor targets;        // [M] i32 in
  float softcap = 0;     // 0: none
  int64_t rows_per_chunk = 128;
  Tensor logp, lse;  // [M] f32 out
  Tensor hit =
      {};     // [M] f32 out: 1 where no token has a larger logit than the target (a tie is a hit), else 0; may be empty
  Tensor dh;  // [M, C] dtype of h or f32, out: d logp / dh    may be empty (evaluation); may be h
};
void linear_cross_entropy_by_rows(Context& ctx, const LinearCrossEntropyByRows& args);

struct LinearCrossEntropyByBlocks {
  const Weight& weight;
  Tensor h, targets;
  float softcap = 0;
  Tensor logp, lse;  // [M] f32 out
  Tensor hit = {};   // as by rows
};
void linear_cross_entropy_by_blocks(Context& ctx, const LinearCrossEntropyByBlocks& args);

struct LinearCrossEntropyByBlocksBackward {
  const Weight& weight;
  Tensor h, targets;
  float softcap = 0;
  Tensor lse;            // [M] f32 in
  Tensor g;              // [M] f32 in: upstream gradient of each logp
  float skip_below = 0;  // > 0: blocks whose largest |coefficient| is below it are skipped (--head-skip)
  Tensor dropped;        // [1] f32 out: sum of |coefficients| skipped over the sum of all; empty when skip_below is 0
  Tensor dh;             // [M, C] f32 or dtype of h, out
};
void linear_cross_entropy_by_blocks_backward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args);

// Logits of a few rows, for generation: z (capped) in float32.
struct HeadLogits {
  const Weight& weight;
  Tensor h;  // [M, C] in
  float softcap = 0;
  Tensor logits;  // [M, V] f32 out
};
void head_logits(Context& ctx, const HeadLogits& args);

SLUICE_BACKENDS(linear_cross_entropy_by_rows, LinearCrossEntropyByRows)
SLUICE_BACKENDS(linear_cross_entropy_by_blocks, LinearCrossEntropyByBlocks)
SLUICE_BACKENDS(linear_cross_entropy_by_blocks_backward, LinearCrossEntropyByBlocksBackward)
SLUICE_BACKENDS(head_logits, HeadLogits)

}  // namespace sluice
