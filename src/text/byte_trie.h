// Keys of bytes with a value each, to find those that begin a text. Built once; the children of a node lie side by side, sorted.
#pragma once

#include <array>
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
    for (size_t at = 0; at < text.size(); ++at) {
      node = at == 0 ? root_[static_cast<uint8_t>(text[0])] : child(node, static_cast<uint8_t>(text[at]));
      if (node == 0) return;
      if (nodes_[node].value >= 0) visit(at + 1, nodes_[node].value);
    }
  }

  // Length and value of the longest key that `text` begins with; length 0 when there is none.
  std::pair<size_t, int32_t> longest_prefix(std::string_view text) const {
    std::pair<size_t, int32_t> longest{0, -1};
    for_each_prefix(text, [&](size_t length, int32_t value) { longest = {length, value}; });
    return longest;
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    int32_t value = -1;
    uint16_t num_children = 0;
  };
  uint32_t child(uint32_t node, uint8_t label) const {  // 0: none
    uint32_t low = nodes_[node].first_child, high = low + nodes_[node].num_children;
    while (high - low > 8) {
      const uint32_t middle = low + (high - low) / 2;
      (labels_[middle] <= label ? low : high) = middle;
    }
    for (; low < high; ++low) {
      if (labels_[low] == label) return low;
    }
    return 0;
  }

  std::vector<Node> nodes_;
  std::vector<uint8_t> labels_;  // by node: the byte that leads to it
  std::array<uint32_t, 256> root_{};
};

}  // namespace sluice
