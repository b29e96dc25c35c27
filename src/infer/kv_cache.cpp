#include "infer/kv_cache.h"

namespace sluice {

KvCache::KvCache(Arena& arena, const Model& model, int64_t capacity, DType dtype) : capacity_(capacity) {
  for (const DecoderLayer& layer : model.layers) {
    const LayerConfig& c = layer.config;
    if (c.kv_donor >= 0) {
      index_.push_back(index_[static_cast<size_t>(c.kv_donor)]);
      continue;
    }
    const Shape shape{capacity, c.num_kv_heads * c.head_dim};
    index_.push_back(slots_.size());
    slots_.push_back({.k = arena.tensor(dtype, shape), .v = arena.tensor(dtype, shape)});
  }
}

int64_t KvCache::bytes_per_token(const Model& model, DType dtype) {
  int64_t bytes = 0;
  for (const DecoderLayer& layer : model.layers) {
    if (layer.config.kv_donor < 0) bytes += 2 * layer.config.num_kv_heads * layer.config.head_dim * size_of(dtype);
  }
  return bytes;
}

}  // namespace sluice
