#include <benchmark/benchmark.h>

#include "ops/rmsnorm/rmsnorm.h"
#include "support/bench_setting.h"

namespace sluice {
namespace {

using bench::Setting;

// SmolLM2's width; bytes are those that must move: x and y, or x, dy and dx.
void forward(benchmark::State& state) {
  Setting s;
  const int64_t N = state.range(0), C = 576;
  const Tensor x = s.tensor(DType::bf16, {N, C}), weight = s.tensor(DType::f32, {C}), y = s.tensor(DType::bf16, {N, C});
  for (auto _ : state) rmsnorm_forward(s.ctx, {.x = x, .weight = weight, .y = y});
  state.SetBytesProcessed(state.iterations() * N * C * 4);
}

void backward(benchmark::State& state) {
  Setting s;
  const int64_t N = state.range(0), C = 576;
  const Tensor x = s.tensor(DType::bf16, {N, C}), weight = s.tensor(DType::f32, {C}),
               dy = s.tensor(DType::bf16, {N, C});
  const Tensor dx = s.tensor(DType::bf16, {N, C});
  for (auto _ : state) rmsnorm_backward(s.ctx, {.x = x, .weight = weight, .dy = dy, .dx = dx});
  state.SetBytesProcessed(state.iterations() * N * C * 6);
}

BENCHMARK(forward)->Name("rmsnorm/forward")->Arg(1)->Arg(4096)->UseRealTime();
BENCHMARK(backward)->Name("rmsnorm/backward")->Arg(4096)->UseRealTime();

}  // namespace
}  // namespace sluice
