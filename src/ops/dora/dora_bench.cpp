#include <benchmark/benchmark.h>

#include <vector>

#include "ops/dora/dora.h"

namespace sluice {
namespace {

// The norms of one projection of SmolLM2-135M at rank 16, which a run forms once after each update, on all threads.
void row_norms(benchmark::State& state) {
  const int64_t in = state.range(0), out = state.range(1), R = 16;
  Arena arena = Arena::allocate(Device::cpu(), 64 << 20);
  ThreadPool pool{ThreadPool::default_threads()};
  Context ctx{.arena = arena, .pool = pool};
  Weight weight{.format = WeightFormat::q4_1, .rows = out, .cols = in};
  const std::vector<std::byte> stored(static_cast<size_t>(out * weight.row_bytes()), std::byte{0x11});
  weight.data = stored.data();
  const Tensor a = arena.tensor(DType::f32, {R, in}), b = arena.tensor(DType::f32, {out, R}),
               norm = arena.tensor(DType::f32, {out});
  for (auto _ : state) adapted_row_norms(ctx, {.weight = weight, .lora_a = a, .lora_b = b, .norm = norm});
}

BENCHMARK(row_norms)
    ->ArgNames({"in", "out"})
    ->Args({576, 576})
    ->Args({576, 1536})
    ->Args({1536, 576})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace sluice
