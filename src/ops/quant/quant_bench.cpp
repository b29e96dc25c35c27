// Throughput of quantised bytes and of weights. The weights are copied until they exceed every cache, and the calls walk through the
// copies: in decoding, too, each matrix comes from memory once per token.
#include <benchmark/benchmark.h>

#include <memory>

#include "ops/quant/quant.h"
#include "support/weights.h"

namespace sluice {
namespace {

constexpr int64_t beyond_caches = 128 << 20;

struct Setting {
  std::unique_ptr<test::RandomWeight> random;
  std::vector<std::byte> copies;
  std::vector<Weight> weights;
  Arena arena = Arena::allocate(Device::cpu(), 16 << 20);
  ThreadPool pool;

  Setting(const test::WeightKind& kind, int64_t rows, int64_t cols, int threads) : pool(threads) {
    const int64_t some_rows = std::min<int64_t>(rows, 64);  // repeated: random bytes take long to draw
    random = std::make_unique<test::RandomWeight>(kind, some_rows, cols, 1);
    Weight w = random->weight;
    w.rows = rows;
    const int64_t count = beyond_caches / w.size_bytes() + 1;
    copies.resize(static_cast<size_t>(count * w.size_bytes()));
    std::byte* p = copies.data();
    const auto repeat = [&](const std::vector<std::byte>& source, int64_t bytes) {
      const std::byte* begin = p;
      for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(source.size())) {
        std::memcpy(p + at, source.data(),
                    static_cast<size_t>(std::min(bytes - at, static_cast<int64_t>(source.size()))));
      }
      p += bytes;
      return begin;
    };
    for (int64_t i = 0; i < count; ++i) {
      w.data = repeat(random->data, rows * w.row_bytes());
      const int64_t scale_bytes = (w.size_bytes() - rows * w.row_bytes()) / 2;
      if (scale_bytes > 0) {
        w.scales = repeat(random->scales, scale_bytes);
        w.biases = repeat(random->biases, scale_bytes);
      }
      weights.push_back(w);
    }
  }

  void count(benchmark::State& state) const {
    const Weight& w = weights[0];
    state.SetBytesProcessed(state.iterations() * w.size_bytes());
    state.counters["weights/s"] =
        benchmark::Counter(static_cast<double>(state.iterations() * w.rows * w.cols), benchmark::Counter::kIsRate);
  }
};

void matvec(benchmark::State& state, const test::WeightKind& kind, int64_t rows, int64_t cols, int64_t N, int threads) {
  Setting s(kind, rows, cols, threads);
  Context ctx = {.arena = s.arena, .pool = s.pool};
  std::vector<float> x(static_cast<size_t>(N * cols), 0.5F), y(static_cast<size_t>(N * rows));
  const Tensor xt = {.data = x.data(), .dtype = DType::f32, .shape = {N, cols}};
  const Tensor yt = {.data = y.data(), .dtype = DType::f32, .shape = {N, rows}};
  size_t i = 0;
  for (auto _ : state) weight_matvec(ctx, {.weight = s.weights[i++ % s.weights.size()], .x = xt, .y = yt});
  s.count(state);
}

void dequantize_panel(benchmark::State& state, const test::WeightKind& kind, int threads) {
  const int64_t rows = 64, cols = 1536;  // a panel that stays in the second-level cache
  Setting s(kind, rows, cols, threads);
  Context ctx = {.arena = s.arena, .pool = s.pool};
  std::vector<bf16> out(static_cast<size_t>(rows * cols));
  const Tensor panel = {.data = out.data(), .dtype = DType::bf16, .shape = {rows, cols}};
  size_t i = 0;
  for (auto _ : state) dequantize(ctx, {.weight = s.weights[i++ % s.weights.size()], .out = panel});
  s.count(state);
}

std::string tag(const test::WeightKind& kind) {
  std::string name(to_string(kind.format));
  if (kind.format == WeightFormat::affine) name += std::to_string(kind.bits) + "g" + std::to_string(kind.group_size);
  return name;
}

const int registered = [] {
  for (const test::WeightKind& kind : test::all_weight_kinds()) {
    if (kind.format == WeightFormat::affine && kind.group_size != 64) continue;
    for (int threads : {1, 2}) {
      const std::string suffix = "/threads:" + std::to_string(threads);
      auto* d =
          benchmark::RegisterBenchmark(("dequantize/" + tag(kind) + suffix).c_str(), dequantize_panel, kind, threads);
      if (threads > 1) d->UseRealTime();
      for (auto [rows, cols] :
           {std::pair<int64_t, int64_t>{576, 576}, {1536, 576}, {576, 1536}, {49152, 576}, {4096, 14336}}) {
        if (cols % kind.column_multiple() != 0) continue;
        for (int64_t N : {1, 4, 16}) {
          const std::string shape = "/" + std::to_string(rows) + "x" + std::to_string(cols) + "/N:" + std::to_string(N);
          auto* b = benchmark::RegisterBenchmark(("weight_matvec/" + tag(kind) + shape + suffix).c_str(), matvec, kind,
                                                 rows, cols, N, threads);
          if (threads > 1) b->UseRealTime();
        }
      }
    }
  }
  return 0;
}();

}  // namespace
}  // namespace sluice
