// What the kernels of attention_decode.cu and decode_tiles.cuh share.
#pragma once

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda::decode {

constexpr int most_sequences = 64;  // of a launch: their table is a kernel parameter

// A sequence as the kernels see it: row r of the visible ones lies at first + r, less `ring` when that is past it.
struct Entry {
  const void *k, *v;
  int64_t first, ring, part;  // part: where its splits lie in the scratch
  int32_t rows, split_rows, index;
};
struct Table {
  Entry entries[most_sequences];
};

// What a split gives for each head: the largest score, the sum of exponentials, and sum_j exp(S_j - top) v_j.
struct Parts {
  float *top, *sum, *acc;  // [parts, H], [parts, H], [parts, H, depth]
};

struct Shared {
  int H, K, D, depth;  // depth: D rounded up to eight
  int head_blocks;     // of a kv head
  float scale, softcap;
  const void* q;
  void* o;
  bool bf16_io;  // q and o
  bool wide_q,
      wide_rows;  // q and the rows of the caches can be read by 16-byte loads
  Parts parts;
};

}  // namespace sluice::cuda::decode
