#include "data/packing.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace sluice {

namespace {

// The number of bins of best-fit decreasing, looking at every bin for every row.
int64_t best_fit_bins(std::vector<int64_t> lengths, int64_t budget) {
  std::sort(lengths.rbegin(), lengths.rend());
  std::vector<int64_t> used;
  for (int64_t length : lengths) {
    int64_t* best = nullptr;
    for (int64_t& u : used) {
      if (u + length <= budget && (best == nullptr || u > *best)) best = &u;
    }
    if (best != nullptr) *best += length;
    else used.push_back(length);
  }
  return static_cast<int64_t>(used.size());
}

std::vector<int64_t> random_lengths(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) {
    length = 1 + static_cast<int64_t>(engine() % 60);
    if (engine() % 5 == 0) length *= 1 + engine() % 9;
  }
  return lengths;
}

}  // namespace

TEST_CASE("FieldT7_packing: rows of 3, 5, 8, 2 and 1 tokens fill three bins of 8, and each row comes once an epoch") {
  const std::vector<int64_t> lengths = {3, 5, 8, 2, 1};
  for (bool shuffle : {false, true}) {
    const Packing packing(lengths, 8, 7, shuffle);
    CHECK(packing.num_bins() == 3);
    CHECK(packing.fewest_bins() == 3);
    CHECK(packing.fill() == doctest::Approx(19.0 / 24));
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<int64_t> seen;
      for (int64_t bin = 0; bin < 3; ++bin)
        for (int64_t row : packing.rows_of(3 * epoch + bin)) seen.push_back(row);
      std::sort(seen.begin(), seen.end());
      CHECK(seen == std::vector<int64_t>{0, 1, 2, 3, 4});
    }
  }
  CHECK(Packing(lengths, 8, 7, false).rows_of(0) == std::vector<int64_t>{1, 0});  // in the order of the file
  CHECK(Packing({9, 3}, 8, 0, false).rows_of(0) == std::vector<int64_t>{0});      // longer than the budget
}

TEST_CASE("packing: as many bins as best-fit decreasing has, none above its budget, every row once, in every epoch") {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<int64_t> lengths = random_lengths(40 + 30 * seed, seed);
    const Packing packing(lengths, 600, seed, true);
    CHECK(packing.num_bins() == best_fit_bins(lengths, 600));
    CHECK(packing.num_bins() >= packing.fewest_bins());
    std::vector<std::vector<int64_t>> sizes;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<int64_t> seen, totals;
      for (int64_t i = epoch * packing.num_bins(); i < (epoch + 1) * packing.num_bins(); ++i) {
        const std::vector<int64_t> rows = packing.rows_of(i);
        CHECK(packing.num_rows_of(i) == static_cast<int64_t>(rows.size()));
        totals.push_back(0);
        for (int64_t row : rows) totals.back() += lengths[static_cast<size_t>(row)];
        CHECK(totals.back() <= 600);
        seen.insert(seen.end(), rows.begin(), rows.end());
      }
      std::sort(seen.begin(), seen.end());
      for (size_t r = 0; r < lengths.size(); ++r) CHECK(seen[r] == static_cast<int64_t>(r));
      CHECK(seen.size() == lengths.size());
      std::sort(totals.begin(), totals.end());
      sizes.push_back(std::move(totals));
    }
    CHECK(sizes[0] == sizes[1]);
    CHECK(sizes[0] == sizes[2]);
  }
}

TEST_CASE("packing: with shuffle, epochs differ in the order of bins and in which rows share one; a seed decides") {
  const std::vector<int64_t> lengths = random_lengths(300, 3);
  const Packing packing(lengths, 600, 1, true), again(lengths, 600, 1, true), other(lengths, 600, 2, true);
  int moved = 0, apart = 0;
  for (int64_t i = 0; i < packing.num_bins(); ++i) {
    CHECK(packing.rows_of(i) == again.rows_of(i));
    moved += packing.rows_of(i) != packing.rows_of(i + packing.num_bins()) ? 1 : 0;
    apart += packing.rows_of(i) != other.rows_of(i) ? 1 : 0;
  }
  CHECK(moved > packing.num_bins() / 2);
  CHECK(apart > packing.num_bins() / 2);
  const Packing still(lengths, 600, 1, false);
  int64_t before = -1;
  for (int64_t i = 0; i < still.num_bins(); ++i) {
    CHECK(still.rows_of(i) == still.rows_of(i + still.num_bins()));
    const std::vector<int64_t> rows = still.rows_of(i);
    const int64_t first = *std::min_element(rows.begin(), rows.end());
    CHECK(first > before);
    before = first;
  }
}

}  // namespace sluice
