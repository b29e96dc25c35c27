// Rates over visible pairs: 4 D H operations a pair forward (two products), 10 D H backward (five). To be held against
// large_gemm, the rate of large products on the same threads in the same run.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/gemm/gemm.h"

namespace sluice {
namespace {

struct Job {
  int64_t num_heads, num_kv_heads, head_dim, num_tokens, window;
};
constexpr Job jobs[] = {
    {9, 3, 64, 1024, 0}, {9, 3, 64, 4096, 0}, {9, 3, 64, 8192, 0}, {8, 2, 256, 8192, 512}, {4, 1, 512, 4096, 0}};

void count(benchmark::State& state, double operations) {
  state.counters["GFLOP/s"] =
      benchmark::Counter(operations * static_cast<double>(state.iterations()) / 1e9, benchmark::Counter::kIsRate);
}

void fill_random(const Tensor& t, uint32_t state) {
  for (int64_t i = 0; i < t.numel(); ++i) {
    state = state * 1664525U + 1013904223U;
    t.as<bf16>()[i] = bf16(static_cast<float>(state >> 8) * 0x1p-23F - 1.0F);
  }
}

struct Setting {
  Job job;
  Spans spans;
  AttentionShape shape;
  Arena arena = Arena::allocate(Device::cpu(), int64_t{512} << 20);
  ThreadPool pool;
  Context ctx{.arena = arena, .pool = pool};
  Tensor q, k, v, o, lse, do_, dq, dk, dv;

