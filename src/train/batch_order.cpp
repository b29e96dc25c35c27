#include "train/batch_order.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace sluice {

BatchOrder::BatchOrder(const Order& order, int64_t batch_size)
    : order_(order), batch_size_(batch_size), per_epoch_((order.count() + batch_size - 1) / batch_size) {
  SLUICE_ASSERT(batch_size >= 1);
}

int64_t BatchOrder::rows_before(int64_t index) const {
  const int64_t within = index % per_epoch_ * batch_size_;
  return index / per_epoch_ * order_.count() + within;
}

std::vector<int64_t> BatchOrder::rows_of(int64_t index) const {
  std::vector<int64_t> rows;
  for (int64_t i = rows_before(index); i < rows_before(index + 1); ++i) rows.push_back(order_.row_at(i));
  return rows;
}

int64_t BatchOrder::microbatches_for(double epochs) const {
  const double whole = std::floor(epochs);
  const int64_t rest = std::llround((epochs - whole) * static_cast<double>(order_.count()));
  const int64_t count = static_cast<int64_t>(whole) * per_epoch_ + (rest + batch_size_ - 1) / batch_size_;
  return std::max<int64_t>(count, 1);
}

}  // namespace sluice
