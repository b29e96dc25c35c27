// The memory of a run, before the run: priced by running the step itself on an arena that only counts, and the fastest schedule that fits.
//
//   Plan plan = make_plan({.model = model, .layout = layout, .train = {{Spans::one(8192), 2048}}, .validation = {},
//                          .budget_bytes = 600 << 20});
//   if (!plan.fits()) …  plan.missing_bytes();
//   fmt::print("{}", plan_table(plan));
//
// The arena sizes are exact: a run that needs one byte more is a bug and stops. See docs/memory.md.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/json.h"
#include "train/streamed_step.h"

namespace sluice {

// One microbatch's shape. The worst batches of a run are priced as they are (train/largest_shapes.h).
struct BatchShape {
  Spans spans;
  int64_t num_targets = 0;
};

struct PlanRequest {
  const Model& model;
  const AdapterLayout& layout;
  std::vector<BatchShape> train, validation;  // validation: what runs without a backward; may be empty
  const AdapterLayout* reference = nullptr;   // of the reference policy, which validation's shapes are run with too
  DType dtype = DType::bf16;
  int num_threads = ThreadPool::default_threads();  // of the pool that the run will use: some scratch is per thread
  Isa isa = detect_isa();
  Device device;             // where the step runs, and whose memory is planned
  int64_t budget_bytes = 0;  // CPU: of the whole process without the mapped file; CUDA: of the device. 0: what is free
  int64_t host_budget_bytes = 0;  // for pinned host memory. 0: half of what the system has available
  // What is held besides the arenas and, on a device, the weights; asked when the kernels exist.
  std::function<int64_t()> process_bytes;
  // 0 or empty: the planner chooses.
  int64_t segment_size = 0, tile = 0, head_rows = 0;
  std::string level;    // input, attention, all
  std::string offload;  // true: inputs of segments in pinned host memory, on a CUDA device; false: nothing there
  std::string head;     // by_rows, by_blocks
};

struct Plan {
  Schedule schedule;
  Device device;
  int64_t mapped_bytes = 0;                         // the base as it lies on disk
  int64_t weight_bytes = 0;                         // of it: what lies on a CUDA device
  int64_t parameter_bytes = 0;                      // adapter, gradient and both moments: the resident arena
  int64_t step_bytes = 0;                           // the step arena
  int64_t kept_bytes = 0;                           // of it: what the forward leaves for the backward
  int64_t worst_segment_bytes = 0, head_bytes = 0;  // of it: above what is held, at their highest
  int64_t validation_bytes = 0;                     // peak of the step arena in validation
  int64_t process_bytes = 0;
  int64_t budget_bytes = 0;
  int64_t pinned_bytes = 0;       // host memory that a schedule which offloads takes; not of the total
  int64_t host_budget_bytes = 0;  // which it keeps within
  int64_t num_tokens = 0;         // of the largest microbatch
  double relative_time = 0;       // estimated time over that of a step that keeps everything

  int64_t total_bytes() const { return weight_bytes + parameter_bytes + step_bytes + process_bytes; }
  bool fits() const { return total_bytes() <= budget_bytes; }
  int64_t missing_bytes() const { return fits() ? 0 : total_bytes() - budget_bytes; }
};

Plan make_plan(const PlanRequest& request);

// Candidates as `sluice plan` lists them: the leanest to the fastest, the chosen one among them.
std::vector<Plan> candidate_plans(const PlanRequest& request);

// Peak of the step arena for one schedule and batch, exact.
int64_t price_step(const PlanRequest& request, const Schedule& schedule, const BatchShape& shape,
                   std::vector<PhaseRecord>* log = nullptr, int64_t* pinned_bytes = nullptr);

std::string plan_table(const Plan& plan);
Json plan_json(const Plan& plan);

}  // namespace sluice
