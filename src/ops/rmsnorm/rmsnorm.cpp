#include "ops/rmsnorm/rmsnorm.h"

namespace sluice {

namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

void check_rows(const Tensor& x, const Tensor& weight, int64_t groups, float eps) {
  SLUICE_ASSERT(is_float(x.dtype) && x.shape.rank() == 2);
  SLUICE_ASSERT(groups >= 1 && x.shape[1] % groups == 0 && eps > 0);
  SLUICE_ASSERT(weight.empty() || (weight.dtype == DType::f32 && weight.shape == Shape{x.shape[1] / groups}));
}

}  // namespace

void rmsnorm_forward(Context& ctx, const RmsNormForward& args) {
  check_rows(args.x, args.weight, args.groups, args.eps);
  SLUICE_ASSERT(args.y.shape == args.x.shape && args.y.dtype == args.x.dtype);
  SLUICE_ASSERT(args.residual.empty() || (args.residual.shape == args.x.shape && args.residual.dtype == args.x.dtype));
  SLUICE_DISPATCH(ctx, rmsnorm_forward, args);
}

void rmsnorm_backward(Context& ctx, const RmsNormBackward& args) {
  check_rows(args.x, args.weight, args.groups, args.eps);
  for (const Tensor& t : {args.dy, args.dx}) {
    SLUICE_ASSERT(t.shape == args.x.shape && (t.dtype == DType::f32 || t.dtype == args.x.dtype));
  }
  SLUICE_ASSERT(args.dx.data != args.dy.data || args.dx.empty() || args.dx.dtype == args.dy.dtype);
  SLUICE_DISPATCH(ctx, rmsnorm_backward, args);
}

}  // namespace sluice
