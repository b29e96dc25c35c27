#include "train/batch_order.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sluice {

BatchOrder::BatchOrder(const Order& order, int64_t batch_size)
    : order_(order), batch_size_(batch_size), per_epoch_((order.count() + batch_size - 1) / batch_size) {
  SLUICE_ASSERT(batch_size >= 1);
}

BatchOrder::BatchOrder(Packing packing)
    : packing_(std::move(packing)),
      order_(0, packing_->num_rows(), false),
      batch_size_(1),
      per_epoch_(packing_->num_bins()) {}

int64_t BatchOrder::num_rows_of(int64_t index) const {
  if (packing_) return packing_->num_rows_of(index);
  return std::min(batch_size_, order_.count() - index % per_epoch_ * batch_size_);
}

int64_t BatchOrder::rows_before(int64_t index) const {
  const int64_t epoch = index / per_epoch_;
  int64_t within = index % per_epoch_ * batch_size_;
  if (packing_) {
    within = 0;
    for (int64_t i = epoch * per_epoch_; i < index; ++i) within += num_rows_of(i);
  }
  return epoch * order_.count() + within;
}

std::vector<int64_t> BatchOrder::rows_of(int64_t index) const {
  if (packing_) return packing_->rows_of(index);
  std::vector<int64_t> rows;
  for (int64_t i = rows_before(index); i < rows_before(index + 1); ++i) rows.push_back(order_.row_at(i));
  return rows;
}

int64_t BatchOrder::microbatches_for(double epochs) const {
  const auto whole = static_cast<int64_t>(epochs);
  int64_t rest = std::llround((epochs - std::floor(epochs)) * static_cast<double>(order_.count()));
  int64_t count = whole * per_epoch_;
  for (; rest > 0; ++count) rest -= num_rows_of(count);
  return std::max<int64_t>(count, 1);
}

}  // namespace sluice
