#include <benchmark/benchmark.h>

#include "ops/rope/rope.h"
#include "support/bench_setting.h"

namespace sluice {
namespace {

using bench::Setting;

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
