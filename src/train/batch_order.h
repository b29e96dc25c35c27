// Which rows the microbatches of a run hold, in an order that can be resumed anywhere.
//
//   BatchOrder order(Order(seed, rows.size(), shuffle), batch_size);     // or, of a budget of tokens: BatchOrder order(Packing(…));
//   order.rows_of(index);               // of microbatch `index`, counted since the start of the run
//   order.microbatches_for(epochs);     // 10 rows, batch size 4, one epoch: 3, of 4, 4 and 2 rows
//
// Every epoch holds each row exactly once. No microbatch reaches across the end of an epoch: the last one of an epoch has what is left, which
// is all rows where there are fewer than batch_size. With packing a microbatch is a bin (data/packing.h).
#pragma once

#include <optional>
#include <vector>

#include "data/order.h"
#include "data/packing.h"

namespace sluice {

class BatchOrder {
 public:
  BatchOrder(const Order& order, int64_t batch_size);
  explicit BatchOrder(Packing packing);

  int64_t per_epoch() const { return per_epoch_; }
  const std::optional<Packing>& packing() const { return packing_; }
  std::vector<int64_t> rows_of(int64_t index) const;
  // Rows that the microbatches before `index` hold; over the number of rows, the epoch.
  int64_t rows_before(int64_t index) const;
  // The fewest microbatches, at least one, that hold so many epochs' rows. Of a part of an epoch: its rows rounded, in whole microbatches.
  int64_t microbatches_for(double epochs) const;

 private:
  int64_t num_rows_of(int64_t index) const;

  std::optional<Packing> packing_;
  Order order_;
  int64_t batch_size_, per_epoch_;
};

}  // namespace sluice
