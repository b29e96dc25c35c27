#include "ops/rope/rope.h"

namespace sluice {

void rope_table(Context& ctx, const RopeTable& args) {
  SLUICE_ASSERT(args.frequencies != nullptr);
  SLUICE_ASSERT(args.positions.dtype == DType::i32 && args.positions.shape.rank() == 1);
  SLUICE_ASSERT(args.table.dtype == DType::f32 && args.table.shape.rank() == 2);
  SLUICE_ASSERT(args.table.shape[0] == args.positions.shape[0] && args.table.shape[1] % 2 == 0);
  SLUICE_DISPATCH(ctx, rope_table, args);
}

void rope(Context& ctx, const Rope& args) {
  const int64_t D = args.head_dim;
  SLUICE_ASSERT(D > 0 && D % 2 == 0);
  SLUICE_ASSERT(args.x.shape.rank() == 2 && args.x.shape[1] % D == 0);
  SLUICE_ASSERT(args.y.shape == args.x.shape);
  SLUICE_ASSERT((args.table.shape == Shape{args.x.shape[0], D}) && args.table.dtype == DType::f32);
  for (const Tensor& t : {args.x, args.y}) SLUICE_ASSERT(t.dtype == DType::f32 || t.dtype == DType::bf16);
  SLUICE_ASSERT(args.x.data != args.y.data || args.x.empty() || args.x.dtype == args.y.dtype);
  SLUICE_DISPATCH(ctx, rope, args);
}

}  // namespace sluice
