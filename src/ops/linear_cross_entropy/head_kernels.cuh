// The head's kernels that are bound by memory or hardly run: rows of tiles into sums, sums into results. For
// linear_cross_entropy.cu.
#pragma once

#include "ops/linear_cross_entropy/head_rows.cuh"

namespace sluice::cuda {
namespace {

constexpr int warps_per_block = 8;

__global__ void start_rows(int rows, RowSum* sums, float* at_target) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  if (sums != nullptr) sums[row] = {0.0, -INFINITY, 0.0F, 0.0F, 0, -INFINITY};
  at_target[row] = NAN;  // what a target outside [0, V) gives
}

// The largest coefficient of a tile of P that is more than half of it: what its rounding took. A warp's work.
struct Top {
  float residual;
  int column;  // of the tile
};
__device__ inline Top find_top(const __nv_bfloat16* p, float of_p, int lane) {
  const Bf16x8 eight = *reinterpret_cast<const Bf16x8*>(p + 8 * lane);
  float sum = 0, largest = -INFINITY;
  int column = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float k = i % 2 == 0 ? __low2float(eight.v[i / 2]) : __high2float(eight.v[i / 2]);
    sum += k;
    if (k > largest) largest = k, column = 8 * lane + i;
  }
  sum = warp_sum(sum);
  const float top = warp_max(largest);
  const unsigned who = __ballot_sync(0xffffffffU, largest == top);
  if (who == 0 || !(2 * top >= sum)) return {0.0F, 0};
  return {of_p - sum, __shfl_sync(0xffffffffU, column, __ffs(static_cast<int>(who)) - 1)};
}

// Blocks in order into the rows' sums; one warp a row. Coefficients of tiles whose reference is not their block's are
// brought to it. `scales` [blocks, rows] and p may be null.
template <class P>
__global__ void combine_tiles(HeadTiles a, RowSum* sums, BlockScale* scales) {
  const int row = static_cast<int>(blockIdx.x * warps_per_block + threadIdx.x / 32), lane = threadIdx.x % 32;
  if (row >= a.rows) return;
  static_assert(tiles_per_block == 32);
  constexpr TileSum none = {0.0F, -INFINITY, 0.0F, -INFINITY};
  const int tiles = (a.columns + head_tile - 1) / head_tile;
  const TileSum* of_row = a.tiles + static_cast<int64_t>(row) * a.tile_stride;
  P* const p = static_cast<P*>(a.p) + row * a.p_stride;
  RowSum sum = sums[row];
  TileSum next = lane < tiles ? of_row[lane] : none;
  for (int first = 0; first < tiles; first += tiles_per_block) {
    const TileSum t = next;
    const bool real = first + lane < tiles, more = first + tiles_per_block + lane < tiles;
    next = more ? of_row[first + tiles_per_block + lane] : none;
    const float reference = warp_max(t.reference);
    const float factor = real ? exp2f(t.reference - reference) : 0.0F;
    const float block_sum = warp_sum(real ? t.sum * factor : 0.0F);
    if (a.p != nullptr) {
      for (unsigned others = __ballot_sync(0xffffffffU, real && t.reference != reference); others != 0;
           others &= others - 1) {
        const int tile = __ffs(static_cast<int>(others)) - 1;
        const float by = __shfl_sync(0xffffffffU, factor, tile);
        P* const at = p + (first + tile) * head_tile;
        for (int i = lane; i < head_tile; i += 32) at[i] = from_float<P>(to_float(at[i]) * by);
      }
      __syncwarp();
    }
    sum.largest = fmaxf(sum.largest, warp_max(t.largest));
    const float largest = fmaxf(sum.reference, reference);
    const BlockScale scale = {exp2f(sum.reference - largest), exp2f(reference - largest)};
    sum.sum = sum.sum * static_cast<double>(scale.of_old) +
              static_cast<double>(block_sum) * static_cast<double>(scale.of_new);
    sum.reference = largest;
    if (scales != nullptr && lane == 0) scales[static_cast<int64_t>(first / tiles_per_block) * a.rows + row] = scale;
    if constexpr (sizeof(P) == 2) {
      if (a.p == nullptr) continue;
      sum.top *= scale.of_old;
      sum.top_residual *= scale.of_old;
      const float of_p = real ? t.of_p * factor : 0.0F, most = warp_max(of_p);
      const unsigned who = __ballot_sync(0xffffffffU, of_p == most);
      if (who == 0 || !(most * scale.of_new > sum.top)) continue;
      sum.top = most * scale.of_new;
      sum.top_residual = 0;
      if (8 * static_cast<double>(sum.top) < sum.sum) continue;
      const int tile = first + __ffs(static_cast<int>(who)) - 1;
      const Top top = find_top(p + tile * head_tile, most, lane);
      sum.top_residual = top.residual * scale.of_new;
      sum.top_column = static_cast<int>(a.begin) + tile * head_tile + top.column;
    }
  }
  if (lane == 0) sums[row] = sum;
}

