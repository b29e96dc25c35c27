#include "train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {

double LrSchedule::at(int64_t step) const {
  if (step < warmup) return init + (peak - init) * static_cast<double>(step) / static_cast<double>(warmup);
  if (name == "constant") return peak;
  const int64_t span = std::max<int64_t>(total - warmup, 1);
  const double done = std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(span));
  if (name == "linear_decay") return peak + (end - peak) * done;
  return end + (peak - end) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

int64_t warmup_steps(int64_t warmup, double ratio, int64_t total) {
  if (warmup > 0) return warmup;
  const auto steps = static_cast<int64_t>(std::ceil(ratio * static_cast<double>(total) - 1e-9));
  return std::clamp<int64_t>(steps, 0, std::max<int64_t>(total - 1, 0));
}

}  // namespace sluice
