// Operands of mma.sync from tiles in shared memory (attention_portable.h: how their rows lie), and copies into them. Nothing here needs more
// than compute capability 8.0.
#pragma once

#include "ops/attention/attention_portable.h"
#include "ops/common/cuda_utils.cuh"
#include "ops/common/mma.cuh"

namespace sluice::cuda {

// A bf16 matrix in global memory of which a tile is copied: rows from `first` on, zeros from `end` on.
struct TileSource {
  const __nv_bfloat16* data;
  int64_t stride;
  int32_t first, end;
};

// `columns` columns of `rows` rows to shared memory, zeros from column `valid` on. By all threads of the block.
template <int rows, int columns, int threads>
__device__ __forceinline__ void copy_tile(uint32_t shared, const TileSource& from, int32_t valid) {
  constexpr int units = columns / 8, row_bytes = static_cast<int>(tile_row_bytes(columns));
  const int thread = static_cast<int>(threadIdx.x);
  if constexpr (threads % units == 0) {  // a thread keeps its columns
    constexpr int rows_at_once = threads / units;
    static_assert(rows % rows_at_once == 0);
    const int row = thread / units, unit = thread % units, last = 8 * unit < valid ? from.end : 0;
    const __nv_bfloat16* const source = from.data + (from.first + row) * from.stride + 8 * unit;
    const uint32_t to = shared + row * row_bytes + 16 * unit;
#pragma unroll
    for (int i = 0; i < rows / rows_at_once; ++i) {
      const bool inside = from.first + row + i * rows_at_once < last;
      copy_async_part_16(to + i * rows_at_once * row_bytes,
                         inside ? source + i * (rows_at_once * from.stride) : from.data, inside ? 16 : 0);
    }
  } else {
#pragma unroll
    for (int i = 0; i < (rows * units + threads - 1) / threads; ++i) {
      const int at = i * threads + thread, row = at / units, unit = at % units;
      if (rows * units % threads != 0 && at >= rows * units) break;
      const bool inside = from.first + row < from.end && 8 * unit < valid;
      copy_async_part_16(shared + row * row_bytes + 16 * unit,
                         inside ? from.data + (from.first + row) * from.stride + 8 * unit : from.data, inside ? 16 : 0);
    }
  }
}

// The address that this lane gives to ldmatrix_x4 for the four 8 x 8 matrices of 16 x 16 elements. Matrix 1 lies below matrix 0 (and 2 beside it)
// or beside it (and 2 below). Of mma.sync, the left operand and a right one that is read transposed want the first, a right one whose columns
// are the tile's rows the second; a left one that is read transposed too.
enum class Quarters { below_first, beside_first };
template <Quarters order, int columns>
__device__ __forceinline__ uint32_t lane_address(uint32_t tile) {
  const uint32_t lane = threadIdx.x % 32, low = lane % 8, one = lane / 8 % 2 * 8, two = lane / 16 * 8;
  const uint32_t row = order == Quarters::below_first ? low + one : low + two,
                 column = order == Quarters::below_first ? two : one;
  return tile + row * static_cast<uint32_t>(tile_row_bytes(columns)) + column * 2;
}

}  // namespace sluice::cuda
