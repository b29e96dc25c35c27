// Which row comes at which position of a run: a new shuffle each epoch, without state.
//
//   Order order(seed, rows.size(), /*shuffle=*/true);
//   order.row_at(position);            // position counts rows since the start of the run, over all epochs
//   order.epoch_of(position);
//
// Every epoch visits each row once. A run that resumes at a position continues the sequence of an uninterrupted one, since row_at is a pure
// function of (seed, count, position) and costs the same anywhere: no list of rows is shuffled or kept.
#pragma once

#include <cstdint>

namespace sluice {

class Order {
 public:
  // count >= 1. Without shuffle the rows come in the order of the file.
  Order(uint64_t seed, int64_t count, bool shuffle);

  int64_t row_at(int64_t position) const;
  int64_t epoch_of(int64_t position) const { return position / count_; }
  int64_t count() const { return count_; }

 private:
  uint64_t permute(uint64_t epoch, uint64_t index) const;

  uint64_t seed_;
  int64_t count_;
  bool shuffle_;
  int half_bits_;  // the permutation works on numbers of 2 * half_bits_ bits
};

}  // namespace sluice
