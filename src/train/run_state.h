// What a run holds from its first step to its last; for the files of Run alone.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "io/hash.h"
#include "ops/common/host_floats.h"
#include "train/adapter_setup.h"
#include "train/checkpoint.h"
#include "train/lambda_controller.h"
#include "train/lr_schedule.h"
#include "train/run_lock.h"
#include "train/trainer.h"

namespace sluice {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
inline DType dtype_of_run(const TrainConfig& config) { return config.precision == "fp32" ? DType::f32 : DType::bf16; }

// What a run with these settings goes on from: nothing without `resume`. Throws Error(bad_config) when adapter_path holds a checkpoint and the run
// is to be new, or holds none to resume from.
std::optional<LoadedCheckpoint> checkpoint_for(const TrainConfig& config);

struct Run::State {
  State(Device device, const AdapterLayout& layout, const Plan& plan, ThreadPool& pool)
      : resident(Arena::allocate(device, resident_bytes(layout))),
        arena(Arena::allocate(device, plan.step_bytes)),
        pinned(plan.pinned_bytes > 0 ? Arena::pinned(plan.pinned_bytes) : Arena::counting(Device::cpu())),
        ctx{.arena = arena, .pool = pool, .device = device},
        p(resident.tensor(DType::f32, {layout.size()})),
        g(resident.tensor(DType::f32, {layout.size()})),
        m(resident.tensor(DType::f32, {layout.size()})),
        v(resident.tensor(DType::f32, {layout.size()})),
        norms(layout.num_norms() > 0 ? resident.tensor(DType::f32, {layout.num_norms()}) : Tensor{}) {}

  std::string parameter_hash() {
    HostFloats parameters(ctx, p);
    return sha256(std::as_bytes(std::span(parameters.data(), static_cast<size_t>(p.numel()))));
  }

  Arena resident, arena, pinned;
  Context ctx;
  Tensor p, g, m, v;  // parameters, gradient, moments: flat, in the layout's order
  Tensor norms;       // of DoRA, derived from p
  Adapter adapter, grads;
  std::unique_ptr<RunLock> lock;  // of adapter_path, from the first write there
  TrainState now;
  std::unique_ptr<MetricsFile> metrics;
  LrSchedule lr;
  LambdaController lambda;
  std::string start_hash;  // of the parameters before the first step
  // since the last report
  double loss_sum = 0, loss_count = 0, grad_norm = 0;  // loss_count: weights of targets (sft), or rows
  int64_t run_tokens = 0, steps = 0;
  PreferenceMetrics pairs;
  TokenAccuracy accuracy;
  std::vector<float> hits;  // of one batch
  bool warned = false;
  // The last validation's number that best is chosen by, and after which step it was taken.
  double score = 0;
  int64_t scored_step = -1;
  Clock::time_point since = Clock::now();
  RunResult result;
  int64_t peak_bytes = 0;  // held, at the highest report
};

}  // namespace sluice
