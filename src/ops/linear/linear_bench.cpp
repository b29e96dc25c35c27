#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "ops/gemm/gemm.h"
#include "ops/linear/linear.h"

namespace sluice {
namespace {

// The projections of SmolLM2-135M with rank 16, on all threads. `plain_*` rows are the bound: only the products x W^T and dy W with a
// bf16 weight as it lies, by oneDNN on row chunks. "of plain" is what to look at: time against that of the plain row.
enum class Pass { forward, backward };

struct Bench {
  int64_t N, in, out, R = 16;
  Arena arena = Arena::allocate(Device::cpu(), 256 << 20);
  ThreadPool pool{ThreadPool::default_threads()};
  Context ctx{.arena = arena, .pool = pool};
  std::vector<std::byte> stored;
  Weight weight;
  Tensor x, y, dx, a, b, da, db, m, norm, dm;  // the last three: DoRA

  Bench(const benchmark::State& state, WeightFormat format, bool dora = false)
      : N(state.range(0)), in(state.range(1)), out(state.range(2)) {
    weight = {.format = format, .rows = out, .cols = in};
    stored.assign(static_cast<size_t>(out * weight.row_bytes()), std::byte{0x11});
    weight.data = stored.data();
    x = arena.tensor(DType::bf16, {N, in}), dx = arena.tensor(DType::bf16, {N, in}),
    y = arena.tensor(DType::bf16, {N, out});
    a = arena.tensor(DType::f32, {R, in}), da = arena.tensor(DType::f32, {R, in});
    b = arena.tensor(DType::f32, {out, R}), db = arena.tensor(DType::f32, {out, R});
    if (!dora) return;
    m = arena.tensor(DType::f32, {out}), norm = arena.tensor(DType::f32, {out}), dm = arena.tensor(DType::f32, {out});
    std::fill_n(m.as<float>(), out, 1.0F);
    std::fill_n(norm.as<float>(), out, 2.0F);
  }

  void run(Pass pass) {
    if (pass == Pass::forward) {
      linear_forward(ctx, {.weight = weight, .lora_a = a, .lora_b = b, .magnitude = m, .norm = norm, .x = x, .y = y});
    } else {
      linear_backward(ctx, {.weight = weight,
                            .lora_a = a,
                            .lora_b = b,
                            .magnitude = m,
                            .norm = norm,
                            .x = x,
                            .dy = y,
                            .dx = dx,
                            .dlora_a = da,
                            .dlora_b = db,
                            .dmagnitude = dm});
    }
  }

  // Whole row chunks against the whole weight; column halves when there are fewer chunks than threads.
  void run_plain(Pass pass) {
    const bool forward = pass == Pass::forward;
    const int64_t n = forward ? out : in, k = forward ? in : out;
    const int64_t chunks = (N + row_chunk - 1) / row_chunk, halves = chunks < pool.num_threads() ? 2 : 1;
    ArenaScope scope(arena);
    const auto gemm = [&](int64_t item) {
      const int64_t first = item / halves * row_chunk, col = item % halves * (n / halves);
      return Gemm{.m = std::min(row_chunk, N - first),
                  .n = n / halves,
                  .k = k,
                  .a = (forward ? x : y).as<bf16>() + first * k,
                  .lda = k,
                  .b = stored.data() + (forward ? col * k : col) * 2,
                  .ldb = forward ? k : n,
                  .transpose_b = forward,
                  .c_dtype = DType::bf16,
                  .c = (forward ? y : dx).as<bf16>() + first * n + col,
                  .ldc = n};
    };
    const int64_t bytes = gemm_scratch_bytes(ctx, gemm(0));
    std::byte* scratch = arena.bytes(bytes * pool.num_threads());
    pool.parallel_for(chunks * halves, [&](int64_t item, int worker) {
      gemm_on_this_thread(ctx, gemm(item), scratch + worker * bytes);
    });
  }
};

void report(benchmark::State& state) {
  const double operations = 2.0 * static_cast<double>(state.range(0) * state.range(1) * state.range(2));
  state.counters["GFLOP/s"] =
      benchmark::Counter(operations / 1e9 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void plain(benchmark::State& state, Pass pass) {
  Bench bench(state, WeightFormat::bf16);
  for (auto _ : state) bench.run_plain(pass);
  report(state);
}

// GFLOP/s count the base product only, so that rows compare.
void adapted(benchmark::State& state, Pass pass, WeightFormat format, bool dora = false) {
  Bench bench(state, format, dora);
  for (auto _ : state) bench.run(pass);
  report(state);
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "in", "out"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (int64_t rows : {256, 1024, 4096}) {
    for (auto [in, out] : {std::pair<int64_t, int64_t>{576, 576}, {576, 192}, {576, 1536}, {1536, 576}})
      bench->Args({rows, in, out});
  }
}

BENCHMARK_CAPTURE(plain, forward, Pass::forward)->Apply(shapes);
BENCHMARK_CAPTURE(adapted, forward_bf16, Pass::forward, WeightFormat::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(adapted, forward_q4_1, Pass::forward, WeightFormat::q4_1)->Apply(shapes);
BENCHMARK_CAPTURE(adapted, forward_q8_0, Pass::forward, WeightFormat::q8_0)->Apply(shapes);
BENCHMARK_CAPTURE(adapted, forward_q4_1_dora, Pass::forward, WeightFormat::q4_1, true)->Apply(shapes);
BENCHMARK_CAPTURE(plain, backward, Pass::backward)->Apply(shapes);
BENCHMARK_CAPTURE(adapted, backward_bf16, Pass::backward, WeightFormat::bf16)->Apply(shapes);
BENCHMARK_CAPTURE(adapted, backward_q4_1, Pass::backward, WeightFormat::q4_1)->Apply(shapes);
BENCHMARK_CAPTURE(adapted, backward_q8_0, Pass::backward, WeightFormat::q8_0)->Apply(shapes);
BENCHMARK_CAPTURE(adapted, backward_q4_1_dora, Pass::backward, WeightFormat::q4_1, true)->Apply(shapes);

}  // namespace
}  // namespace sluice
