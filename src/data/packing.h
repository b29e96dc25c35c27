// Rows into as few bins of a token budget as best-fit decreasing finds: the longest row first, each into the fullest bin that still has room for
// it (Johnson et al. 1974, doi:10.1137/0203025: at most 11/9 of the fewest possible bins, and 4 more).
//
//   Packing packing({3, 5, 8, 2, 1}, /*budget=*/8, Order-like seed, shuffle);
//   packing.rows_of(index);            // rows of microbatch `index`, counted since the start of the run
//
// Every epoch holds each row once. All epochs have bins of the same lengths; with `shuffle` each has them in an order of its own, and rows of one
// length change places among themselves. A pure function of (lengths, budget, seed, shuffle, index), so that a run can be resumed anywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "data/order.h"

namespace sluice {

class Packing {
 public:
  // lengths in tokens, >= 1, of one row or more. A row longer than the budget has a bin to itself.
  Packing(const std::vector<int64_t>& lengths, int64_t budget, uint64_t seed, bool shuffle);

  int64_t num_bins() const { return static_cast<int64_t>(first_.size()) - 1; }
  int64_t num_rows() const { return static_cast<int64_t>(by_length_.size()); }
  std::vector<int64_t> rows_of(int64_t index) const;
  int64_t num_rows_of(int64_t index) const;
  // Tokens over num_bins() * budget.
  double fill() const { return static_cast<double>(tokens_) / (static_cast<double>(num_bins()) * budget_); }
  // No packing has fewer bins: the budget bounds the tokens of a bin, and two rows of more than half of it never share one.
  int64_t fewest_bins() const { return fewest_; }

 private:
  int64_t bin_at(int64_t index) const { return bins_.row_at(index); }

  uint64_t seed_;
  bool shuffle_;
  double budget_;
  int64_t tokens_ = 0, fewest_ = 0;
  std::vector<int64_t> by_length_;  // rows, the longest first; equal ones in the order of the file
  std::vector<int64_t> group_;      // [num_rows] where the rows of this length begin in by_length_
  std::vector<int64_t> slots_;      // positions in by_length_, bin by bin
  std::vector<int64_t> first_;      // [num_bins + 1] into slots_
  Order bins_{0, 1, false};
};

}  // namespace sluice
