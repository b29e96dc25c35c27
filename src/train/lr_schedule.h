// The learning rate of each optimizer step.
//
//   s < warmup:  init + (peak - init) * s / warmup            (so step `warmup` has the peak exactly)
//   constant:    peak
//   cosine:      end + (peak - end) * (1 + cos(pi * (s - warmup) / (total - warmup))) / 2
//   linear:      peak + (end - peak) * (s - warmup) / (total - warmup)
//
// s counts optimizer steps from 0, never microbatches.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

struct LrSchedule {
  std::string name = "cosine_decay";  // constant, cosine_decay, linear_decay
  double peak = 0, init = 0, end = 0;
  int64_t warmup = 0, total = 1;

  double at(int64_t step) const;
};

// Optimizer steps of a warm-up: `warmup`, or where it is 0 the ratio of the run rounded up as Hugging Face does, but at least one step has the
// peak.
int64_t warmup_steps(int64_t warmup, double ratio, int64_t total);

}  // namespace sluice
