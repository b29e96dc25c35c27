// One training step of a real model, as the plan under a budget carries it out, and this machine's own matrix product.
//
//   train_step --model model.gguf --tokens 4096 --rank 16 --memory-mib 600 --threads 2
//   train_step --gemm 4096
//
// Random tokens, LoRA on every linear layer, loss on the last quarter of the tokens, AdamW: the job of
// bench/peers/pytorch_lora_step.py. One line of JSON. Useful TFLOP/s count (4 N L + 4 N_head L/4 + 6 n_lora L + 3.5 A) / s
// with N the frozen weights of the layers, L the tokens and A the forward's attention over visible pairs.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <numeric>
#include <vector>

#include "core/rng.h"
#include "ops/common/copy.h"
#include "ops/gemm/gemm.h"
#include "timing.h"

namespace sluice {
namespace {

using bench::median;
using bench::seconds_of;

struct Options {
  std::string model;
  int64_t tokens = 1024, rank = 16, memory_mib = 0, gemm = 0;
  int threads = 2, steps = 3;
};

// Bytes of a line of /proc/self/status ("VmHWM", "RssFile").
int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kib = 0;
    if (word == key + ":" && status >> kib) return kib * 1024;
  }
  return 0;
}

// bf16 with float32 sums, each thread its own rows of the result: the best of some repetitions.
double gemm_gflops(Context& ctx, int64_t size) {
  ArenaScope scope(ctx.arena);
  Tensor a = scope.tensor(DType::bf16, {size, size}), b = scope.like(a), c = scope.tensor(DType::f32, {size, size});
  for (int64_t i = 0; i < size * size; ++i) {
    a.as<bf16>()[i] = bf16(random_uniform(1, 1, static_cast<uint64_t>(i)) - 0.5F);
    b.as<bf16>()[i] = bf16(random_uniform(1, 2, static_cast<uint64_t>(i)) - 0.5F);
  }
  const int64_t blocks = ctx.pool.num_threads(), rows = size / blocks;
  const auto block = [&](int64_t i) {
    return Gemm{.m = rows,
                .n = size,
                .k = size,
                .a = a.as<bf16>() + i * rows * size,
                .lda = size,
                .b = b.data,
                .ldb = size,
                .transpose_b = true,
                .c = c.as<float>() + i * rows * size,
                .ldc = size};
  };
  const int64_t scratch_bytes = gemm_scratch_bytes(ctx, block(0));
  std::vector<std::byte*> scratch;
  for (int64_t i = 0; i < blocks; ++i) scratch.push_back(ctx.arena.bytes(scratch_bytes));
  double best = 1e30;
  for (int repeat = 0; repeat < 6; ++repeat) {
    best = std::min(best, seconds_of([&] {
                      ctx.pool.parallel_for(blocks, [&](int64_t i, int worker) {
                        gemm_on_this_thread(ctx, block(i), scratch[static_cast<size_t>(worker)]);
                      });
                    }));
  }
  return 2 * static_cast<double>(rows * blocks) * static_cast<double>(size * size) / best / 1e9;
}

Json measure_gemm(const Options& options) {
  Arena arena = Arena::allocate(Device::cpu(), 24 * options.gemm * options.gemm + (256 << 20));
  ThreadPool pool(options.threads);
  Context ctx{.arena = arena, .pool = pool};
  return {{"peer", "oneDNN, a primitive on each thread"},
          {"size", options.gemm},
          {"threads", options.threads},
          {"gflops", gemm_gflops(ctx, options.gemm)}};
}

double useful_flop(const Model& model, const AdapterLayout& layout, const Spans& spans) {
  const auto tokens = static_cast<double>(spans.num_tokens());
  double attention = 0;
  for (const DecoderLayer& l : model.layers) {
    attention += 4 * static_cast<double>(spans.visible_pairs(l.config.window)) *
                 static_cast<double>(l.config.num_heads * l.config.head_dim);
  }
  return 4 * static_cast<double>(model.num_weights()) * tokens +
         4 * static_cast<double>(model.head.rows * model.head.cols) * tokens / 4 +
         6 * static_cast<double>(layout.num_parameters()) * tokens + 3.5 * attention;
}

