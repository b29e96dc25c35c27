// One new token for each of several sequences: the decoder layers at a few rows, float32 activations, the base in its stored form.
#pragma once

#include <span>
#include <vector>

#include "infer/kv_cache.h"

namespace sluice {

// Runs token b at position caches[b]->length(), appends its keys and values, and gives logits [B, V] f32. Rows are independent: a
// sequence's logits do not depend on the others.
void decode_step(Context& ctx, const Model& model, const Adapter& adapter, const std::vector<int32_t>& tokens,
                 const std::vector<KvCache*>& caches, Tensor logits);

}  // namespace sluice
