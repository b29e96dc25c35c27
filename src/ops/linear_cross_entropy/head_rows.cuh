// What both CUDA paths of the head share: how a row's exponentials are held, and the kernels that turn them into results.
//
// The vocabulary is walked in blocks of 8192 columns, those in tiles of 256. A tile keeps, for each row, the sum of
// e[v] = 2^(l[v] log2 e - reference) without the target's, and the coefficients P[v] = e[v] dl/dz, the target's being 0.
// The reference is a multiple of 128 near the tile's largest exponent, so nearly always 0; e lies within 2^±64 at its
// largest, where float32 and bf16 have room on both sides. So coefficients are rounded once, all later scaling is by powers
// of two, and nothing depends on what came before: a row's results do not depend on how many blocks are in flight.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

constexpr int head_tile = 256, head_block = 8192, tiles_per_block = head_block / head_tile;

constexpr float log2_e = 1.44269504F;

// The target's column is left out of every sum: with a row's sum S of the others, p = e_t / (S + e_t) and 1 - p =
// S / (S + e_t) keep their digits on rows that the model already knows.
struct RowSum {
  double sum;       // relative to 2^reference
  float reference;  // -inf before the first block
  // P is rounded to bf16, 2^-8 of a coefficient at worst. Where one coefficient is most of a row, that would be the error
  // of dh; so what rounding took from the largest is kept, and added at the end.
  float top;           // the largest sum of coefficients of a tile, relative to 2^reference
  float top_residual;  // relative to 2^reference; 0: no coefficient stands out
  int top_column;      // of the vocabulary
  float largest;       // z of all columns, the target's included, before the soft cap
};

// What is done with a row when its sums are known: dh = at_target W[target] - of_sum acc - of_top W[top].
struct RowCoefficients {
  float at_target, of_sum, of_top;
  int top;
};

// Of one row of one tile. Backward: the sum of |coefficients|, what of it is skipped, nothing, nothing.
struct TileSum {
  float sum, reference;
  float of_p;     // the coefficients' sum, before they are rounded
  float largest;  // z of its columns, the target's included
};

// Of one block of one row: acc = acc * of_old + product * of_new.
struct BlockScale {
  float of_old, of_new;
};

// Part of the vocabulary against a chunk of rows: the input and output of the first product's epilogue.
struct HeadTiles {
  int rows = 0;       // of the chunk
  int64_t begin = 0;  // first column of the vocabulary
  int columns = 0;    // of this part
  float softcap = 0;
  const int32_t* targets = nullptr;  // [rows]
  void* p = nullptr;                 // [rows, stride] coefficients; null: not wanted
  int64_t p_stride = 0;
  TileSum* tiles = nullptr;  // [rows, tile_stride]
  int tile_stride = 0;
  float* at_target = nullptr;  // [rows]: forward the target's z; backward its coefficient
  // backward
  const float* lse = nullptr;
  const float* g = nullptr;
  float skip_below = 0;
};

// A multiple of 128; the largest of a tile may be anything, NaN included.
__device__ inline float reference_of(float largest) {
  return 128.0F * rintf(fminf(fmaxf(largest, -1e30F), 1e30F) * (log2_e / 128.0F));
}

// The coefficient at the target, g (1 - p) dl/dz, from its capped logit.
__device__ inline float coefficient_at_target(float l, float lse, float g, float slope) {
  return -expm1f(fminf(l - lse, 0.0F)) * g * slope;
}

}  // namespace sluice::cuda