  explicit Setting(benchmark::State& state)
      : job(jobs[state.range(0)]),
        spans(Spans::one(job.num_tokens)),
        shape{.num_heads = job.num_heads,
              .num_kv_heads = job.num_kv_heads,
              .head_dim = job.head_dim,
              .scale = 1.0F / std::sqrt(static_cast<float>(job.head_dim)),
              .window = job.window},
        pool(static_cast<int>(state.range(1))) {
    const Shape wide{job.num_tokens, job.num_heads * job.head_dim},
        narrow{job.num_tokens, job.num_kv_heads * job.head_dim};
    for (Tensor* t : {&q, &o, &do_}) *t = arena.tensor(DType::bf16, wide);
    for (Tensor* t : {&k, &v}) *t = arena.tensor(DType::bf16, narrow);
    dq = arena.tensor(DType::f32, wide), dk = arena.tensor(DType::f32, narrow), dv = arena.tensor(DType::f32, narrow);
    lse = arena.tensor(DType::f32, {job.num_tokens, job.num_heads});
    fill_random(q, 1), fill_random(k, 2), fill_random(v, 3), fill_random(do_, 4);
    for (const Tensor& t : {dk, dv}) std::memset(t.data, 0, static_cast<size_t>(t.size_bytes()));
    state.SetLabel(std::to_string(job.num_heads) + "/" + std::to_string(job.num_kv_heads) + " heads, D " +
                   std::to_string(job.head_dim) + ", " + std::to_string(job.num_tokens) + " tokens, window " +
                   std::to_string(job.window));
  }
  double pairs() const { return static_cast<double>(spans.visible_pairs(job.window) * job.num_heads * job.head_dim); }
  void forward() {
    attention_forward(ctx, {.shape = shape, .spans = spans, .q = q, .k = k, .v = v, .o = o, .lse = lse});
  }
  void backward() {
    attention_backward(ctx, {.shape = shape,
                             .spans = spans,
                             .q = q,
                             .k = k,
                             .v = v,
                             .o = o,
                             .lse = lse,
                             .do_ = do_,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv});
  }
};

void attention_forward_rate(benchmark::State& state) {
  Setting s(state);
  for (auto _ : state) s.forward();
  count(state, 4 * s.pairs());
}

void attention_backward_rate(benchmark::State& state) {
  Setting s(state);
  s.forward();
  for (auto _ : state) s.backward();
  count(state, 10 * s.pairs());
}

// One token each for B sequences of so many cached rows; bytes of cache read per second.
void attention_decode_rate(benchmark::State& state) {
  const int64_t num_heads = state.range(0), num_kv_heads = state.range(1), D = state.range(2), rows = state.range(3),
                B = state.range(4);
  Arena arena = Arena::allocate(Device::cpu(), int64_t{512} << 20);
  ThreadPool pool(static_cast<int>(state.range(5)));
  Context ctx{.arena = arena, .pool = pool};
  std::vector<AttentionDecode::Sequence> sequences;
  for (int64_t b = 0; b < B; ++b) {
    const Tensor k = arena.tensor(DType::bf16, {rows, num_kv_heads * D}),
                 v = arena.tensor(DType::bf16, {rows, num_kv_heads * D});
    fill_random(k, 1), fill_random(v, 2);
    sequences.push_back({.k = k, .v = v, .begin = 0, .end = rows});
  }
  const Tensor q = arena.tensor(DType::bf16, {B, num_heads * D}), o = arena.tensor(DType::bf16, {B, num_heads * D});
  fill_random(q, 3);
  const AttentionShape shape{.num_heads = num_heads, .num_kv_heads = num_kv_heads, .head_dim = D, .scale = 0.125F};
  for (auto _ : state) attention_decode(ctx, {.shape = shape, .sequences = sequences, .q = q, .o = o});
  const double bytes = static_cast<double>(B * 2 * sequences[0].k.size_bytes());
  state.counters["GB/s"] =
      benchmark::Counter(bytes * static_cast<double>(state.iterations()) / 1e9, benchmark::Counter::kIsRate);
}

// Each thread multiplies 1024 x 1024 matrices.
void large_gemm(benchmark::State& state) {
  constexpr int64_t n = 1024;
  const auto threads = static_cast<int>(state.range(0));
  Arena arena = Arena::allocate(Device::cpu(), threads * (int64_t{16} << 20));
  ThreadPool pool(threads);
  Context ctx{.arena = arena, .pool = pool};
  std::vector<Gemm> products;
  std::vector<std::byte*> scratch;
  for (int i = 0; i < threads; ++i) {
    const Tensor a = arena.tensor(DType::bf16, {n, n}), b = arena.tensor(DType::bf16, {n, n}),
                 c = arena.tensor(DType::f32, {n, n});
    fill_random(a, 1), fill_random(b, 2);
    products.push_back({.m = n,
                        .n = n,
                        .k = n,
                        .a = a.data,
                        .lda = n,
                        .b = b.data,
                        .ldb = n,
                        .transpose_b = true,
                        .c = c.data,
                        .ldc = n});
    scratch.push_back(arena.bytes(gemm_scratch_bytes(ctx, products.back())));
  }
  for (auto _ : state) {
    pool.parallel_for(threads, [&](int64_t i, int) {
      gemm_on_this_thread(ctx, products[static_cast<size_t>(i)], scratch[static_cast<size_t>(i)]);
    });
  }
  count(state, 2.0 * static_cast<double>(n * n * n * threads));
}

void rows(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"job", "threads"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (int64_t threads : {1, 2}) {
    for (int64_t job = 0; job < static_cast<int64_t>(std::size(jobs)); ++job) bench->Args({job, threads});
  }
}

BENCHMARK(large_gemm)->ArgName("threads")->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(attention_forward_rate)->Apply(rows);
BENCHMARK(attention_backward_rate)->Apply(rows);
BENCHMARK(attention_decode_rate)
    ->ArgNames({"heads", "kv", "D", "rows", "B", "threads"})
    ->Args({9, 3, 64, 1024, 1, 1})
    ->Args({9, 3, 64, 8192, 1, 1})
    ->Args({9, 3, 64, 8192, 8, 2})
    ->Args({32, 8, 128, 4096, 1, 1})
    ->Args({8, 2, 256, 4096, 1, 1})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace sluice
