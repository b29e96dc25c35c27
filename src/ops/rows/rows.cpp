#include "ops/rows/rows.h"

namespace sluice {

void gather_rows(Context& ctx, const GatherRows& args) {
  SLUICE_ASSERT(args.x.dtype == args.y.dtype && args.x.shape[1] == args.y.shape[1]);
  SLUICE_ASSERT(args.index.shape[0] == args.y.shape[0]);
  SLUICE_DISPATCH(ctx, gather_rows, args);
}

void scatter_rows(Context& ctx, const ScatterRows& args) {
  SLUICE_ASSERT(args.x.shape[1] == args.y.shape[1] && args.x.shape[0] == args.index.shape[0]);
  SLUICE_ASSERT(args.weight.shape == args.index.shape);
  SLUICE_DISPATCH(ctx, scatter_rows, args);
}

void scale_into(Context& ctx, const ScaleInto& args) {
  SLUICE_ASSERT(args.x.shape.numel() == args.y.shape.numel());
  SLUICE_DISPATCH(ctx, scale_into, args);
}

}  // namespace sluice
