#include "text/byte_trie.h"

#include <algorithm>

namespace sluice {

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> keys) {
  std::erase_if(keys, [](const auto& key) { return key.first.empty(); });
  std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {
    size_t begin, end, depth;  // keys that agree in their first `depth` bytes
  };
  std::vector<Range> ranges{
      {0, keys.size(), 0}};  // by node: breadth first, so that the children of a node lie side by side
  nodes_.emplace_back();
  labels_.push_back(0);
  for (size_t node = 0; node < ranges.size(); ++node) {
    auto [at, end, depth] = ranges[node];
    for (; at < end && keys[at].first.size() == depth; ++at) nodes_[node].value = keys[at].second;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (at < end) {
      const auto label = static_cast<uint8_t>(keys[at].first[depth]);
      const size_t begin = at;
      while (at < end && static_cast<uint8_t>(keys[at].first[depth]) == label) ++at;
      if (node == 0) root_[label] = static_cast<uint32_t>(nodes_.size());
      ranges.push_back({begin, at, depth + 1});
      nodes_.emplace_back();
      labels_.push_back(label);
      ++nodes_[node].num_children;
    }
  }
}

}  // namespace sluice
