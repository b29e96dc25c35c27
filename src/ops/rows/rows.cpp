#include "ops/rows/rows.h"

namespace sluice {

namespace {

bool is_float(const Tensor& t) { return t.dtype == DType::f32 || t.dtype == DType::bf16; }

}  // namespace

void gather_rows(Context& ctx, const GatherRows& args) {
  SLUICE_ASSERT(is_float(args.x) && args.x.dtype == args.y.dtype && args.index.dtype == DType::i32);
  SLUICE_ASSERT(args.x.shape.rank() == 2 && args.index.shape.rank() == 1);
  SLUICE_ASSERT((args.y.shape == Shape{args.index.shape[0], args.x.shape[1]}));
  SLUICE_DISPATCH(ctx, gather_rows, args);
}

void scatter_rows(Context& ctx, const ScatterRows& args) {
  SLUICE_ASSERT(is_float(args.x) && is_float(args.y));
  SLUICE_ASSERT(args.weight.dtype == DType::f32 && args.index.dtype == DType::i32);
  SLUICE_ASSERT(args.x.shape.rank() == 2 && args.y.shape.rank() == 2 && args.x.shape[1] == args.y.shape[1]);
  SLUICE_ASSERT(args.weight.shape == Shape{args.x.shape[0]} && args.index.shape == Shape{args.x.shape[0]});
  SLUICE_DISPATCH(ctx, scatter_rows, args);
}

void gather_columns(Context& ctx, const GatherColumns& args) {
  SLUICE_ASSERT(args.x.dtype == args.y.dtype && args.x.shape[0] == args.y.shape[0]);
  SLUICE_ASSERT(args.begin >= 0 && args.begin + args.y.shape[1] <= args.x.shape[1]);
  SLUICE_DISPATCH(ctx, gather_columns, args);
}

void scale_into(Context& ctx, const ScaleInto& args) {
  SLUICE_ASSERT(is_float(args.x) && is_float(args.y) && args.x.shape == args.y.shape);
  SLUICE_ASSERT(args.x.data != args.y.data || args.x.dtype == args.y.dtype || args.x.empty());
  SLUICE_DISPATCH(ctx, scale_into, args);
}

}  // namespace sluice
