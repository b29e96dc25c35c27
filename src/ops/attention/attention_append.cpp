#include "ops/attention/attention_append.h"

#include "core/error.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"

namespace sluice {

namespace {

void head_norm(Context& ctx, const AttentionAppend& args, Tensor x, Tensor weight, Tensor table, Tensor y) {
  rmsnorm_forward(ctx, {.x = x,
                        .weight = weight,
                        .residual = {},
                        .table = table,
                        .y = y,
                        .groups = x.shape[1] / args.shape.head_dim,
                        .eps = args.eps,
                        .offset = weight.empty() ? 0 : args.offset});
}

void turn(Context& ctx, const AttentionAppend& args, Tensor x, Tensor weight, Tensor y) {
  if (args.norm_qk) head_norm(ctx, args, x, weight, args.table, y);
  else rope(ctx, {.x = x, .table = args.table, .y = y, .head_dim = args.shape.head_dim});
}

void by_ops(Context& ctx, const AttentionAppend& args) {
  ArenaScope scope(ctx.arena);
  turn(ctx, args, args.q, args.q_weight, args.q);
  if (args.rows.empty()) return;
  Tensor k = scope.like(args.k), v = args.v;
  turn(ctx, args, args.k, args.k_weight, k);
  if (args.norm_v) {
    v = scope.like(args.v);
    head_norm(ctx, args, args.v, {}, {}, v);
  }
  for (size_t b = 0; b < args.rows.size(); ++b) {
    const auto row = static_cast<int64_t>(b);
    scale_into(ctx, {.x = k.rows(row, 1), .y = args.rows[b].k});
    scale_into(ctx, {.x = v.rows(row, 1), .y = args.rows[b].v});
  }
}

}  // namespace

void attention_append(Context& ctx, const AttentionAppend& args) {
  const AttentionShape& s = args.shape;
  const int64_t B = args.q.shape[0], D = s.head_dim, narrow = s.num_kv_heads * D;
  SLUICE_ASSERT(D % 2 == 0 && args.q.dtype == DType::f32 && (args.q.shape == Shape{B, s.num_heads * D}));
  SLUICE_ASSERT((args.table.shape == Shape{B, D}));
  for (const Tensor& weight : {args.q_weight, args.k_weight}) SLUICE_ASSERT(weight.empty() || weight.shape == Shape{D});
  if (!args.rows.empty()) {
    SLUICE_ASSERT(static_cast<int64_t>(args.rows.size()) == B);
    for (const Tensor& x : {args.k, args.v}) SLUICE_ASSERT((x.dtype == DType::f32 && x.shape == Shape{B, narrow}));
    for (const AttentionAppend::Row& row : args.rows)
      SLUICE_ASSERT((row.k.shape == Shape{1, narrow} && row.v.shape == row.k.shape && row.k.dtype == row.v.dtype));
  }
  if (B == 0) return;
  if (ctx.device.type != DeviceType::cuda) return by_ops(ctx, args);
  static const auto entry = cuda_entry<AttentionAppend>("attention_append");
  CudaOp op(ctx, "attention_append");
  entry(ctx, args);
  op.done();
}

}  // namespace sluice
