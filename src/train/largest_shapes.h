// Of all batches of a run, those whose memory has to be priced.
//
// More tokens and more targets take more memory. Besides, a step has a little scratch whose size depends on where spans lie and on what is left
// over in the last chunk of tokens or targets, and does not grow with them. So a batch is left out only where another has as many targets and
// `margin` more tokens, a margin whose own memory is more than that scratch can be.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "data/batch.h"
#include "train/plan.h"

namespace sluice {

class LargestShapes {
 public:
  void add(const Batch& batch) {
    BatchShape shape{batch.spans, batch.num_targets()};
    for (const BatchShape& s : shapes_) {
      if (exceeds(s, shape) || same(s, shape)) return;
    }
    std::erase_if(shapes_, [&](const BatchShape& s) { return exceeds(shape, s); });
    shapes_.push_back(std::move(shape));
  }
  std::vector<BatchShape> take() { return std::move(shapes_); }

 private:
  static bool exceeds(const BatchShape& a, const BatchShape& b) {
    const int64_t margin = 16 + b.spans.num_tokens() / 64;
    return a.spans.num_tokens() >= b.spans.num_tokens() + margin && a.num_targets >= b.num_targets;
  }
  static bool same(const BatchShape& a, const BatchShape& b) {
    if (a.num_targets != b.num_targets || a.spans.size() != b.spans.size()) return false;
    for (int64_t i = 0; i < a.spans.size(); ++i) {
      if (a.spans[i].length != b.spans[i].length || a.spans[i].parent != b.spans[i].parent) return false;
    }
    return true;
  }

  std::vector<BatchShape> shapes_;
};

}  // namespace sluice
