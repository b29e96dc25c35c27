// Of all batches of a run, those whose memory has to be priced.
//
// More tokens and more targets take more memory. Besides, a step has a little scratch whose size depends on where spans lie and on what is
// left over in the last chunk of tokens or targets, and does not grow with them: less than what a chunk of rows takes. So a batch is left out
// only where another has as many targets and a chunk more tokens, or the same spans and a chunk more targets. One batch of each kind of rest is
// priced in any case: pricing compiles the kernels that its rows need, and the process' own memory is measured after it.
#pragma once

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "data/batch.h"
#include "ops/gemm/gemm.h"
#include "train/plan.h"

namespace sluice {

class LargestShapes {
 public:
  void add(const Batch& batch) {
    BatchShape shape{batch.spans, batch.num_targets()};
    const bool new_rest = tokens_rests_.insert(padded_rows(batch.num_tokens() % row_chunk)).second,
               new_targets_rest = targets_rests_.insert(padded_rows(batch.num_targets() % row_chunk)).second;
    if (new_rest || new_targets_rest) rests_.push_back(shape);
    for (const BatchShape& s : shapes_) {
      if (exceeds(s, shape) || same(s, shape)) return;
    }
    std::erase_if(shapes_, [&](const BatchShape& s) { return exceeds(shape, s); });
    shapes_.push_back(std::move(shape));
  }
  std::vector<BatchShape> take() {
    for (BatchShape& shape : rests_) {
      if (std::none_of(shapes_.begin(), shapes_.end(), [&](const BatchShape& s) { return same(s, shape); }))
        shapes_.push_back(std::move(shape));
    }
    return std::move(shapes_);
  }

 private:
  static bool exceeds(const BatchShape& a, const BatchShape& b) {
    if (a.spans.num_tokens() >= b.spans.num_tokens() + row_chunk && a.num_targets >= b.num_targets) return true;
    return a.num_targets >= b.num_targets + row_chunk && same_spans(a.spans, b.spans);
  }
  static bool same(const BatchShape& a, const BatchShape& b) {
    return a.num_targets == b.num_targets && same_spans(a.spans, b.spans);
  }
  static bool same_spans(const Spans& a, const Spans& b) {
    if (a.size() != b.size()) return false;
    for (int64_t i = 0; i < a.size(); ++i) {
      if (a[i].length != b[i].length || a[i].parent != b[i].parent) return false;
    }
    return true;
  }

  std::vector<BatchShape> shapes_, rests_;
  std::set<int64_t> tokens_rests_, targets_rests_;
};

}  // namespace sluice
