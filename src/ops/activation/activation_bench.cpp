#include <benchmark/benchmark.h>

#include "ops/activation/activation.h"
#include "support/bench_setting.h"

namespace sluice {
namespace {

using bench::Setting;

// SmolLM2's MLP; bytes are those that must move: a, b and y, or a, b, dy, da and db.
void forward(benchmark::State& state, Activation activation) {
  Setting s;
  const Shape shape{state.range(0), 1536};
  const Tensor a = s.tensor(DType::bf16, shape), b = s.tensor(DType::bf16, shape), y = s.tensor(DType::bf16, shape);
  for (auto _ : state) gated_forward(s.ctx, {.activation = activation, .a = a, .b = b, .y = y});
  state.SetBytesProcessed(state.iterations() * shape.numel() * 6);
}

void backward(benchmark::State& state, Activation activation) {
  Setting s;
  const Shape shape{state.range(0), 1536};
  const Tensor a = s.tensor(DType::bf16, shape), b = s.tensor(DType::bf16, shape), dy = s.tensor(DType::bf16, shape);
  const Tensor da = s.tensor(DType::bf16, shape), db = s.tensor(DType::bf16, shape);
  for (auto _ : state) gated_backward(s.ctx, {.activation = activation, .a = a, .b = b, .dy = dy, .da = da, .db = db});
  state.SetBytesProcessed(state.iterations() * shape.numel() * 10);
}

BENCHMARK_CAPTURE(forward, silu, Activation::silu)->Name("activation/silu/forward")->Arg(1024)->UseRealTime();
BENCHMARK_CAPTURE(backward, silu, Activation::silu)->Name("activation/silu/backward")->Arg(1024)->UseRealTime();
BENCHMARK_CAPTURE(forward, gelu, Activation::gelu_tanh)->Name("activation/gelu_tanh/forward")->Arg(1024)->UseRealTime();
BENCHMARK_CAPTURE(backward, gelu, Activation::gelu_tanh)
    ->Name("activation/gelu_tanh/backward")
    ->Arg(1024)
    ->UseRealTime();

}  // namespace
}  // namespace sluice
