#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace sluice {

namespace {

// h [M, C], targets [M] (when given) against the weight [V, C].
void check_head(const Weight& weight, const Tensor& h, float softcap) {
  SLUICE_ASSERT(h.shape.rank() == 2 && h.shape[1] == weight.cols && weight.rows > 0);
  SLUICE_ASSERT(h.dtype == DType::f32 || h.dtype == DType::bf16);
  SLUICE_ASSERT(softcap >= 0);
}

void check_targets(const Tensor& targets, const Tensor& h) {
  SLUICE_ASSERT((targets.dtype == DType::i32 && targets.shape == Shape{h.shape[0]}));
}

void check_per_row(const Tensor& t, const Tensor& h) {
  SLUICE_ASSERT((t.dtype == DType::f32 && t.shape == Shape{h.shape[0]}));
}

void check_dh(const Tensor& dh, const Tensor& h) {
  SLUICE_ASSERT(dh.shape == h.shape && (dh.dtype == DType::f32 || dh.dtype == h.dtype));
  SLUICE_ASSERT(dh.data != h.data || dh.empty() || dh.dtype == h.dtype);
}

}  // namespace

void linear_cross_entropy_by_rows(Context& ctx, const LinearCrossEntropyByRows& args) {
  check_head(args.weight, args.h, args.softcap);
  check_targets(args.targets, args.h);
  check_per_row(args.logp, args.h);
  check_per_row(args.lse, args.h);
  if (!args.hit.empty()) check_per_row(args.hit, args.h);
  SLUICE_ASSERT(args.rows_per_chunk >= 1);
  if (!args.dh.empty()) check_dh(args.dh, args.h);
  SLUICE_DISPATCH(ctx, linear_cross_entropy_by_rows, args);
}

void linear_cross_entropy_by_blocks(Context& ctx, const LinearCrossEntropyByBlocks& args) {
  check_head(args.weight, args.h, args.softcap);
  check_targets(args.targets, args.h);
  check_per_row(args.logp, args.h);
  check_per_row(args.lse, args.h);
  if (!args.hit.empty()) check_per_row(args.hit, args.h);
  SLUICE_DISPATCH(ctx, linear_cross_entropy_by_blocks, args);
}

void linear_cross_entropy_by_blocks_backward(Context& ctx, const LinearCrossEntropyByBlocksBackward& args) {
  check_head(args.weight, args.h, args.softcap);
  check_targets(args.targets, args.h);
  check_per_row(args.lse, args.h);
  check_per_row(args.g, args.h);
  SLUICE_ASSERT(args.skip_below >= 0);
  SLUICE_ASSERT(args.dropped.empty() == (args.skip_below == 0));
  SLUICE_ASSERT(args.dropped.empty() || (args.dropped.dtype == DType::f32 && args.dropped.shape == Shape{1}));
  check_dh(args.dh, args.h);
  SLUICE_DISPATCH(ctx, linear_cross_entropy_by_blocks_backward, args);
}

void head_logits(Context& ctx, const HeadLogits& args) {
  check_head(args.weight, args.h, args.softcap);
  SLUICE_ASSERT(args.logits.dtype == DType::f32);
  SLUICE_ASSERT((args.logits.shape == Shape{args.h.shape[0], args.weight.rows}));
  SLUICE_DISPATCH(ctx, head_logits, args);
}

}  // namespace sluice
