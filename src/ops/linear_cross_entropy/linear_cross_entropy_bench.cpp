// The head at SmolLM2's size: vocabulary 49152, width 576. Useful operations are 4 M C V for a loss with its gradient
// and 2 M C V for a loss alone; "gemm" is h W^T of the same size by the same products, nothing else.
//
//   op_bench --benchmark_filter=linear_cross_entropy --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/gemm/gemm.h"
#include "ops/linear_cross_entropy/linear_cross_entropy.h"

namespace sluice {
namespace {

constexpr int64_t V = 49152, C = 576;

struct Setting {
  std::vector<std::byte> bytes;
  Weight weight;
  Arena data = Arena::allocate(Device::cpu(), int64_t{16} << 20);
  Arena arena = Arena::allocate(Device::cpu(), int64_t{512} << 20);
  ThreadPool pool{ThreadPool::default_threads()};
  Context ctx{.arena = arena, .pool = pool};
  Tensor h, dh, logp, lse, g;
  std::vector<int32_t> target_values;

  Setting(int64_t M, WeightFormat format)
      : h(data.tensor(DType::bf16, {M, C})),
        dh(data.tensor(DType::bf16, {M, C})),
        logp(data.tensor(DType::f32, {M})),
        lse(data.tensor(DType::f32, {M})),
        g(data.tensor(DType::f32, {M})) {
    weight = {.format = format, .rows = V, .cols = C};
    bytes.resize(static_cast<size_t>(V * C * block_bytes(format) / block_cols(format)));
    std::mt19937 engine(2);
    if (format == WeightFormat::q8_0) {
      for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
        const uint32_t word = static_cast<uint32_t>(engine());
        std::memcpy(&bytes[i], &word, 4);
      }
      const uint16_t scale = 0x0c00;  // 2^-12
      for (size_t i = 0; i < bytes.size(); i += 34) std::memcpy(&bytes[i], &scale, 2);
    } else {
      for (size_t i = 0; i < bytes.size(); i += 2) {
        const bf16 value(static_cast<float>(static_cast<int>(engine() % 256) - 128) * 0x1p-12F);
        std::memcpy(&bytes[i], &value, 2);
      }
    }
    weight.data = bytes.data();
    for (int64_t m = 0; m < M; ++m) target_values.push_back(static_cast<int32_t>(engine() % V));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < M * C; ++i) h.as<bf16>()[i] = bf16(normal(engine));
    for (int64_t m = 0; m < M; ++m) g.as<float>()[m] = 1.0F / static_cast<float>(M);
  }
  Tensor targets() { return {target_values.data(), DType::i32, {static_cast<int64_t>(target_values.size())}}; }
};

void count(benchmark::State& state, int64_t operations) {
  state.counters["FLOP/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * operations), benchmark::Counter::kIsRate);
}

// The panels of by_rows (a run of 512 columns is a product), without dequantising, softmax or gradient.
void gemm(benchmark::State& state) {
  const int64_t M = state.range(0);
  Setting s(M, WeightFormat::bf16);
  const auto product = [&](int64_t column, float* z) {
    return Gemm{.m = std::min<int64_t>(M, 256),
                .n = 512,
                .k = C,
                .a = s.h.data,
                .lda = C,
                .b = s.bytes.data() + column * C * 2,
                .ldb = C,
                .transpose_b = true,
                .c = z,
                .ldc = 512};
  };
  const int64_t scratch = gemm_scratch_bytes(s.ctx, product(0, nullptr)) + 256 * 512 * 4;
  std::byte* memory = s.arena.array<std::byte>(scratch * s.pool.num_threads());
  for (auto _ : state) {
    s.pool.parallel_for(V / 512, [&](int64_t i, int worker) {
      std::byte* mine = memory + worker * scratch;
      for (int64_t m = 0; m < M; m += 256)
        gemm_on_this_thread(s.ctx, product(i * 512, reinterpret_cast<float*>(mine)), mine + 256 * 512 * 4);
    });
  }
  count(state, 2 * M * C * V);
}

void by_rows(benchmark::State& state, WeightFormat format, bool gradient, float softcap) {
  Setting s(state.range(0), format);
  for (auto _ : state) {
    linear_cross_entropy_by_rows(s.ctx, {.weight = s.weight,
                                         .h = s.h,
                                         .targets = s.targets(),
                                         .softcap = softcap,
                                         .rows_per_chunk = state.range(1),
                                         .logp = s.logp,
                                         .lse = s.lse,
                                         .dh = gradient ? s.dh : Tensor{}});
  }
  count(state, (gradient ? 4 : 2) * state.range(0) * C * V);
}

void by_blocks(benchmark::State& state, WeightFormat format) {
  Setting s(state.range(0), format);
  for (auto _ : state) {
    linear_cross_entropy_by_blocks(
        s.ctx, {.weight = s.weight, .h = s.h, .targets = s.targets(), .logp = s.logp, .lse = s.lse});
    linear_cross_entropy_by_blocks_backward(
        s.ctx, {.weight = s.weight, .h = s.h, .targets = s.targets(), .lse = s.lse, .g = s.g, .dh = s.dh});
  }
  count(state, 4 * state.range(0) * C * V);
}

void logits(benchmark::State& state, WeightFormat format) {
  Setting s(state.range(0), format);
  const Tensor z = s.data.tensor(DType::f32, {state.range(0), V});
  for (auto _ : state) head_logits(s.ctx, {.weight = s.weight, .h = s.h, .logits = z});
  state.SetBytesProcessed(state.iterations() * s.weight.size_bytes());
}

#define SLUICE_HEAD_BENCH(name, function, ...) \
  BENCHMARK_CAPTURE(function, head, __VA_ARGS__)->Name(name)->UseRealTime()->Unit(benchmark::kMillisecond)

BENCHMARK(gemm)->Name("linear_cross_entropy/gemm")->Arg(256)->Arg(1024)->UseRealTime()->Unit(benchmark::kMillisecond);
// Arguments: rows; rows per chunk.
SLUICE_HEAD_BENCH("linear_cross_entropy/by_rows/bf16", by_rows, WeightFormat::bf16, true, 0.0F)
    ->ArgsProduct({{256, 1024}, {128, 256}});
SLUICE_HEAD_BENCH("linear_cross_entropy/by_rows/q8_0", by_rows, WeightFormat::q8_0, true, 0.0F)
    ->ArgsProduct({{256, 1024}, {128, 256}});
SLUICE_HEAD_BENCH("linear_cross_entropy/by_rows/q8_0/softcap", by_rows, WeightFormat::q8_0, true, 30.0F)
    ->Args({1024, 128});
SLUICE_HEAD_BENCH("linear_cross_entropy/by_rows/q8_0/evaluation", by_rows, WeightFormat::q8_0, false, 0.0F)
    ->Args({1024, 128});
SLUICE_HEAD_BENCH("linear_cross_entropy/by_blocks/bf16", by_blocks, WeightFormat::bf16)->Arg(1024);
SLUICE_HEAD_BENCH("linear_cross_entropy/by_blocks/q8_0", by_blocks, WeightFormat::q8_0)->Arg(1024);
SLUICE_HEAD_BENCH("linear_cross_entropy/logits/q8_0", logits, WeightFormat::q8_0)->Arg(1)->Arg(16);

}  // namespace
}  // namespace sluice
