#include "ops/linear/linear.h"

namespace sluice {

namespace {

bool is_operand(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

int64_t check_adapter(const Weight& weight, const Tensor& lora_a, const Tensor& lora_b, const Dropout& dropout) {
  SLUICE_ASSERT(lora_a.empty() == lora_b.empty());
  if (lora_a.empty()) return 0;
  const int64_t R = lora_a.shape[0];
  SLUICE_ASSERT((lora_a.shape == Shape{R, weight.cols} && lora_a.dtype == DType::f32));
  SLUICE_ASSERT((lora_b.shape == Shape{weight.rows, R} && lora_b.dtype == DType::f32));
  SLUICE_ASSERT(dropout.p >= 0 && dropout.p < 1);
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
  check_adapter(w, args.lora_a, args.lora_b, args.dropout);
  if (N == 0) return;
  SLUICE_DISPATCH(ctx, linear_forward, args);
}

void linear_backward(Context& ctx, const LinearBackward& args) {
  const Weight& w = args.weight;
  const int64_t N = args.dy.shape[0];
  SLUICE_ASSERT(is_operand(args.dy.dtype) && (args.dy.shape == Shape{N, w.rows}));
  SLUICE_ASSERT(args.dx.empty() ||
                (args.dx.shape == Shape{N, w.cols} && (args.dx.dtype == DType::f32 || args.dx.dtype == args.dy.dtype)));
  const int64_t R = check_adapter(w, args.lora_a, args.lora_b, args.dropout);
  if (R > 0) {
    SLUICE_ASSERT((args.x.shape == Shape{N, w.cols} && args.x.dtype == args.dy.dtype));
    SLUICE_ASSERT((args.dlora_a.shape == Shape{R, w.cols} && args.dlora_a.dtype == DType::f32));
    SLUICE_ASSERT((args.dlora_b.shape == Shape{w.rows, R} && args.dlora_b.dtype == DType::f32));
  }
  if (N == 0) return;
  SLUICE_DISPATCH(ctx, linear_backward, args);
}

}  // namespace sluice
