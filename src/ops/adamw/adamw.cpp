#include "ops/adamw/adamw.h"

namespace sluice {

void adamw(Context& ctx, const AdamW& args) {
  for (const Tensor* t : {&args.p, &args.m, &args.v, &args.g}) {
    SLUICE_ASSERT(t->dtype == DType::f32 && t->numel() == args.p.numel());
  }
  SLUICE_ASSERT(args.t >= 1 && args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1);
  if (args.p.numel() == 0) return;
  SLUICE_DISPATCH(ctx, adamw, args);
}

void sum_of_squares(Context& ctx, const SumOfSquares& args) {
  SLUICE_ASSERT(args.g.dtype == DType::f32 && args.result != nullptr);
  if (args.g.numel() == 0) return;
  SLUICE_DISPATCH(ctx, sum_of_squares, args);
}

}  // namespace sluice
