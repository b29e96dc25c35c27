// What the Hopper path does in its products' epilogues, for logits that another product left in memory. For
// linear_cross_entropy.cu.
#pragma once

#include "ops/linear_cross_entropy/head_kernels.cuh"

namespace sluice::cuda {
namespace {

// A warp makes of 256 logits z [rows, p_stride] of a row coefficients (which may take their place) and their tile's sums.
struct Logits {
  float z[8], l[8], slope[8];
  bool real[8], target[8];
};
__device__ inline Logits load_logits(const HeadTiles& a, const float* z, int row, int tile, int lane) {
  Logits out;
  z += row * a.p_stride;
  const int64_t target = a.targets[row] - a.begin;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int col = tile * head_tile + lane + 32 * i;
    out.real[i] = col < a.columns;
    out.target[i] = out.real[i] && col == target;
    out.z[i] = out.real[i] ? z[col] : 0.0F;
    const float tanh_z = a.softcap > 0 ? tanhf(out.z[i] / a.softcap) : 0.0F;
    out.l[i] = a.softcap > 0 ? a.softcap * tanh_z : out.z[i];
    out.slope[i] = fmaf(-tanh_z, tanh_z, 1.0F);
  }
  return out;
}
// P keeps whole tiles: what lies past the last column is 0.
template <class T>
__global__ void tiles_forward(HeadTiles a, const float* z) {
  const int row = static_cast<int>(blockIdx.y), lane = threadIdx.x % 32;
  const int tile = static_cast<int>(blockIdx.x * warps_per_block + threadIdx.x / 32);
  if (tile * head_tile >= a.columns) return;
  const Logits in = load_logits(a, z, row, tile, lane);
  float largest = -INFINITY, largest_z = -INFINITY;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (in.real[i]) largest = fmaxf(largest, in.l[i]), largest_z = fmaxf(largest_z, in.z[i]);
  largest_z = warp_max(largest_z);
  const float reference = reference_of(warp_max(largest));
  T* p = static_cast<T*>(a.p) + row * a.p_stride + tile * head_tile;
  float sum = 0, of_p = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bool counts = in.real[i] && !in.target[i];
    const float e = counts ? exp2f(fmaf(in.l[i], log2_e, -reference)) : 0.0F;
    sum = __fadd_rn(sum, e);
    if (in.target[i]) a.at_target[row] = in.z[i];
    const float k = e * in.slope[i];
    of_p = __fadd_rn(of_p, k);
    if (a.p != nullptr) p[lane + 32 * i] = from_float<T>(k);
  }
  sum = warp_sum(sum);
  of_p = warp_sum(of_p);
  if (lane == 0) a.tiles[static_cast<int64_t>(row) * a.tile_stride + tile] = {sum, reference, of_p, largest_z};
}
template <class T>
__global__ void tiles_backward(HeadTiles a, const float* z) {
  const int row = static_cast<int>(blockIdx.y), lane = threadIdx.x % 32;
  const int tile = static_cast<int>(blockIdx.x * warps_per_block + threadIdx.x / 32);
  if (tile * head_tile >= a.columns) return;
  const Logits in = load_logits(a, z, row, tile, lane);
  const float lse = a.lse[row], g = a.g[row];
  float k[8], sum = 0, largest = 0, at_target = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    k[i] = in.real[i] && !in.target[i] ? expf(in.l[i] - lse) * g * in.slope[i] : 0.0F;
    if (in.target[i]) at_target = coefficient_at_target(in.l[i], lse, g, in.slope[i]);
    const float magnitude = fabsf(in.target[i] ? at_target : k[i]);
    sum += magnitude;
    largest = fmaxf(largest, magnitude);
  }
  sum = warp_sum(sum);
  const bool skipped = warp_max(largest) < a.skip_below && sum == sum;  // NaN is not skipped
  T* p = static_cast<T*>(a.p) + row * a.p_stride + tile * head_tile;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (in.target[i]) a.at_target[row] = skipped ? 0.0F : at_target;
    p[lane + 32 * i] = from_float<T>(skipped ? 0.0F : k[i]);
  }
  if (lane == 0) a.tiles[static_cast<int64_t>(row) * a.tile_stride + tile] = {sum, skipped ? sum : 0.0F, 0.0F, 0.0F};
}

// The scales of one block, which are nearly always 1, on what is about to be added.
template <class T>
__global__ void apply_scales(const BlockScale* scales, bool first, int64_t C, float* acc, T* p, int64_t p_stride,
                             int columns) {
  const int64_t row = blockIdx.x;
  const BlockScale scale = scales[row];
  if (!first && scale.of_old != 1.0F) {
    for (int64_t c = threadIdx.x; c < C; c += blockDim.x) acc[row * C + c] *= scale.of_old;
  }
  if (scale.of_new != 1.0F) {
    for (int64_t v = threadIdx.x; v < columns; v += blockDim.x) {
      T& k = p[row * p_stride + v];
      k = from_float<T>(to_float(k) * scale.of_new);
    }
  }
}

}  // namespace
}  // namespace sluice::cuda