Json measure_step(const Options& options) {
  const auto model = load_model(options.model);
  const AdapterLayout layout(model->config, {.rank = options.rank, .alpha = 2 * static_cast<float>(options.rank)});
  const Spans spans = Spans::one(options.tokens);
  std::vector<int32_t> ids(static_cast<size_t>(options.tokens)), rows, targets;
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(random_bits(1, 3, i) % static_cast<uint32_t>(model->config.vocab_size));
  for (int64_t t = options.tokens * 3 / 4; t < options.tokens; ++t) {
    rows.push_back(static_cast<int32_t>(t - 1));
    targets.push_back(ids[static_cast<size_t>(t)]);
  }
  PlanRequest request{.model = *model, .layout = layout, .num_threads = options.threads};
  request.train = {{.spans = spans, .num_targets = static_cast<int64_t>(rows.size())}};
  request.process_bytes = [] { return status_bytes("VmRSS") - status_bytes("RssFile"); };
  request.budget_bytes = options.memory_mib << 20;
  const Plan plan = make_plan(request);

  bench::TrainedAdapter run(layout, plan, options.threads);
  std::vector<double> seconds;
  double loss = 0;
  for (int step = 0; step <= options.steps; ++step) {
    const double s = seconds_of([&] {
      loss = forward_backward(run.ctx, *model, run.adapter, run.grads,
                              {.ids = ids, .spans = spans, .rows = rows, .targets = targets},
                              {.schedule = plan.schedule}, [](std::span<const float> logp, std::span<float> dlogp) {
                                const auto count = static_cast<float>(logp.size());
                                std::fill(dlogp.begin(), dlogp.end(), -1 / count);
                                return -std::accumulate(logp.begin(), logp.end(), 0.0) / static_cast<double>(count);
                              });
      run.update(step + 1);
    });
    if (step > 0 || options.steps == 0) seconds.push_back(s);  // the first warms up
  }
  const double s = median(seconds);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double cpu = static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
  // own_resident_bytes: arenas are touched when made and given back at exit, so what the system counts at the end is the peak.
  return {{"peer", "sluice"},
          {"tokens", options.tokens},
          {"dtype", "bf16"},
          {"threads", options.threads},
          {"schedule", plan.schedule.describe()},
          {"fits", plan.fits()},
          {"seconds_per_step", s},
          {"tokens_per_second", static_cast<double>(options.tokens) / s},
          {"useful_tflops", useful_flop(*model, layout, spans) / s / 1e12},
          {"trainable", layout.num_parameters()},
          {"planned_bytes", plan.total_bytes()},
          {"peak_rss_bytes", int64_t{usage.ru_maxrss} * 1024},
          {"mapped_resident_bytes", status_bytes("RssFile")},
          {"own_resident_bytes", status_bytes("RssAnon")},
          {"parameter_bytes", plan.parameter_bytes},
          {"memory_mib", options.memory_mib},
          {"cpu_seconds", cpu},
          {"step_arena_planned", plan.step_bytes},
          {"step_arena_peak", run.arena.peak()},
          {"loss", loss}};
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  CLI::App app("Times one training step, or with --gemm the matrix product alone");
  app.add_option("--model", options.model, "GGUF file or model folder");
  app.add_option("--tokens", options.tokens, "tokens of the one document");
  app.add_option("--rank", options.rank, "LoRA rank, on every linear layer");
  app.add_option("--memory-mib", options.memory_mib, "budget without the mapped file; 0: what is free");
  app.add_option("--threads", options.threads);
  app.add_option("--steps", options.steps, "measured, after one to warm up; 0: the first one is measured");
  app.add_option("--gemm", options.gemm, "size of a square matrix product to time instead");
  CLI11_PARSE(app, argc, argv);
  try {
    std::cout << (options.gemm > 0 ? sluice::measure_gemm(options) : sluice::measure_step(options)).dump() << "\n";
  } catch (const sluice::Error& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
  return 0;
}
