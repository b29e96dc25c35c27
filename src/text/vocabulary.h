// Token texts and their ids: one block of bytes and one hash table, so that 262,144 tokens load in tens of milliseconds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class Vocabulary {
 public:
  static constexpr int32_t max_id = (1 << 21) - 1;  // eight times the largest vocabulary of today

  void reserve(size_t num_tokens, size_t num_bytes);

  // Throws Error(bad_file) for an id out of range or already taken. A text that is already known keeps its first id for find()
  // and add() returns false. `can_find`: whether find() knows it.
  bool add(int32_t id, std::string_view text, bool can_find = true);

  int32_t find(std::string_view text) const;  // -1 when unknown
  std::string_view text(int32_t id) const;    // empty for an id without a token
  bool has(int32_t id) const { return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].taken; }
  int32_t count() const { return taken_; }                                // ids that have a token
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }  // largest id + 1

 private:
  struct Entry {
    uint32_t begin = 0, length = 0;
    bool taken = false;
  };
  void grow();
  size_t slot_of(std::string_view text) const;

  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<int32_t> slots_;  // ids or -1; a power of two, at most half full
  size_t used_ = 0;             // of them, texts that find() knows
  int32_t taken_ = 0;           // ids
};

}  // namespace sluice
