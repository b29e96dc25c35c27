#include "ops/activation/activation.h"

namespace sluice {

namespace {

bool alike(const Tensor& t, const Tensor& other) { return t.shape == other.shape && t.dtype == other.dtype; }

}  // namespace

void gated_forward(Context& ctx, const GatedForward& args) {
  SLUICE_ASSERT(args.a.dtype == DType::f32 || args.a.dtype == DType::bf16);
  SLUICE_ASSERT(alike(args.b, args.a) && alike(args.y, args.a));
  SLUICE_DISPATCH(ctx, gated_forward, args);
}

void gated_backward(Context& ctx, const GatedBackward& args) {
  SLUICE_ASSERT(args.a.dtype == DType::f32 || args.a.dtype == DType::bf16);
  SLUICE_ASSERT(alike(args.b, args.a) && alike(args.dy, args.a) && alike(args.da, args.a));
  SLUICE_ASSERT(args.db.empty() || alike(args.db, args.a));
  SLUICE_ASSERT(args.db.empty() || args.db.data != args.da.data);
  SLUICE_DISPATCH(ctx, gated_backward, args);
}

}  // namespace sluice
