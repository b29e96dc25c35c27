// The tiles that forward and backward share. A tile is `heads` query heads of one kv head times one block of queries, head after
// head, against one visit's keys: rows [heads * rows_each, depth] of q, do_ and o, rows [n, depth] of k and v, scores
// [heads * rows_each, n]. All are packed copies, padded with zeros, so that few shapes of products exist and none has gaps.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/attention.h"
#include "ops/attention/attention_schedule.h"
#include "ops/gemm/gemm.h"

namespace sluice::attention {

// How many heads share a tile, and the blocks: a function of the shape alone, since they group sums. Several heads make products
// large enough at 64 rows each, where fewer hidden scores are computed; the limits keep a tile in the L2 cache.
struct Grouping {
  int64_t heads;
  Blocks blocks;
};

// 128 keys forward; 256 backward, where each block of keys passes over q, do_ and dq.
inline Grouping grouping_of(const AttentionShape& shape, int64_t key_block) {
  constexpr int64_t most_heads = 8, most_width = 1024;
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  int64_t heads = std::clamp(most_width / shape.head_dim, int64_t{1}, std::min(group, most_heads));
  while (group % heads != 0) --heads;
  return {heads, {.queries = heads > 1 ? 64 : 128, .keys = key_block}};
}

struct Tile {
  int64_t heads, rows, rows_each, depth;  // rows of rows_each are real, the others zero
  int64_t m() const { return heads * rows_each; }
};

inline int64_t padded_depth(int64_t head_dim) { return round_up(head_dim, 16); }

inline Tile tile_of(const Schedule& schedule, const Grouping& grouping, int64_t block, int64_t head_dim) {
  const int64_t rows = schedule.num_rows(block);
  return {grouping.heads, rows, round_up(rows, grain), padded_depth(head_dim)};
}

template <class T>
Gemm scores_product(int64_t m, int64_t n, int64_t depth, const T* a, const T* b,
                    float* c) {  // C[m,n] = A[m,depth] B[n,depth]^T
  return {.m = m,
          .n = n,
          .k = depth,
          .dtype = dtype_of<T>::value,
          .a = a,
          .lda = depth,
          .b = b,
          .ldb = depth,
          .transpose_b = true,
          .c = c,
          .ldc = n};
}

template <class T>
Gemm rows_product(int64_t m, int64_t n, int64_t depth, const T* p, const T* b, float* c,
                  Write write) {  // C[m,depth] = P[m,n] B[n,depth]
  return {.m = m,
          .n = depth,
          .k = n,
          .dtype = dtype_of<T>::value,
          .a = p,
          .lda = n,
          .b = b,
          .ldb = depth,
          .c = c,
          .ldc = depth,
          .write = write};
}

template <class T>
Gemm columns_product(int64_t m, int64_t n, int64_t depth, const T* p, const T* b,
                     float* c) {  // C[n,depth] += P[m,n]^T B[m,depth]
  return {.m = n,
          .n = depth,
          .k = m,
          .dtype = dtype_of<T>::value,
          .a = p,
          .lda = n,
          .transpose_a = true,
          .b = b,
          .ldb = depth,
          .c = c,
          .ldc = depth,
          .write = Write::add};
}

// f(m, n) for every shape of a tile of scores that can occur.
template <class F>
void for_each_tile_shape(const Schedule& schedule, const Grouping& grouping, F f) {
  const int64_t blocks = schedule.num_query_blocks();
  for (int64_t block : {int64_t{0}, blocks - 1}) {
    for (int64_t n = grain; n <= grouping.blocks.keys; n += grain)
      f(grouping.heads * round_up(schedule.num_rows(block), grain), n);
    if (blocks == 1) break;
  }
}

// Hands out parts of a block of memory; from address 0 it only counts.
struct Carve {
  uintptr_t at;
  template <class T>
  T* take(int64_t count) {
    T* part = reinterpret_cast<T*>(at);
    at += static_cast<uintptr_t>(round_up(count * static_cast<int64_t>(sizeof(T)), 64));
    return part;
  }
};

}  // namespace sluice::attention
