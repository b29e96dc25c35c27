#include "ops/rmsnorm/rmsnorm.h"

namespace sluice {

namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

template <class Args>
void check_rows(const Args& args) {
  SLUICE_ASSERT(is_float(args.x.dtype) && args.x.shape.rank() == 2);
  SLUICE_ASSERT(args.groups >= 1 && args.x.shape[1] % args.groups == 0 && args.eps > 0);
  const int64_t N = args.x.shape[0], C = args.x.shape[1] / args.groups;
  SLUICE_ASSERT(args.weight.empty() || (args.weight.dtype == DType::f32 && args.weight.shape == Shape{C}));
  SLUICE_ASSERT(args.table.empty() ||
                (args.table.dtype == DType::f32 && args.table.shape == Shape{N, C} && C % 2 == 0));
}

}  // namespace

void rmsnorm_forward(Context& ctx, const RmsNormForward& args) {
  check_rows(args);
  SLUICE_ASSERT(args.y.shape == args.x.shape && args.y.dtype == args.x.dtype);
  SLUICE_ASSERT(args.residual.empty() || (args.residual.shape == args.x.shape && args.residual.dtype == args.x.dtype));
  SLUICE_ASSERT(args.residual.empty() || args.table.empty());
  SLUICE_DISPATCH(ctx, rmsnorm_forward, args);
}

void rmsnorm_backward(Context& ctx, const RmsNormBackward& args) {
  check_rows(args);
  for (const Tensor& t : {args.dy, args.dx}) {
    SLUICE_ASSERT(t.shape == args.x.shape && (t.dtype == DType::f32 || t.dtype == args.x.dtype));
  }
  SLUICE_ASSERT(args.dx.data != args.dy.data || args.dx.empty() || args.dx.dtype == args.dy.dtype);
  SLUICE_DISPATCH(ctx, rmsnorm_backward, args);
}

}  // namespace sluice
