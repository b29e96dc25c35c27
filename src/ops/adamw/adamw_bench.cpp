#include <benchmark/benchmark.h>

#include "ops/adamw/adamw.h"

namespace sluice {
namespace {

void adamw(benchmark::State& state) {
  const int64_t n = state.range(0);
  Arena arena = Arena::allocate(Device::cpu(), 20 * n + (1 << 16));
  ThreadPool pool(ThreadPool::default_threads());
  Context ctx{.arena = arena, .pool = pool};
  const Tensor p = arena.tensor(DType::f32, {n}), m = arena.tensor(DType::f32, {n}), v = arena.tensor(DType::f32, {n}),
               g = arena.tensor(DType::f32, {n});
  for (auto _ : state) {
    double norm[2] = {};
    sum_of_squares(ctx, {.g = g, .result = norm});
    adamw(ctx, {.p = p, .m = m, .v = v, .g = g, .lr = 1e-3F});
  }
  state.SetBytesProcessed(state.iterations() * n * 32);
}
BENCHMARK(adamw)->Arg(4'884'480)->Unit(benchmark::kMillisecond);  // SmolLM2-135M, rank 16 on every projection

}  // namespace
}  // namespace sluice
