// Keys of bytes with a value each, to find those that begin a text. Built once, as a double array (Aoe 1989): a node has a base, its
// child by a byte is the slot base + byte, if that slot names the node as its parent. So a step of a search reads one slot.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

class ByteTrie {
 public:
  ByteTrie() = default;
  // Empty keys are left out. Of equal keys the last one counts. Values are at least 0.
  explicit ByteTrie(std::vector<std::pair<std::string_view, int32_t>> keys);

  // Calls visit(length, value) for each key that `text` begins with, shortest first.
  template <class Visit>
  void for_each_prefix(std::string_view text, const Visit& visit) const {
    uint32_t node = 0;
    for (size_t at = 0; at < text.size() && !slots_.empty(); ++at) {
      const uint32_t child = slots_[node].base + static_cast<uint8_t>(text[at]);
      const Slot& slot = slots_[child];
      if (slot.parent != node) return;
      node = child;
      if (slot.value >= 0) visit(at + 1, slot.value);
    }
  }

  // Length and value of the longest key that `text` begins with; length 0 when there is none.
  std::pair<size_t, int32_t> longest_prefix(std::string_view text) const {
    std::pair<size_t, int32_t> longest{0, -1};
    for_each_prefix(text, [&](size_t length, int32_t value) { longest = {length, value}; });
    return longest;
  }

 private:
  static constexpr uint32_t free_slot = UINT32_MAX;
  struct Slot {
    uint32_t base = 0, parent = free_slot;
    int32_t value = -1;
  };
  uint32_t place(const std::vector<uint8_t>& labels);

  std::vector<Slot> slots_;  // 256 more than the last base, so that base + byte is always one
  uint32_t first_ = 1;       // slots before it are taken or given up
};

}  // namespace sluice
