// Rows packed into one microbatch: a forest with one root for each row, and the tokens to be predicted. No padding.
//
//   Batch batch = pack({&samples[3], &samples[8]});
//   batch.targets[m] is predicted by token batch.rows[m]; it belongs to row batch.groups[m] of the batch
#pragma once

#include <cstdint>
#include <vector>

#include "core/spans.h"
#include "data/dataset.h"

namespace sluice {

struct Batch {
  std::vector<int32_t> ids;  // [N]
  Spans spans;
  std::vector<int32_t> rows;     // [M] the predicting token, ascending; it precedes its target in the same span
  std::vector<int32_t> targets;  // [M] the token that is predicted
  std::vector<int32_t> groups;   // [M] which of the packed samples, from 0
  std::vector<float> weights;    // [M] of the target's loss, > 0

  int64_t num_tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t num_targets() const { return static_cast<int64_t>(targets.size()); }
  double total_weight() const;  // num_targets() where all weigh 1
};

// One or more samples, none of them empty.
Batch pack(const std::vector<const Sample*>& samples);

}  // namespace sluice
