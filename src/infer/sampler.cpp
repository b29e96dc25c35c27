#include "infer/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/rng.h"

namespace sluice {

namespace {

void penalise(std::span<float> logits, std::span<const int32_t> history, const SamplerOptions& options) {
  const auto back = static_cast<size_t>(options.repetition_context);
  const auto recent = back > 0 && history.size() > back ? history.last(back) : history;
  for (int32_t id : std::set<int32_t>(recent.begin(), recent.end())) {
    float& z = logits[static_cast<size_t>(id)];
    z = static_cast<float>(z > 0 ? z / options.repetition_penalty : z * options.repetition_penalty);
  }
}

}  // namespace

void require_valid(const SamplerOptions& options) {
  const auto require = [](const char* name, double value, double least, double most) {
    check(value >= least && value <= most, ErrorCode::bad_config,  // false for NaN
          fmt::format("{} is {}; give {} to {}", name, value, least, most));
  };
  require("temperature", options.temperature, 0, 100);
  require("top_p", options.top_p, 0, 1);
  require("repetition_penalty", options.repetition_penalty, 0.01, 100);
  check(options.top_k >= 0, ErrorCode::bad_config, fmt::format("top_k is {}; give 0 (all) or more", options.top_k));
  check(options.repetition_context >= 0, ErrorCode::bad_config,
        fmt::format("repetition_context is {}; give 0 (all) or more", options.repetition_context));
}

int32_t sample(std::span<float> logits, std::span<const int32_t> history, const SamplerOptions& options,
               uint64_t sequence) {
  SLUICE_ASSERT(!logits.empty());
  require_valid(options);
  if (options.repetition_penalty != 1) penalise(logits, history, options);
  if (options.temperature <= 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float za = logits[static_cast<size_t>(a)], zb = logits[static_cast<size_t>(b)];
    return za > zb || (za == zb && a < b);
  };
  size_t kept = ids.size();
  if (options.top_k > 0) kept = std::min(kept, static_cast<size_t>(options.top_k));
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(), better);
  const double largest = static_cast<double>(logits[static_cast<size_t>(ids[0])]);
  std::vector<double> weight(kept);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) {
    weight[i] = std::exp((static_cast<double>(logits[static_cast<size_t>(ids[i])]) - largest) / options.temperature);
    total += weight[i];
  }
  if (options.top_p < 1) {  // the smallest set whose mass reaches top_p
    double mass = 0;
    size_t i = 0;
    while (i < kept && mass < options.top_p * total) mass += weight[i++];
    kept = std::max<size_t>(i, 1);
    total = std::accumulate(weight.begin(), weight.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  }
  double left =
      static_cast<double>(random_uniform(options.seed, stream_of("sample", sequence), history.size())) * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= weight[i];
    if (left < 0) return ids[i];
  }
  return ids[kept - 1];
}

}  // namespace sluice
