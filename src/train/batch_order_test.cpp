#include "train/batch_order.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace sluice {

TEST_CASE("batch order: every epoch holds each row once, and its last batch has what is left") {
  for (bool shuffle : {false, true})
    for (int64_t rows : {1, 3, 7, 10, 64})
      for (int64_t batch : {1, 2, 4, 10, 100}) {
        CAPTURE(rows);
        CAPTURE(batch);
        const BatchOrder order(Order(3, rows, shuffle), batch);
        CHECK(order.per_epoch() == (rows + batch - 1) / batch);
        std::vector<int64_t> seen;
        for (int64_t i = 0; i < 3 * order.per_epoch(); ++i) {
          const std::vector<int64_t> picked = order.rows_of(i);
          CHECK(order.rows_before(i) == static_cast<int64_t>(seen.size()));
          const bool ends_epoch = (i + 1) % order.per_epoch() == 0;
          const int64_t left = rows - (order.per_epoch() - 1) * batch;
          CHECK(static_cast<int64_t>(picked.size()) == (ends_epoch ? left : batch));
          seen.insert(seen.end(), picked.begin(), picked.end());
        }
        REQUIRE(static_cast<int64_t>(seen.size()) == 3 * rows);
        for (int64_t epoch = 0; epoch < 3; ++epoch) {
          std::vector<int64_t> part(seen.begin() + epoch * rows, seen.begin() + (epoch + 1) * rows);
          std::sort(part.begin(), part.end());
          for (int64_t r = 0; r < rows; ++r) CHECK(part[static_cast<size_t>(r)] == r);
        }
      }
}

TEST_CASE("batch order: the length of a run in epochs counts every row") {
  const auto length = [](int64_t rows, int64_t batch, double epochs) {
    return BatchOrder(Order(0, rows, true), batch).microbatches_for(epochs);
  };
  CHECK(length(10, 4, 1) == 3);    // 4 + 4 + 2
  CHECK(length(7, 2, 2) == 8);     // 2 (2 + 2 + 2 + 1)
  CHECK(length(3, 8, 5) == 5);     // 3 each
  CHECK(length(10, 4, 1.5) == 5);  // and 5 rows of the second epoch, in two batches
  CHECK(length(10, 1, 0.3) == 3);
  CHECK(length(10, 4, 0.001) == 1);
  CHECK(length(1000, 1, 2.001) == 2001);
}

}  // namespace sluice
