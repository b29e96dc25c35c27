#include "ops/dora/dora.h"

namespace sluice {

void adapted_row_norms(Context& ctx, const AdaptedRowNorms& args) {
  const Weight& w = args.weight;
  SLUICE_ASSERT((args.norm.shape == Shape{w.rows} && args.norm.dtype == DType::f32));
  SLUICE_ASSERT(args.lora_a.empty() == args.lora_b.empty());
  if (!args.lora_a.empty()) {
    const int64_t R = args.lora_a.shape[0];
    SLUICE_ASSERT((args.lora_a.shape == Shape{R, w.cols} && args.lora_a.dtype == DType::f32));
    SLUICE_ASSERT((args.lora_b.shape == Shape{w.rows, R} && args.lora_b.dtype == DType::f32));
  }
  SLUICE_DISPATCH(ctx, adapted_row_norms, args);
}

void apply_magnitude(Context& ctx, const ApplyMagnitude& args) {
  SLUICE_ASSERT(args.y.dtype == DType::f32 && args.y.shape.rank() == 2);
  const Shape out{args.y.shape[1]};
  SLUICE_ASSERT(args.magnitude.shape == out && args.magnitude.dtype == DType::f32);
  SLUICE_ASSERT(args.norm.shape == out && args.norm.dtype == DType::f32);
  SLUICE_DISPATCH(ctx, apply_magnitude, args);
}

}  // namespace sluice
