#include "infer/kv_cache.h"

namespace sluice {

KvCache::KvCache(Arena& arena, const Model& model, int64_t capacity, DType dtype) : capacity_(capacity) {
  for (const DecoderLayer& layer : model.layers) {
    const LayerConfig& c = layer.config;
    if (c.kv_donor >= 0) {
      index_.push_back(index_[static_cast<size_t>(c.kv_donor)]);
      continue;
    }
    const int64_t ring = c.window > 0 && c.window < capacity ? c.window : 0;
    const Shape shape{ring > 0 ? ring : capacity, c.num_kv_heads * c.head_dim};
    index_.push_back(slots_.size());
    slots_.push_back(
        {.kv = {.k = arena.tensor(dtype, shape), .v = arena.tensor(dtype, shape), .dk = {}, .dv = {}}, .ring = ring});
  }
}

}  // namespace sluice
