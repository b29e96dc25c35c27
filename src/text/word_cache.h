// Remembers the tokens of words already encoded. Direct-mapped: a newer word takes the place of an older one, so its memory is
// bounded; it changes how fast an answer comes, never the answer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/token_model.h"

namespace sluice {

class WordCache {
 public:
  static constexpr size_t longest_word = 48;

  // The tokens of `word`, or an empty span. Valid until the next insert().
  std::span<const Symbol> find(std::string_view word) const {
    if (word.size() > longest_word) return {};
    const Slot& slot = slots_[slot_of(word)];
    if (std::string_view(keys_).substr(slot.key_begin, slot.key_size) != word) return {};
    return std::span(symbols_).subspan(slot.symbols_begin, slot.num_symbols);
  }

  void insert(std::string_view word, std::span<const Symbol> symbols) {
    if (word.size() > longest_word || symbols.empty()) return;
    if (keys_.size() + symbols_.size() > arena_limit) {
      slots_.assign(num_slots, Slot{});
      keys_.clear();
      symbols_.clear();
    }
    slots_[slot_of(word)] = {static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(symbols_.size()),
                             static_cast<uint16_t>(word.size()), static_cast<uint16_t>(symbols.size())};
    keys_ += word;
    symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
  }

 private:
  static constexpr size_t num_slots = 1 << 15, arena_limit = 1 << 20;
  struct Slot {
    uint32_t key_begin = 0, symbols_begin = 0;
    uint16_t key_size = 0, num_symbols = 0;
  };
  static size_t slot_of(std::string_view word) { return std::hash<std::string_view>{}(word) & (num_slots - 1); }

  std::vector<Slot> slots_ = std::vector<Slot>(num_slots);
  std::string keys_;
  std::vector<Symbol> symbols_;
};

}  // namespace sluice
