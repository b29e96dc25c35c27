// Keys and values of one sequence, layer by layer, as the attention reads them (after norms and RoPE).
#pragma once

#include <vector>

#include "model/model.h"

namespace sluice {

class KvCache {
 public:
  // Room for `capacity` tokens; taken from the arena and lives as long as what was taken. A sharing layer has no room of its own.
  KvCache(Arena& arena, const Model& model, int64_t capacity, DType dtype);

  int64_t capacity() const { return capacity_; }
  int64_t length() const { return length_; }  // tokens held
  void set_length(int64_t length) { length_ = length; }

  // What layer l reads: its own rows or its donor's. [capacity, K * D]
  SharedKv& layer(int64_t l) { return slots_[index_[static_cast<size_t>(l)]]; }

  // Bytes for one token in all layers.
  static int64_t bytes_per_token(const Model& model, DType dtype);

 private:
  int64_t capacity_ = 0, length_ = 0;
  std::vector<SharedKv> slots_;
  std::vector<size_t> index_;
};

}  // namespace sluice
