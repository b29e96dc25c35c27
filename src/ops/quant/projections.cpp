#include "ops/quant/projections.h"

#include <algorithm>

#include "core/error.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rows/rows.h"

namespace sluice {

namespace {

struct Scratch {
  Tensor normed, gate, product;
  Scratch(ArenaScope& scope, const Projections& args) {
    int64_t widest = 0;
    for (const Projections::Part& part : args.parts) widest = std::max(widest, part.weight->rows);
    const Shape shape{args.x.shape[0], widest};
    if (args.norm) normed = scope.like(args.x);
    if (args.gate) gate = scope.tensor(DType::f32, shape);
    if (args.gate || args.write == Write::add) product = scope.tensor(DType::f32, shape);
  }
};

void normalise(Context& ctx, const Projections& args, Tensor y) {
  rmsnorm_forward(ctx, {.x = args.x,
                        .weight = args.norm->weight,
                        .residual = {},
                        .table = {},
                        .y = y,
                        .eps = args.norm->eps,
                        .offset = args.norm->offset});
}

void by_ops(Context& ctx, const Projections& args, const Scratch& scratch) {
  const Tensor x = args.norm ? scratch.normed : args.x;
  if (args.norm) normalise(ctx, args, x);
  const bool add = args.write == Write::add;
  for (const Projections::Part& part : args.parts) {
    Tensor y = part.y;
    if (args.gate) y = &part == args.parts.data() ? scratch.gate : scratch.product;
    else if (add) y = scratch.product, y.shape = part.y.shape;
    weight_matvec(ctx, {.weight = *part.weight, .x = x, .y = y});
    if (!args.gate && add) scale_into(ctx, {.x = y, .y = part.y, .write = Write::add});
  }
  if (!args.gate) return;
  const Tensor to = args.parts[0].y, y = add ? scratch.product : to;
  gated_forward(ctx, {.activation = *args.gate, .a = scratch.gate, .b = scratch.product, .y = y});
  if (add) scale_into(ctx, {.x = y, .y = to, .write = Write::add});
}

bool is_alike(const Weight& a, const Weight& b) {
  return a.format == b.format && a.bits == b.bits && a.group_size == b.group_size && a.scale_dtype == b.scale_dtype &&
         lies_in_tiles(a) == lies_in_tiles(b);
}

// On CUDA: neighbours that are alike by one kernel.
void by_kernels(Context& ctx, const Projections& args, const Scratch& scratch) {
  const std::vector<Projections::Part>& parts = args.parts;
  if (args.gate && !is_alike(*parts[0].weight, *parts[1].weight)) return by_ops(ctx, args, scratch);
  static const auto entry = cuda_entry<Projections>("projections");
  Projections run = args;
  const auto in_tiles = [](const Projections::Part& part) { return lies_in_tiles(*part.weight); };
  if (args.norm && !std::all_of(parts.begin(), parts.end(), in_tiles)) {
    normalise(ctx, args, scratch.normed);
    run.x = scratch.normed;
    run.norm.reset();
  }
  for (auto begin = parts.begin(), end = begin; begin != parts.end(); begin = end) {
    while (end != parts.end() && end - begin < most_parts_of_kernel && is_alike(*begin->weight, *end->weight)) ++end;
    run.parts.assign(begin, end);
    CudaOp op(ctx, "projections");
    entry(ctx, run);
    op.done();
  }
}

}  // namespace

void projections(Context& ctx, const Projections& args) {
  SLUICE_ASSERT(args.x.shape.rank() == 2 && args.x.dtype == DType::f32 && !args.parts.empty());
  const int64_t N = args.x.shape[0], in = args.x.shape[1];
  SLUICE_ASSERT(!args.gate || (args.parts.size() == 2 && args.parts[0].weight->rows == args.parts[1].weight->rows));
  SLUICE_ASSERT(!args.norm || args.norm->weight.empty() ||
                (args.norm->weight.shape == Shape{in} && args.norm->weight.dtype == DType::f32));
  for (const Projections::Part& part : args.parts) {
    check_weight(*part.weight);
    SLUICE_ASSERT(part.weight->cols == in && part.weight->rows > 0);
    if (args.gate && &part != args.parts.data()) continue;
    SLUICE_ASSERT((part.y.dtype == DType::f32 && part.y.shape == Shape{N, part.weight->rows}));
  }
  ArenaScope scope(ctx.arena);
  const Scratch scratch(scope, args);  // of either way, so that a plan does not depend on where the weights lie
  if (ctx.device.type == DeviceType::cuda) by_kernels(ctx, args, scratch);
  else by_ops(ctx, args, scratch);
}

}  // namespace sluice
