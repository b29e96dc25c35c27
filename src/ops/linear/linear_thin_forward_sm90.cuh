// The forward of linear_thin_sm90.cuh: low [N, padded] = round(factor * dropout(x) A^T).
#pragma once

#include "ops/linear/linear_thin_sm90.cuh"

namespace sluice::cuda::thin_sm90 {

constexpr int forward_slabs = 4, forward_stages = 5;  // slabs of a tile
template <int block_rows>
constexpr int forward_stage_bytes = forward_slabs*(block_rows * 128 + w_slab_bytes);
template <int block_rows>
constexpr int forward_shared_bytes = 1024 + forward_stages* forward_stage_bytes<block_rows> + 128;

struct ForwardArgs {
  int rows, padded, cols, range_slabs, num_slabs;
  float factor;
  Keep keep;           // of x, or none
  __nv_bfloat16* low;  // [rows, padded]
};

template <int block_rows, bool masked>
__global__ void __launch_bounds__(threads, 1)
    forward_kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
                   const __grid_constant__ ForwardArgs p) {
#ifdef SLUICE_SM90A
  constexpr int stage_bytes = forward_stage_bytes<block_rows>, stages = forward_stages, x_bytes = block_rows * 128;
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const shared = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
  Ring<stages> ring(reinterpret_cast<uint64_t*>(shared + stages * stage_bytes));
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int row0 = static_cast<int>(blockIdx.x) * block_rows;
  // The warps of a part have 8 rows each; the parts share the ranges. A tile has slabs of every part.
  constexpr int part_warps = block_rows / 8, parts = warps / part_warps, part_slabs = forward_slabs / parts;
  const int tiles = p.range_slabs * (ranges / parts) / part_slabs;
  const auto slab_of = [&](int i, int s) {  // s of tile i
    return s / part_slabs * (ranges / parts) * p.range_slabs + i * part_slabs + s % part_slabs;
  };
  const auto issue_parts = [&](int i, bool x, bool w) {
    uint8_t* const to = shared + i % stages * stage_bytes;
    uint64_t* const full = ring.full + i % stages;
    int slabs = 0;
    for (int s = 0; s < forward_slabs; ++s) slabs += slab_of(i, s) < p.num_slabs ? 1 : 0;
    if (x) barrier_expect_bytes(full, slabs * (x_bytes + w_slab_bytes));
    for (int s = 0; s < forward_slabs; ++s) {
      const int slab = slab_of(i, s);
      if (slab >= p.num_slabs) continue;
      if (x) tma_load(to + s * x_bytes, &map_x, full, slab * slab_cols, row0);
      if (w) tma_load(to + forward_slabs * x_bytes + s * w_slab_bytes, &map_w, full, slab * slab_cols, 0);
    }
  };
  const auto issue = [&](int i) { issue_parts(i, true, true); };
  ring.start(tiles, issue_parts);

  const int part = warp / part_warps, line = 8 * (warp % part_warps) + lane % 8;
  float sum[4] = {};
  Tree<4> tree;
  int range = 0, rest = p.range_slabs;
  for (int i = 0; i < tiles; ++i) {
    Mask<block_rows, forward_slabs, threads> mask;
    if constexpr (masked) {
      mask.draw(p.keep, thread, row0, p.rows - row0, p.cols, [&](int s) { return slab_of(i, s) * slab_cols; });
    }
    uint8_t* const at_tile = shared + ring.begin_tile(tiles, issue) * stage_bytes;
    if constexpr (masked) {
      mask.apply(at_tile, thread);
      __syncthreads();
    }
    for (int s = part * part_slabs; s < (part + 1) * part_slabs; ++s) {
      if (slab_of(i, s) < p.num_slabs) {
        const uint32_t x_slab = shared_address(at_tile + s * x_bytes),
                       w_slab = shared_address(at_tile + forward_slabs * x_bytes + s * w_slab_bytes);
        uint32_t x[2][4], w[4][4];
#pragma unroll
        for (int k = 0; k < 2; ++k) ldmatrix_x4(at(x_slab, line, 4 * k + lane / 8), x[k]);
#pragma unroll
        for (int k = 0; k < 4; ++k) ldmatrix_x4(at(w_slab, lane % 8 + 8 * (lane / 8 % 2), 2 * k + lane / 16), w[k]);
#pragma unroll
        for (int k = 0; k < 4; ++k) mma_16x8x16(sum, w[k], x[k / 2][k % 2 * 2], x[k / 2][k % 2 * 2 + 1]);
      }
      if (--rest == 0) {
        tree.add(range++, sum);
        rest = p.range_slabs;
        if (range == ranges / parts) break;
#pragma unroll
        for (float& value : sum) value = 0;
      }
    }
    ring.end_tile();
  }
  // The parts' sums.
  __shared__ float4 sums[threads];
  sums[thread] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  __syncthreads();
  if (part > 0) return;
  Tree<4> whole;
#pragma unroll
  for (int q = 0; q < parts; ++q) {
    const float4 v = sums[thread + q * part_warps * 32];
    sum[0] = v.x, sum[1] = v.y, sum[2] = v.z, sum[3] = v.w;
    whole.add(q, sum);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int row = row0 + 8 * warp + 2 * (lane % 4) + e % 2, r = lane / 4 + 8 * (e / 2);
    if (row < p.rows && r < p.padded) p.low[int64_t{row} * p.padded + r] = __float2bfloat16_rn(sum[e] * p.factor);
  }
#endif
}

// low [N, padded] of x.
inline void forward(const DeviceFacts& facts, int64_t N, int64_t padded, float factor, const Operand& x) {
  const auto run = [&]<int block_rows, bool masked>() {
    const ForwardArgs args{.rows = static_cast<int>(N),
                           .padded = static_cast<int>(padded),
                           .cols = static_cast<int>(x.cols),
                           .range_slabs = static_cast<int>(range_slabs(x.cols)),
                           .num_slabs = static_cast<int>(ceil_div(x.cols, slab_cols)),
                           .factor = factor,
                           .keep = x.kept(),
                           .low = static_cast<__nv_bfloat16*>(x.low)};
    launch<forward_kernel<block_rows, masked>>(
        facts, dim3(static_cast<unsigned>(ceil_div(N, block_rows))), threads, forward_shared_bytes<block_rows>,
        tensor_map(x.x, N, x.cols, x.cols, block_rows), tensor_map(x.w, padded, x.cols, x.cols, max_ranks), args);
  };
  const bool many = N > 32 * facts.num_multiprocessors;
  if (x.dropout.p == 0) many ? run.template operator()<64, false>() : run.template operator()<32, false>();
  else many ? run.template operator()<64, true>() : run.template operator()<32, true>();
}

}  // namespace sluice::cuda::thin_sm90
