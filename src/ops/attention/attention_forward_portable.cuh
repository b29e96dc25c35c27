// attention_forward by mma.sync for every card from compute capability 8.0 on: bf16, head dimensions 64, 80, 96, 128, 256.
//
// FlashAttention-2's schedule (arXiv:2307.08691): a block of threads holds a tile of queries of one head, in shared memory, and one block of keys and
// one of values at a time: values come while the scores are formed, the next keys while softmax and the second product run. A second block of threads on the
// multiprocessor fills the gaps. The walk and the softmax are attention_softmax.cuh's, so the bits do not depend on the tiles.
#pragma once

#include "ops/attention/attention.h"
#include "ops/attention/attention_mask.cuh"
#include "ops/attention/attention_portable.h"

namespace sluice::cuda {

// head_dim as portable_forward_of() knows them; q, k, v and o at multiples of 16 bytes.
void forward_portable(Context& ctx, const AttentionForward& args, const AttentionMask& mask);
void forward_wide_portable(Context& ctx, const AttentionForward& args, const AttentionMask& mask);  // head_dim 512

}  // namespace sluice::cuda
