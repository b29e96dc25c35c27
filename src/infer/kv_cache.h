// Keys and values of one sequence, layer by layer, as the attention reads them (after norms and RoPE).
#pragma once

#include <vector>

#include "model/model.h"

namespace sluice {

class KvCache {
 public:
  // Where one layer's keys and values lie: rows of tokens, or the last `ring` of them, token t in row t % ring.
  struct Layer {
    SharedKv kv;       // [rows, K * D]
    int64_t ring = 0;  // 0: every token has its row
    int64_t row_of(int64_t token) const { return ring > 0 ? token % ring : token; }
  };

  // Room for `capacity` tokens, or for the window's in windowed layers; taken from the arena and lives as long as what was taken. A sharing
  // layer has no room of its own.
  KvCache(Arena& arena, const Model& model, int64_t capacity, DType dtype);

  int64_t capacity() const { return capacity_; }
  int64_t length() const { return length_; }  // tokens held
  void set_length(int64_t length) { length_ = length; }

  // What layer l reads: its own rows or its donor's.
  Layer& layer(int64_t l) { return slots_[index_[static_cast<size_t>(l)]]; }

 private:
  int64_t capacity_ = 0, length_ = 0;
  std::vector<Layer> slots_;
  std::vector<size_t> index_;
};

}  // namespace sluice
