#include <benchmark/benchmark.h>

#include "ops/rope/rope.h"

namespace sluice {
namespace {

struct Setting {
  Arena data = Arena::allocate(Device::cpu(), int64_t{128} << 20);
  Arena arena = Arena::allocate(Device::cpu(), int64_t{1} << 20);
  ThreadPool pool{ThreadPool::default_threads()};
  Context ctx{.arena = arena, .pool = pool};

  Tensor tensor(DType dtype, Shape shape) {
    Tensor t = data.tensor(dtype, shape);
    for (int64_t i = 0; i < t.numel(); ++i) {
      const float value = static_cast<float>(i % 977 - 488) / 256;
      if (dtype == DType::bf16) t.as<bf16>()[i] = bf16(value);
      else t.as<float>()[i] = value;
    }
    return t;
  }
};

// Nine heads of 64, as SmolLM2's queries; bytes are those of x and y.
void rotate(benchmark::State& state) {
  Setting s;
  const int64_t N = state.range(0), D = 64, width = 9 * D;
  const Tensor x = s.tensor(DType::bf16, {N, width}), table = s.tensor(DType::f32, {N, D});
  for (auto _ : state) rope(s.ctx, {.x = x, .table = table, .y = x, .head_dim = D});
  state.SetBytesProcessed(state.iterations() * N * width * 4);
}

void make_table(benchmark::State& state) {
  Setting s;
  const int64_t N = state.range(0), D = 64;
  double frequencies[D / 2];
  for (int64_t i = 0; i < D / 2; ++i) frequencies[i] = 1.0 / static_cast<double>(i + 1);
  const Tensor positions = s.data.tensor(DType::i32, {N}), table = s.tensor(DType::f32, {N, D});
  for (int64_t n = 0; n < N; ++n) positions.as<int32_t>()[n] = static_cast<int32_t>(n);
  for (auto _ : state) rope_table(s.ctx, {.frequencies = frequencies, .positions = positions, .table = table});
  state.SetItemsProcessed(state.iterations() * N);
}

BENCHMARK(rotate)->Name("rope/rotate")->Arg(1)->Arg(4096)->UseRealTime();
BENCHMARK(make_table)->Name("rope/table")->Arg(4096)->UseRealTime();

}  // namespace
}  // namespace sluice
