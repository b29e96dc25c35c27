// The next token from its logits.
//
//   repetition penalty (Keskar et al. 2019, arXiv:1909.05858: positive logits divided, negative multiplied), then temperature, top-k,
//   top-p (Holtzman et al. 2020, arXiv:1904.09751), then a draw from Philox keyed by (seed, sequence, position).
//
// Temperature 0 is greedy: the largest logit, the lowest id among equals. Deterministic for a seed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct SamplerOptions {
  double temperature = 0;           // to 100
  int64_t top_k = 0;                // 0: all
  double top_p = 1;                 // 1: all
  double repetition_penalty = 1;    // 0.01 to 100
  int64_t repetition_context = 64;  // tokens looked back on; 0: all
  uint64_t seed = 0;
};

// Throws Error(bad_config) naming the first option that is not a number or out of its range.
void require_valid(const SamplerOptions& options);

// `history` is prompt and output so far. `logits` is scratch: it is changed. Throws as require_valid does.
int32_t sample(std::span<float> logits, std::span<const int32_t> history, const SamplerOptions& options,
               uint64_t sequence);

}  // namespace sluice
