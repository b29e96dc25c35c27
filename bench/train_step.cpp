// One training step of a real model, as the plan under a budget carries it out, and this machine's own matrix product.
//
//   train_step --model model.gguf --tokens 4096 --rank 16 --memory-mib 600 --threads 2
//   train_step --device cuda --shape llama-3.1-8b --format affine4 --tokens 8192        random weights, made on the device
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
#include <optional>
#include <vector>

#include "core/device.h"
#include "core/rng.h"
#include "model_choice.h"
#include "ops/common/copy.h"
#include "ops/gemm/gemm.h"
#include "timing.h"
#include "train/adapter_setup.h"

namespace sluice {
namespace {

using bench::median;
using bench::seconds_of;

struct Options : bench::ModelChoice {
  bool longest = false;
  std::string level, head, offload;  // empty: the planner chooses, as with 0 below
  int64_t segment_size = 0, tile = 0, head_rows = 0;
  int64_t tokens = 1024, rank = 16, memory_mib = 0, host_memory_mib = 0, gemm = 0;
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

// What is held on the device now, of all processes.
int64_t device_bytes(Device device) {
  if (device.type == DeviceType::cpu) return 0;
  const DeviceMemory memory = memory_of(device);
  return memory.total_bytes - memory.free_bytes;
}

// The most tokens whose leanest schedule fits the budget on a device, by its price: no step is run.
Json find_longest(const Options& options) {
  const Device device = parse_device(options.device);
  const auto model = bench::model_of_shape(options.shape, options.format);
  model->device = device;
  const AdapterLayout layout(model->config, {.rank = options.rank, .alpha = 2 * static_cast<float>(options.rank)});
  const PlanRequest request{.model = *model, .layout = layout, .num_threads = options.threads, .device = device};
  Schedule lean = Schedule::uniform(model->config.num_layers, 1, Level::input);
  lean.tile = 1024, lean.head_rows = 2048, lean.offload = true;
  const int64_t around = model->device_bytes() + resident_bytes(layout) + device_bytes(device);
  int64_t pinned = 0, bytes = 0;
  const auto fits = [&](int64_t tokens) {
    pinned = 0;
    bytes =
        around + price_step(request, lean, {.spans = Spans::one(tokens), .num_targets = tokens / 4}, nullptr, &pinned);
    return bytes <= options.memory_mib << 20;
  };
  int64_t low = 0, high = int64_t{1} << 23;  // in tokens; a multiple of 1024
  while (high - low > 1024) {
    const int64_t middle = (low + high) / 2048 * 1024;
    (fits(middle) ? low : high) = middle;
  }
  fits(std::max<int64_t>(low, 1024));
  return {
      {"peer", "sluice"},      {"model", options.shape}, {"format", options.format}, {"memory_mib", options.memory_mib},
      {"longest_tokens", low}, {"planned_bytes", bytes}, {"pinned_bytes", pinned},   {"schedule", lean.describe()}};
}

Json measure_step(const Options& options) {
  const auto model = bench::open(options);
  const Device device = model->device;
  const int64_t held_before = device_bytes(device);  // CUDA's context is made here
  const AdapterLayout layout(model->config, {.rank = options.rank, .alpha = 2 * static_cast<float>(options.rank)});
  const Spans spans = Spans::one(options.tokens);
  std::vector<int32_t> ids(static_cast<size_t>(options.tokens)), rows, targets;
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(random_bits(1, 3, i) % static_cast<uint32_t>(model->config.vocab_size));
  for (int64_t t = options.tokens * 3 / 4; t < options.tokens; ++t) {
    rows.push_back(static_cast<int32_t>(t - 1));
    targets.push_back(ids[static_cast<size_t>(t)]);
  }
  PlanRequest request{.model = *model, .layout = layout, .num_threads = options.threads, .device = device};
  request.train = {{.spans = spans, .num_targets = static_cast<int64_t>(rows.size())}};
  if (device.type == DeviceType::cuda) request.process_bytes = [=] { return held_before; };
  else request.process_bytes = [] { return status_bytes("VmRSS") - status_bytes("RssFile"); };
  request.budget_bytes = options.memory_mib << 20;
  request.host_budget_bytes = options.host_memory_mib << 20;
  request.segment_size = options.segment_size;
  request.tile = options.tile;
  request.head_rows = options.head_rows;
  request.level = options.level;
  request.head = options.head;
  request.offload = options.offload;
  const Plan plan = make_plan(request);

  bench::upload(*model, options);
  bench::TrainedAdapter run(layout, plan, options.threads);
  std::optional<Arena> pinned;
  if (plan.pinned_bytes > 0) pinned = Arena::pinned(plan.pinned_bytes);
  std::vector<double> seconds;
  double loss = 0;
  for (int step = 0; step <= options.steps; ++step) {
    const double s = seconds_of([&] {
      loss = forward_backward(run.ctx, *model, run.adapter, run.grads,
                              {.ids = ids, .spans = spans, .rows = rows, .targets = targets},
                              {.schedule = plan.schedule, .pinned = pinned ? &*pinned : nullptr},
                              [](std::span<const float> logp, std::span<float> dlogp) {
                                const auto count = static_cast<float>(logp.size());
                                std::fill(dlogp.begin(), dlogp.end(), -1 / count);
                                return -std::accumulate(logp.begin(), logp.end(), 0.0) / static_cast<double>(count);
                              });
      run.update(step + 1);
      synchronize(device);
    });
    if (step > 0 || options.steps == 0) seconds.push_back(s);  // the first warms up
  }
  const double s = median(seconds);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double cpu = static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
  const int64_t held_after = device_bytes(device);
  // own_resident_bytes: arenas are touched when made and given back at exit, so what the system counts at the end is the peak.
  return {{"peer", "sluice"},
          {"tokens", options.tokens},
          {"model", options.shape.empty() ? options.model : options.shape},
          {"format", options.shape.empty() ? "" : options.format},
          {"device", options.device},
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
          {"weight_bytes", plan.weight_bytes},
          {"pinned_bytes", plan.pinned_bytes},
          {"device_bytes_before", held_before},
          {"device_bytes", held_after},
          {"loss", loss}};
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  CLI::App app("Times one training step, or with --gemm the matrix product alone");
  sluice::bench::add_options(app, options);
  app.add_option("--tokens", options.tokens, "tokens of the one document");
  app.add_option("--rank", options.rank, "LoRA rank, on every linear layer");
  app.add_option("--memory-mib", options.memory_mib, "budget: on the CPU without the mapped file; 0: what is free");
  app.add_option("--segment-size", options.segment_size, "layers recomputed together; 0: the planner chooses");
  app.add_option("--level", options.level, "what a layer keeps: input, attention, all; empty: the planner chooses");
  app.add_option("--tile", options.tile, "tokens at once inside a layer; 0: the planner chooses");
  app.add_option("--head", options.head, "by_rows or by_blocks; empty: the planner chooses");
  app.add_option("--head-rows", options.head_rows, "rows of the head at once; 0: the planner chooses");
  app.add_option("--offload", options.offload,
                 "true or false: inputs in pinned host memory; empty: the planner chooses");
  app.add_option("--host-memory-mib", options.host_memory_mib, "most pinned host memory; 0: half of what is free");
  app.add_option("--threads", options.threads);
  app.add_option("--steps", options.steps, "measured, after one to warm up; 0: the first one is measured");
  app.add_flag("--longest", options.longest,
               "with --shape, a CUDA device and a budget: how many tokens its leanest schedule takes");
  app.add_option("--gemm", options.gemm, "size of a square matrix product to time instead");
  CLI11_PARSE(app, argc, argv);
  try {
    std::cout << (options.gemm > 0  ? sluice::measure_gemm(options)
                  : options.longest ? sluice::find_longest(options)
                                    : sluice::measure_step(options))
                     .dump()
              << "\n";
  } catch (const sluice::Error& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
  return 0;
}
