#include "text/byte_trie.h"

#include <algorithm>

namespace sluice {
namespace {

// How many slots are tried for the children of one node before they are given up for ever: bounds the time to build.
constexpr uint32_t window = 64;

}  // namespace

// A base at which every label's slot is free.
uint32_t ByteTrie::place(const std::vector<uint8_t>& labels) {
  const auto is_free = [&](uint32_t slot) { return slot >= slots_.size() || slots_[slot].parent == free_slot; };
  while (!is_free(first_)) ++first_;
  uint32_t base = 0;
  for (uint32_t slot = first_; base == 0; ++slot) {
    if (slot - first_ == window) first_ = slot;
    if (!is_free(slot) || slot <= labels[0]) continue;
    const uint32_t wanted = slot - labels[0];
    if (std::all_of(labels.begin(), labels.end(), [&](uint8_t label) { return is_free(wanted + label); }))
      base = wanted;
  }
  if (slots_.size() < size_t{base} + 256) slots_.resize(size_t{base} + 256);
  return base;
}

ByteTrie::ByteTrie(std::vector<std::pair<std::string_view, int32_t>> keys) {
  std::erase_if(keys, [](const auto& key) { return key.first.empty(); });
  if (keys.empty()) return;
  std::stable_sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  struct Range {
    uint32_t node;
    size_t begin, end, depth;  // keys that agree in their first `depth` bytes
  };
  slots_.resize(1);
  slots_[0].parent = 0;
  std::vector<Range> ranges{{0, 0, keys.size(), 0}};  // breadth first: nodes that many keys share lie together
  std::vector<uint8_t> labels;
  for (size_t next = 0; next < ranges.size(); ++next) {
    auto [node, at, end, depth] = ranges[next];
    for (; at < end && keys[at].first.size() == depth; ++at) slots_[node].value = keys[at].second;
    labels.clear();
    for (size_t i = at; i < end; ++i) {
      const auto label = static_cast<uint8_t>(keys[i].first[depth]);
      if (labels.empty() || labels.back() != label) labels.push_back(label);
    }
    if (labels.empty()) continue;
    const uint32_t base = slots_[node].base = place(labels);
    for (const uint8_t label : labels) {
      const size_t begin = at;
      while (at < end && static_cast<uint8_t>(keys[at].first[depth]) == label) ++at;
      slots_[base + label].parent = node;
      ranges.push_back({base + label, begin, at, depth + 1});
    }
  }
}

}  // namespace sluice
