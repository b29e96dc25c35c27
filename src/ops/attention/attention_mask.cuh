// The mask of attention on the device (core/spans.h): which token a token sees, and what a block of tokens may see of another.
//
// Spans are numbered by depth-first entry and exit, so that with `enter` and `exit` of their spans
//   query i sees key j  <=>  enter[j] <= enter[i] < exit[j]  and  0 <= position[i] - position[j] < window.
// A key that is seen never lies behind its query. Blocks of 64 tokens carry the ranges of the three numbers: pairs of blocks are left
// out or need no mask by comparing ranges. Memory O(N).
//
//   ArenaScope scope(ctx.arena);
//   const AttentionMask mask = attention_mask(ctx, scope, spans, window);   // pass to kernels by value
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/spans.h"
#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

struct alignas(16) TokenMask {
  int32_t position, enter, exit, unused;
};

// Ranges over some tokens.
struct alignas(16) BlockMask {
  int32_t min_position, max_position, min_enter, max_enter, min_exit, max_exit, unused[2];
};

enum class Sight : int { none, all, some };  // what a block of queries sees of a block of keys

constexpr int mask_block = 64;  // tokens of one BlockMask
constexpr int64_t padded_tokens(
    int64_t num_tokens) {  // with some behind the last, which nobody sees: at least a block of keys
  return (num_tokens + 128 + 255) / 256 * 256;
}
constexpr int32_t no_window = INT32_MAX;

struct AttentionMask {
  const TokenMask* tokens = nullptr;  // [padded_tokens(N)]; not written where single
  const BlockMask* blocks = nullptr;  // [padded_tokens(N) / mask_block]; the same
  int32_t num_tokens = 0;
  int32_t window = no_window;
  bool single = true;  // one root: position = token, and all is known by arithmetic

  __device__ TokenMask token(int32_t i) const {
    if (single) return {i, 0, 1, 0};
    const int4 v = __ldg(reinterpret_cast<const int4*>(tokens + i));
    return {v.x, v.y, v.z, 0};
  }
  // Tokens [64 b, 64 b + 64). The last block of a single root is taken as whole: what lies behind the last token is seen by none.
  __device__ BlockMask block(int32_t b) const {
    if (single) return {b * mask_block, b * mask_block + mask_block - 1, 0, 0, 1, 1, {0, 0}};
    const int4 v = __ldg(reinterpret_cast<const int4*>(blocks + b)),
               w = __ldg(reinterpret_cast<const int4*>(blocks + b) + 1);
    return {v.x, v.y, v.z, v.w, w.x, w.y, {0, 0}};
  }
  __device__ bool sees(const TokenMask& query, const TokenMask& key) const {
    return key.enter <= query.enter && query.enter < key.exit &&
           static_cast<uint32_t>(query.position - key.position) < static_cast<uint32_t>(window);
  }
  // `none` and `all` are certain, `some` is not.
  __device__ Sight sight(const BlockMask& queries, const BlockMask& keys) const {
    if (queries.max_position < keys.min_position || queries.max_enter < keys.min_enter ||
        queries.min_enter >= keys.max_exit || queries.min_position - keys.max_position >= window)
      return Sight::none;
    const bool all = queries.min_position >= keys.max_position && queries.max_position - keys.min_position < window &&
                     keys.max_enter <= queries.min_enter && queries.max_enter < keys.min_exit;
    return all ? Sight::all : Sight::some;
  }
};

__device__ inline BlockMask merge(const BlockMask& a, const BlockMask& b) {
  return {min(a.min_position, b.min_position),
          max(a.max_position, b.max_position),
          min(a.min_enter, b.min_enter),
          max(a.max_enter, b.max_enter),
          min(a.min_exit, b.min_exit),
          max(a.max_exit, b.max_exit),
          {0, 0}};
}

// Of the blocks that hold tokens [first, first + count), first < N, count <= 128.
__device__ inline BlockMask blocks_around(const AttentionMask& mask, int32_t first, int32_t count) {
  int32_t b = first / mask_block;
  BlockMask range = mask.block(b);
  for (++b; b * mask_block < first + count; ++b) range = merge(range, mask.block(b));
  return range;
}

// Of exactly the tokens [first, first + count), count >= 1, all < N; by a whole warp, the same in every lane.
__device__ inline BlockMask range_of_tokens(const AttentionMask& mask, int32_t first, int32_t count) {
  if (mask.single) return {first, first + count - 1, 0, 0, 1, 1, {0, 0}};
  const TokenMask t = mask.token(first);
  BlockMask range{t.position, t.position, t.enter, t.enter, t.exit, t.exit, {0, 0}};
  for (int32_t i = threadIdx.x % 32; i < count; i += 32) {
    const TokenMask u = mask.token(first + i);
    range = merge(range, {u.position, u.position, u.enter, u.enter, u.exit, u.exit, {0, 0}});
  }
  return {__reduce_min_sync(0xffffffffU, range.min_position),
          __reduce_max_sync(0xffffffffU, range.max_position),
          __reduce_min_sync(0xffffffffU, range.min_enter),
          __reduce_max_sync(0xffffffffU, range.max_enter),
          __reduce_min_sync(0xffffffffU, range.min_exit),
          __reduce_max_sync(0xffffffffU, range.max_exit),
          {0, 0}};
}

// Takes scratch by the number of tokens alone; where ctx counts, launches nothing. window 0: none.
AttentionMask attention_mask(Context& ctx, ArenaScope& scope, const Spans& spans, int64_t window);

}  // namespace sluice::cuda
