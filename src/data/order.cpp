#include "data/order.h"

#include <bit>

#include "core/error.h"
#include "core/rng.h"

namespace sluice {

Order::Order(uint64_t seed, int64_t count, bool shuffle) : seed_(seed), count_(count), shuffle_(shuffle) {
  SLUICE_ASSERT(count >= 1 && count < (int64_t{1} << 40));
  half_bits_ = (static_cast<int>(std::bit_width(static_cast<uint64_t>(count - 1))) + 1) / 2;
}

int64_t Order::row_at(int64_t position) const {
  SLUICE_ASSERT(position >= 0);
  const int64_t index = position % count_;
  if (!shuffle_ || count_ == 1) return index;
  // A permutation of a power of four, followed until it comes back below count (cycle walking), is a permutation of
  // [0, count). The power is below 4 * count, so this takes 4 rounds at most on average.
  uint64_t value = static_cast<uint64_t>(index);
  do {
    value = permute(static_cast<uint64_t>(epoch_of(position)), value);
  } while (value >= static_cast<uint64_t>(count_));
  return static_cast<int64_t>(value);
}

// A balanced Feistel network of eight rounds with Philox as the round function (Luby & Rackoff 1988: four suffice for a strong pseudorandom
// permutation of a large set; small sets want more).
uint64_t Order::permute(uint64_t epoch, uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = index >> half_bits_, right = index & mask;
  for (uint32_t round = 0; round < 8; ++round) {
    const uint64_t stream = stream_of("row order", epoch, round);
    const uint64_t next = left ^ (random_bits(seed_, stream, right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

}  // namespace sluice