// Where the results of a chunk's rows go; hit may be null.
struct RowResults {
  float *logp, *lse, *hit;
};
// log p = -log1p(S / e_t) where that keeps digits; see RowSum.
__global__ void finish_rows(int rows, float softcap, const RowSum* sums, const float* target_z, RowResults to,
                            RowCoefficients* coefficients) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  const double cap = static_cast<double>(softcap), z = static_cast<double>(target_z[row]);
  const double tanh_z = softcap > 0 ? tanh(z / cap) : 0.0, l = softcap > 0 ? cap * tanh_z : z;
  const double base = static_cast<double>(log2_e), reference = static_cast<double>(sums[row].reference);
  const double sum = sums[row].sum, x = l * base - reference, e = exp2(x), ratio = sum / e, all = log2(sum + e);
  to.logp[row] = static_cast<float>(ratio < 1 ? -log1p(ratio) : (x - all) / base);
  if (to.hit != nullptr) to.hit[row] = target_z[row] >= sums[row].largest ? 1.0F : 0.0F;
  to.lse[row] = static_cast<float>((reference + all) / base);
  if (coefficients == nullptr) return;
  const double others = ratio < 1 ? ratio / (1 + ratio) : 1 / (1 + 1 / ratio);
  const double residual = static_cast<double>(sums[row].top_residual);
  coefficients[row] = {static_cast<float>(others * (1 - tanh_z * tanh_z)), static_cast<float>(1 / (sum + e)),
                       static_cast<float>(residual / (sum + e)), sums[row].top_column};
}

__global__ void finish_rows_backward(int rows, const float* at_target, RowCoefficients* coefficients) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < rows) coefficients[row] = {at_target[row], 1.0F, 0.0F, 0};
}

// dh = at_target W[target] - of_sum acc - of_top W[top]. Rows of W come from the weight, or from [rows, C] where they
// were gathered. acc may be dh.
template <class T>
struct WeightRows {
  const T *weight, *targets, *tops;  // weight or the others
};
template <class T, class Out>
__global__ void finish_gradient(int64_t C, int64_t V, const RowCoefficients* coefficients, const float* acc,
                                WeightRows<T> w, const int32_t* targets, Out* dh) {
  const int64_t row = blockIdx.x;
  const RowCoefficients k = coefficients[row];
  const int64_t target = targets[row];
  const T* const of_target =
      w.weight != nullptr ? w.weight + (target >= 0 && target < V ? target : 0) * C : w.targets + row * C;
  const T* const of_top = w.weight != nullptr ? w.weight + k.top * C : w.tops + row * C;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    float sum = k.of_sum * acc[row * C + c];
    if (k.of_top != 0) sum = fmaf(k.of_top, to_float(of_top[c]), sum);
    dh[row * C + c] = from_float<Out>(fmaf(k.at_target, to_float(of_target[c]), -sum));
  }
}

// Rows of a dequantised part of the weight, [columns, C] from row `begin` on, that are targets, or tops.
template <class T>
__global__ void gather_rows_of_part(int64_t C, int64_t begin, int64_t columns, const T* panel, const int32_t* targets,
                                    const RowSum* sums, T* rows) {
  const int64_t from = (targets != nullptr ? targets[blockIdx.x] : sums[blockIdx.x].top_column) - begin;
  if (from < 0 || from >= columns) return;
  for (int64_t c = threadIdx.x; c < C; c += blockDim.x) rows[blockIdx.x * C + c] = panel[from * C + c];
}

// Sums of |coefficient| of a row, and of those that were skipped.
struct Mass {
  double all, skipped;
};
__device__ inline double warp_sum(double x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}
// mass[row] += that of the row's tiles; one warp a row.
__global__ void add_mass(HeadTiles a, Mass* mass) {
  const int row = static_cast<int>(blockIdx.x * warps_per_block + threadIdx.x / 32), lane = threadIdx.x % 32;
  if (row >= a.rows) return;
  Mass sum = {};
  for (int tile = lane; tile < (a.columns + head_tile - 1) / head_tile; tile += 32) {
    const TileSum t = a.tiles[static_cast<int64_t>(row) * a.tile_stride + tile];
    sum.all += static_cast<double>(t.sum);
    sum.skipped += static_cast<double>(t.reference);
  }
  sum = {warp_sum(sum.all), warp_sum(sum.skipped)};
  if (lane == 0) mass[row].all += sum.all, mass[row].skipped += sum.skipped;
}
// total += the rows' mass; one warp.
__global__ void add_total(int rows, const Mass* mass, Mass* total) {
  Mass sum = {};
  for (int row = static_cast<int>(threadIdx.x); row < rows; row += 32)
    sum.all += mass[row].all, sum.skipped += mass[row].skipped;
  sum = {warp_sum(sum.all), warp_sum(sum.skipped)};
  if (threadIdx.x == 0) total->all += sum.all, total->skipped += sum.skipped;
}
__global__ void finish_dropped(const Mass* total, float* dropped) {
  dropped[0] = total->all > 0 ? static_cast<float>(total->skipped / total->all) : 0.0F;
}

__global__ void cap_all(int64_t count, float softcap, float* z) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) z[i] = softcap * tanhf(z[i] / softcap);
}

}  // namespace
}  // namespace sluice::cuda
