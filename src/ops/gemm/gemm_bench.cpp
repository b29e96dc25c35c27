#include <benchmark/benchmark.h>

#include <vector>

#include "ops/gemm/gemm.h"

namespace sluice {
namespace {

// One thread; shapes of SmolLM2-135M by row chunks of 256, LoRA's thin products, tiles of attention.
void gemm(benchmark::State& state, DType dtype, bool transpose_a, bool transpose_b) {
  const int64_t m = state.range(0), n = state.range(1), k = state.range(2);
  Arena arena = Arena::allocate(Device::cpu(), 64 << 20);
  ThreadPool pool(1);
  Context ctx{.arena = arena, .pool = pool};
  const Tensor a = arena.tensor(dtype, {m, k}), b = arena.tensor(dtype, {k, n}), c = arena.tensor(DType::f32, {m, n});
  const Gemm args{.m = m,
                  .n = n,
                  .k = k,
                  .dtype = dtype,
                  .a = a.data,
                  .lda = transpose_a ? m : k,
                  .transpose_a = transpose_a,
                  .b = b.data,
                  .ldb = transpose_b ? k : n,
                  .transpose_b = transpose_b,
                  .c = c.data,
                  .ldc = n};
  std::byte* scratch = arena.bytes(gemm_scratch_bytes(ctx, args));
  for (auto _ : state) gemm_on_this_thread(ctx, args, scratch);
  const double operations = 2.0 * static_cast<double>(m * n * k) * static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(operations / 1e9, benchmark::Counter::kIsRate);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m", "n", "k"});
  for (auto [m, n, k] : {std::array<int64_t, 3>{256, 576, 576},
                         {256, 512, 1536},
                         {256, 16, 576},
                         {256, 576, 16},
                         {128, 64, 128},
                         {128, 128, 64},
                         {16, 512, 576},
                         {1, 512, 576}}) {
    bench->Args({m, n, k});
  }
}

BENCHMARK_CAPTURE(gemm, bf16_x_wt, DType::bf16, false, true)->Apply(shapes);
BENCHMARK_CAPTURE(gemm, bf16_x_w, DType::bf16, false, false)->Apply(shapes);
BENCHMARK_CAPTURE(gemm, bf16_xt_w, DType::bf16, true, false)->Apply(shapes);
BENCHMARK_CAPTURE(gemm, f32_x_wt, DType::f32, false, true)->Apply(shapes);

}  // namespace
}  // namespace sluice
