// The planner's search: which schedules there are for the largest batch, with what each needs and about how long it takes.
#pragma once

#include <vector>

#include "train/plan.h"

namespace sluice {

struct Candidate {
  Schedule schedule;
  int64_t step_bytes = 0;  // of the step arena, exact
  double cost = 0;         // estimated time, in multiply-adds at the large matrix product's rate
};

// None of them is both slower and larger than another; none takes more pinned memory than `host_budget_bytes`. From lean and slow to large and
// fast. Throws Error(bad_config) where the request allows none.
std::vector<Candidate> search_schedules(const PlanRequest& request, int64_t host_budget_bytes);

// For pricing: the adapter's numbers lie in another arena, its layout is what matters.
Adapter unread_adapter(const AdapterLayout& layout);

// By tokens, then by targets: the batch that the search looks at. Every other one is priced under the chosen schedule.
const BatchShape& largest_batch(const PlanRequest& request);

}  // namespace sluice
