#include "data/packing.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/error.h"

namespace sluice {

namespace {

constexpr uint64_t golden = 0x9E3779B97F4A7C15;  // 2^64 over the golden ratio: tells the seeds of the groups apart

// bins[b]: positions in `lengths`, which descend.
std::vector<std::vector<int64_t>> best_fit(const std::vector<int64_t>& lengths, int64_t budget) {
  std::vector<std::vector<int64_t>> bins;
  std::set<std::pair<int64_t, int64_t>> room;  // tokens left, bin
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto fullest = room.lower_bound({lengths[i], 0});
    int64_t left = budget - lengths[i], bin = static_cast<int64_t>(bins.size());
    if (fullest == room.end()) {
      bins.emplace_back();
    } else {
      left = fullest->first - lengths[i];
      bin = fullest->second;
      room.erase(fullest);
    }
    bins[static_cast<size_t>(bin)].push_back(static_cast<int64_t>(i));
    if (left > 0) room.insert({left, bin});
  }
  return bins;
}

}  // namespace

Packing::Packing(const std::vector<int64_t>& lengths, int64_t budget, uint64_t seed, bool shuffle)
    : seed_(seed), shuffle_(shuffle), budget_(static_cast<double>(budget)), by_length_(lengths.size()) {
  SLUICE_ASSERT(!lengths.empty() && budget >= 1);
  const auto length = [&](int64_t row) { return lengths[static_cast<size_t>(row)]; };
  std::iota(by_length_.begin(), by_length_.end(), 0);
  std::stable_sort(by_length_.begin(), by_length_.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<int64_t> sorted;
  int64_t more_than_half = 0, shared = 0;
  for (int64_t row : by_length_) {
    SLUICE_ASSERT(length(row) >= 1);
    const auto at = static_cast<int64_t>(sorted.size());
    group_.push_back(at > 0 && sorted.back() == length(row) ? group_.back() : at);
    sorted.push_back(length(row));
    tokens_ += length(row);
    more_than_half += 2 * length(row) > budget ? 1 : 0;
    shared += std::min(length(row), budget);
  }
  fewest_ = std::max((shared + budget - 1) / budget, more_than_half);
  std::vector<std::vector<int64_t>> bins = best_fit(sorted, budget);
  if (!shuffle) {  // in the order of the file
    const auto first_row = [&](const std::vector<int64_t>& bin) {
      int64_t first = INT64_MAX;
      for (int64_t slot : bin) first = std::min(first, by_length_[static_cast<size_t>(slot)]);
      return first;
    };
    std::sort(bins.begin(), bins.end(), [&](const auto& a, const auto& b) { return first_row(a) < first_row(b); });
  }
  first_.push_back(0);
  for (const std::vector<int64_t>& bin : bins) {
    slots_.insert(slots_.end(), bin.begin(), bin.end());
    first_.push_back(static_cast<int64_t>(slots_.size()));
  }
  bins_ = Order(seed, num_bins(), shuffle);
}

int64_t Packing::num_rows_of(int64_t index) const {
  const auto bin = static_cast<size_t>(bin_at(index));
  return first_[bin + 1] - first_[bin];
}

std::vector<int64_t> Packing::rows_of(int64_t index) const {
  const auto bin = static_cast<size_t>(bin_at(index));
  const int64_t epoch = index / num_bins();
  std::vector<int64_t> rows;
  for (int64_t s = first_[bin]; s < first_[bin + 1]; ++s) {
    const int64_t slot = slots_[static_cast<size_t>(s)], begin = group_[static_cast<size_t>(slot)];
    const int64_t end = std::upper_bound(group_.begin() + slot, group_.end(), begin) - group_.begin();
    const Order places(seed_ ^ golden * static_cast<uint64_t>(begin + 1), end - begin, shuffle_);
    rows.push_back(by_length_[static_cast<size_t>(begin + places.row_at(epoch * (end - begin) + slot - begin))]);
  }
  return rows;
}

}  // namespace sluice
