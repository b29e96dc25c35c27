// The planner's search: which schedules there are for the largest batch, with what each needs and about how long it takes.
#pragma once

#include <vector>

#include "train/plan.h"

namespace sluice {

// The device's page tables of pinned memory: 8 bytes for 4 KiB (measured on one H200), in pages of 2 MiB.
constexpr int64_t mapping_bytes(int64_t pinned_bytes) {
  constexpr int64_t page = int64_t{2} << 20;
  return (pinned_bytes / 512 + page - 1) / page * page;
}

struct Candidate {
  Schedule schedule;
  int64_t step_bytes = 0, pinned_bytes = 0;  // of the step arena, and of pinned host memory: exact
  double cost = 0;                           // estimated time, in multiply-adds at the large matrix product's rate
  int64_t held_bytes() const { return step_bytes + mapping_bytes(pinned_bytes); }  // on the device
};

// None of them is both slower and larger than another; none takes more pinned memory than request.host_budget_bytes. From lean and slow to large
// and fast. Throws Error(out_of_memory) where that allows none, Error(bad_config) for offload: true on the CPU.
std::vector<Candidate> search_schedules(const PlanRequest& request);

// For pricing: the adapter's numbers lie in another arena, its layout is what matters.
Adapter unread_adapter(const AdapterLayout& layout);

// By tokens, then by targets: the batch that the search looks at. Every other one is priced under the chosen schedule.
const BatchShape& largest_batch(const PlanRequest& request);

}  // namespace sluice
