#include "ops/linear/linear.h"

namespace sluice {

namespace {

bool is_operand(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

template <class Args>
int64_t check_adapter(const Args& args) {
  const Weight& weight = args.weight;
  const Tensor &a = args.lora_a, &b = args.lora_b, &magnitude = args.magnitude, &norm = args.norm;
  SLUICE_ASSERT(a.empty() == b.empty() && magnitude.empty() == norm.empty());
  if (a.empty()) {
    SLUICE_ASSERT(magnitude.empty() && args.xa.empty());
    return 0;
  }
  const int64_t R = a.shape[0];
  SLUICE_ASSERT((a.shape == Shape{R, weight.cols} && a.dtype == DType::f32));
  SLUICE_ASSERT((b.shape == Shape{weight.rows, R} && b.dtype == DType::f32));
  SLUICE_ASSERT(args.dropout.p >= 0 && args.dropout.p < 1);
  SLUICE_ASSERT(args.xa.empty() ||
                (args.xa.shape == Shape{args.x.shape[0], xa_columns(R)} && args.xa.dtype == args.x.dtype));
  if (!magnitude.empty()) {
    SLUICE_ASSERT((magnitude.shape == Shape{weight.rows} && magnitude.dtype == DType::f32));
    SLUICE_ASSERT((norm.shape == Shape{weight.rows} && norm.dtype == DType::f32));
  }
  return R;
}

}  // namespace

void linear_forward(Context& ctx, const LinearForward& args) {
  const Weight& w = args.weight;
  const int64_t N = args.x.shape[0];
  SLUICE_ASSERT(is_operand(args.x.dtype) && (args.x.shape == Shape{N, w.cols}));
  SLUICE_ASSERT((args.y.shape == Shape{N, w.rows} && args.y.dtype == args.x.dtype));
  SLUICE_ASSERT(args.residual.empty() || (args.residual.shape == args.y.shape && args.residual.dtype == args.y.dtype));
  SLUICE_ASSERT(args.bias.empty() || (args.bias.shape == Shape{w.rows} && args.bias.dtype == DType::f32));
  check_adapter(args);
  if (N == 0) return;
  SLUICE_DISPATCH(ctx, linear_forward, args);
}

void linear_backward(Context& ctx, const LinearBackward& args) {
  const Weight& w = args.weight;
  const int64_t N = args.dy.shape[0];
  SLUICE_ASSERT(is_operand(args.dy.dtype) && (args.dy.shape == Shape{N, w.rows}));
  SLUICE_ASSERT(args.dx.empty() ||
                (args.dx.shape == Shape{N, w.cols} && (args.dx.dtype == DType::f32 || args.dx.dtype == args.dy.dtype)));
  const int64_t R = check_adapter(args);
  if (R > 0) {
    SLUICE_ASSERT((args.x.shape == Shape{N, w.cols} && args.x.dtype == args.dy.dtype));
    SLUICE_ASSERT((args.dlora_a.shape == Shape{R, w.cols} && args.dlora_a.dtype == DType::f32));
    SLUICE_ASSERT((args.dlora_b.shape == Shape{w.rows, R} && args.dlora_b.dtype == DType::f32));
    SLUICE_ASSERT(args.magnitude.empty() ||
                  (args.dmagnitude.shape == Shape{w.rows} && args.dmagnitude.dtype == DType::f32));
  }
  if (N == 0) return;
  SLUICE_DISPATCH(ctx, linear_backward, args);
}

}  // namespace sluice
