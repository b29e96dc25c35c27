// What the two forward kernels of Hopper share: the order of the tiles. A tile is some heads of one group times some consecutive queries; its
// rows are head after head.
#pragma once

#include "ops/attention/attention.h"
#include "ops/attention/attention_softmax.cuh"
#include "ops/common/cuda_utils.cuh"
#include "ops/common/sm90.cuh"

namespace sluice::cuda {

// Tiles in the order of work: some kv heads whose keys and values fit the L2 cache, then their queries from the last, which see most, to
// the first, then the heads.
struct ForwardTiles {
  int32_t queries, heads;  // of a tile; powers of two
  int32_t together;        // tiles of neighbouring heads that a cluster of blocks takes at once
  int32_t num_query_tiles;
  int32_t head_tiles_together;  // of one section
  int32_t num_tiles;            // or sets of tiles, with clusters
};

struct ForwardTile {
  int32_t first_query, first_head;
};
__device__ inline ForwardTile tile_at(const ForwardTiles& tiles, int32_t index) {
  const int32_t section_size = tiles.num_query_tiles * tiles.head_tiles_together;
  const int32_t section = index / section_size, rest = index - section * section_size;
  const int32_t query_tile = rest / tiles.head_tiles_together;
  return {(tiles.num_query_tiles - 1 - query_tile) * tiles.queries,
          (section * tiles.head_tiles_together + rest - query_tile * tiles.head_tiles_together) * tiles.heads *
              tiles.together};
}

struct ForwardParams {
  AttentionMask mask;
  ForwardTiles tiles;
  int32_t query_begin, num_queries, num_heads, group;  // group: heads of one kv head
  float scale, softcap;
  __nv_bfloat16* o;
  float* lse;
  int32_t* next_tile;  // how many tiles have been taken beyond the first of each block

  // Of a tile, counted from the first token of all.
  __device__ int32_t last_token(int32_t first_query) const {
    return query_begin + min(first_query + tiles.queries, num_queries) - 1;
  }
};

// rows: of a tile, heads x queries; heads <= most_heads. cache_bytes: what the keys and values of a section may take.
ForwardTiles forward_tiles(const AttentionForward& args, int rows, int most_heads, int together, int64_t cache_bytes);
ForwardParams forward_params(const AttentionForward& args, const AttentionMask& mask, const ForwardTiles& tiles,
                             int32_t* next_tile);

void forward_narrow(Context& ctx, const AttentionForward& args, const AttentionMask& mask,
                    int32_t* next_tile);                                                   // head_dim 64, 128, 256
void forward_wide(Context& ctx, const AttentionForward& args, const AttentionMask& mask);  // head_dim 512

#ifdef SLUICE_SM90A

// Operand A stays in its registers until here: after the wait for the product.
template <int steps>
__device__ __forceinline__ void hold_operand(uint32_t (&p)[steps][4]) {
#pragma unroll
  for (int k = 0; k < steps; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(p[k][i])::"memory");
  }
}

#endif  // SLUICE_SM90A

}  // namespace sluice::cuda
