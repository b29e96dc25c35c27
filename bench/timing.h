// What the benchmark programs share: a clock, a median, and an adapter in training on a planned arena.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "ops/adamw/adamw.h"
#include "ops/common/host_floats.h"
#include "train/plan.h"

namespace sluice::bench {

inline double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// A fresh adapter with its gradient and moments, in arenas of the plan's size.
struct TrainedAdapter {
  Arena resident, arena;
  ThreadPool pool;
  Context ctx;
  Adapter adapter, grads;
  Tensor m, v;

  TrainedAdapter(const AdapterLayout& layout, const Plan& plan, int threads)
      : resident(Arena::allocate(plan.device, plan.parameter_bytes)),
        arena(Arena::allocate(plan.device, plan.step_bytes)),
        pool(threads),
        ctx{.arena = arena, .pool = pool, .device = plan.device},
        adapter(layout, zeros(layout)),
        grads(layout, zeros(layout)),
        m(zeros(layout)),
        v(zeros(layout)) {
    HostFloats start(ctx, adapter.flat());
    initialise_adapter(layout, 1, start.data());
    start.write_back();
  }

  // The optimizer's part of step t, from 1.
  void update(int64_t t) {
    adamw(ctx, {.p = adapter.flat(), .m = m, .v = v, .g = grads.flat(), .lr = 1e-4F, .t = t});
    zero(ctx, {.tensor = grads.flat()});
  }

 private:
  Tensor zeros(const AdapterLayout& layout) {
    Tensor t = resident.tensor(DType::f32, {layout.size()});
    zero(ctx, {.tensor = t});
    return t;
  }
};

}  // namespace sluice::bench
