// Of all batches of a run, those whose memory has to be priced.
//
// More tokens and more targets take more memory. Besides, a step has a little scratch that does not grow with them, less than what a chunk of rows
// takes: it depends on what is left over in the last chunk of tokens or targets, and on how many spans a block of queries touches. So a batch is
// left out only where another has as many targets and a chunk more tokens; or as many tokens with the same rest, as many lines in every block, and
// a chunk more targets, or as many with the same rest. One batch of each kind of rest is priced in any case: pricing compiles the kernels that its
// rows need, and the process' own memory is measured after it.
#pragma once

#include <algorithm>
#include <array>
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
    Sized shape(batch);
    const bool new_rest = tokens_rests_.insert(padded_rows(shape.tokens % row_chunk)).second,
               new_targets_rest = targets_rests_.insert(shape.targets_rest).second;
    if (new_rest || new_targets_rest) rests_.push_back(shape);
    if (std::any_of(shapes_.begin(), shapes_.end(), [&](const Sized& s) { return covers(s, shape); })) return;
    std::erase_if(shapes_, [&](const Sized& s) { return covers(shape, s); });
    shapes_.push_back(std::move(shape));
  }
  std::vector<BatchShape> take() {
    std::vector<BatchShape> all;
    for (Sized& s : shapes_) all.push_back(std::move(s.shape));
    for (Sized& rest : rests_) {
      if (std::none_of(all.begin(), all.end(), [&](const BatchShape& s) { return same(s, rest.shape); }))
        all.push_back(std::move(rest.shape));
    }
    return all;
  }

 private:
  struct Sized {
    explicit Sized(const Batch& batch)
        : shape{batch.spans, batch.num_targets()},
          tokens(batch.spans.num_tokens()),
          tokens_rest((tokens % row_chunk + 15) / 16),  // attention works on multiples of 16
          targets_rest(padded_rows(shape.num_targets % row_chunk)),
          lines{batch.spans.most_lines(64), batch.spans.most_lines(128)} {}

    BatchShape shape;
    int64_t tokens, tokens_rest, targets_rest;
    std::array<int64_t, 2> lines;  // of the blocks of queries that there are (attention_tile.h)
  };

  static bool covers(const Sized& a, const Sized& b) {
    const int64_t more_targets = a.shape.num_targets - b.shape.num_targets;
    if (a.tokens >= b.tokens + row_chunk && more_targets >= 0) return true;
    return a.tokens >= b.tokens && a.tokens_rest == b.tokens_rest && a.lines[0] >= b.lines[0] &&
           a.lines[1] >= b.lines[1] &&
           (more_targets >= row_chunk || (more_targets >= 0 && a.targets_rest == b.targets_rest));
  }
  static bool same(const BatchShape& a, const BatchShape& b) {
    if (a.num_targets != b.num_targets || a.spans.size() != b.spans.size()) return false;
    for (int64_t i = 0; i < a.spans.size(); ++i) {
      if (a.spans[i].length != b.spans[i].length || a.spans[i].parent != b.spans[i].parent) return false;
    }
    return true;
  }

  std::vector<Sized> shapes_, rests_;
  std::set<int64_t> tokens_rests_, targets_rests_;
};

}  // namespace sluice
