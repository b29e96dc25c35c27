// One pass over the rows of x or dy on Hopper (AdapterPass, linear_adapter.cuh): X is read once, at the speed of
// memory.
//
// A block takes a chunk of 256 rows and a range of columns, and 64 columns at a time: one warpgroup forms the thin
// product's share of these columns, [256, ranks], the other the chunk's gradient [ranks, 64]. The last block of a chunk
// to finish adds the shares, in order.
#pragma once

#include <algorithm>

#include "ops/common/sm90.cuh"
#include "ops/common/write.h"
#include "ops/gemm/gemm_sm90.cuh"
#include "ops/linear/linear_adapter.cuh"

namespace sluice::cuda::pass_sm90 {

constexpr int threads = 384, rows = static_cast<int>(row_chunk), cols = 64, x_bytes = rows * 128,
              other_bytes = rows * 128;

// How the columns are cut: by their number alone, since the cut decides the order of the sums.
inline int64_t num_splits(int64_t columns) { return ceil_div(columns, 640); }
inline int64_t split_columns(int64_t columns) { return round_up(ceil_div(columns, num_splits(columns)), cols); }

template <int ranks_>  // 16, 32 or 64 ranks at a time
struct Shape {
  static constexpr int ranks = ranks_;
  static constexpr int blocks_per_sm = ranks == 16 ? 2 : 1;
  static constexpr int stage_bytes = x_bytes + ranks * 128;
  static constexpr int stages = ranks == 16 ? 2 : ranks == 32 ? 5 : 4;
  static constexpr int shared_bytes = 1024 + other_bytes + stages * stage_bytes + 128;
};

struct Args {
  int rows, cols, R, padded;
  int split_cols, splits;
  bool with_low, with_gradient;
  float factor;
  __nv_bfloat16* low;
  float* sums;  // [splits, rows, padded]
  int* counters;
  float* partials;
};

template <class S>
__global__ void __launch_bounds__(threads, S::blocks_per_sm)
    kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
           const __grid_constant__ CUtensorMap map_other, const __grid_constant__ Args p) {
#ifdef SLUICE_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const other = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
  uint8_t* const ring = other + other_bytes;
  auto* const full = reinterpret_cast<uint64_t*>(ring + S::stages * S::stage_bytes);
  uint64_t *const empty = full + S::stages, *const other_full = empty + S::stages;
  int* const is_last = reinterpret_cast<int*>(other_full + 1);
  if (threadIdx.x == 0) {
    for (int s = 0; s < S::stages; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, 4 * ((p.with_low ? 1 : 0) + (p.with_gradient ? 1 : 0)));
    }
    barrier_init(other_full, 1);
    barrier_init_fence();
  }
  __syncthreads();

  const int col0 = static_cast<int>(blockIdx.x) * p.split_cols, col1 = min(p.cols, col0 + p.split_cols);
  const int tiles = (col1 - col0 + cols - 1) / cols;
  const int chunk = static_cast<int>(blockIdx.y), row0 = chunk * rows, rank0 = static_cast<int>(blockIdx.z) * S::ranks;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32, lane = thread % 32;
  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == S::stages) stage = 0, phase ^= 1;
  };

  if (warpgroup == 0) {
    if (warp == 0 && elect_one()) {
      if (p.with_gradient) {
        barrier_expect_bytes(other_full, other_bytes);
        tma_load(other, &map_other, other_full, rank0, row0);
      }
      for (int t = 0; t < tiles; ++t) {
        gemm_sm90_detail::wait_phase(empty + stage, phase ^ 1);
        uint8_t* const x = ring + stage * S::stage_bytes;
        barrier_expect_bytes(full + stage, p.with_low ? S::stage_bytes : x_bytes);
        tma_load(x, &map_x, full + stage, col0 + t * cols, row0);
        if (p.with_low) tma_load(x + x_bytes, &map_w, full + stage, col0 + t * cols, rank0);
        advance();
      }
    }
  } else if (warpgroup == 1) {
    if (!p.with_low) return;
    float low[4][S::ranks / 2] = {};  // rows 64 i …
    for (int t = 0; t < tiles; ++t) {
      gemm_sm90_detail::wait_phase(full + stage, phase);
      const uint32_t at = shared_address(ring + stage * S::stage_bytes);
      const uint64_t x = descriptor_k(at), w = descriptor_k(at + x_bytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) wgmma_fence_registers(low[i]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          wgmma_ss<S::ranks, Major::k, Major::k>(low[i], x + (i * 8192 + k * 32) / 16, w + k * 2);
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < 4; ++i) wgmma_fence_registers(low[i]);
      if (lane == 0) barrier_arrive(empty + stage);
      advance();
    }
    const int width = min(S::ranks, p.padded - rank0);  // a multiple of 8
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row0 + 64 * i + 16 * warp + lane / 4 + 8 * half;
        if (row >= p.rows) continue;
#pragma unroll
        for (int j = 0; j < S::ranks / 8; ++j) {
          if (8 * j >= width) continue;
          const float x = low[i][4 * j + 2 * half], y = low[i][4 * j + 2 * half + 1];
          const int64_t to = int64_t{row} * p.padded + rank0 + 8 * j + 2 * (lane % 4);
          if (p.splits == 1) {
            *reinterpret_cast<uint32_t*>(p.low + to) = pack_bf16(x * p.factor, y * p.factor);
          } else {
            *reinterpret_cast<float2*>(p.sums + int64_t{blockIdx.x} * p.rows * p.padded + to) = make_float2(x, y);
          }
        }
      }
    }
    if (p.splits == 1) return;
    __threadfence();
    named_barrier_sync(1, 128);
    int* const counter = p.counters + blockIdx.y * gridDim.z + blockIdx.z;
    if (thread == 0) *is_last = atomicAdd(counter, 1) == p.splits - 1;
    named_barrier_sync(1, 128);
    if (*is_last == 0) return;
    __threadfence();
    if (thread == 0) *counter = 0;  // for the next pass
    const int quads = width / 4, count = min(rows, p.rows - row0) * quads;
    const int64_t stride = int64_t{p.rows} * p.padded;
#pragma unroll 2
    for (int q = thread; q < count; q += 128) {
      const int64_t at = int64_t{row0 + q / quads} * p.padded + rank0 + q % quads * 4;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
      for (int s = 0; s < p.splits; ++s) {
        const float4 part = __ldcg(reinterpret_cast<const float4*>(p.sums + s * stride + at));
        sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
      }
      *reinterpret_cast<uint2*>(p.low + at) =
          make_uint2(pack_bf16(sum.x * p.factor, sum.y * p.factor), pack_bf16(sum.z * p.factor, sum.w * p.factor));
    }
  } else {
    if (!p.with_gradient) return;
    float d[32];  // [64 ranks, 64 columns]
#pragma unroll
    for (float& value : d) value = 0;
    gemm_sm90_detail::wait_phase(other_full, 0);
    const uint64_t left = descriptor_mn(shared_address(other), 8192);
    for (int t = 0; t < tiles; ++t) {
      gemm_sm90_detail::wait_phase(full + stage, phase);
      const uint64_t right = descriptor_mn(shared_address(ring + stage * S::stage_bytes), 8192);
      wgmma_fence_registers(d);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < rows / 16; ++k)
        wgmma_ss<64, Major::mn, Major::mn>(d, left + k * 128, right + k * 128, k == 0 ? 0 : 1);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_fence_registers(d);
      if (lane == 0) barrier_arrive(empty + stage);
      advance();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = rank0 + 16 * warp + lane / 4 + 8 * half;
        if (r >= p.R) continue;
        float* const to = p.partials + (int64_t{chunk} * p.R + r) * p.cols + col0 + t * cols + 2 * (lane % 4);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (col0 + t * cols + 8 * j < p.cols)
            *reinterpret_cast<float2*>(to + 8 * j) = make_float2(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
        }
      }
    }
  }
#endif
}

template <int ranks>
void launch(const DeviceFacts& facts, const AdapterPass& p) {
  using S = Shape<ranks>;
  static std::atomic<uint64_t> prepared{0};
  const uint64_t bit = uint64_t{1} << facts.index;
  if ((prepared.load() & bit) == 0) {
    check_cuda(cudaFuncSetAttribute(kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes),
               "an adapter's pass");
    prepared.fetch_or(bit);
  }
  const CUtensorMap x = tensor_map(p.x, p.rows, p.cols, p.cols, rows);
  const CUtensorMap w = p.w != nullptr ? tensor_map(p.w, p.padded, p.cols, p.cols, ranks) : x;
  const CUtensorMap other = p.other != nullptr ? tensor_map(p.other, p.rows, p.padded, p.padded, rows) : x;
  const Args args{.rows = static_cast<int>(p.rows),
                  .cols = static_cast<int>(p.cols),
                  .R = static_cast<int>(p.R),
                  .padded = static_cast<int>(p.padded),
                  .split_cols = static_cast<int>(split_columns(p.cols)),
                  .splits = static_cast<int>(ceil_div(p.cols, split_columns(p.cols))),
                  .with_low = p.w != nullptr,
                  .with_gradient = p.other != nullptr,
                  .factor = p.factor,
                  .low = static_cast<__nv_bfloat16*>(p.low),
                  .sums = p.sums,
                  .counters = p.counters,
                  .partials = p.partials};
  const dim3 grid(static_cast<unsigned>(args.splits), static_cast<unsigned>(ceil_div(p.rows, rows)),
                  static_cast<unsigned>(ceil_div(p.padded, ranks)));
  SLUICE_ASSERT(int64_t{grid.y} * grid.z <= AdapterOperands::max_counters);
  kernel<S><<<grid, threads, S::shared_bytes, facts.stream>>>(x, w, other, args);
  check_launch("an adapter's pass");
}

inline void run(const Context& ctx, const AdapterPass& p) {
  const DeviceFacts& facts = facts_of(ctx);
  if (p.padded <= 16) launch<16>(facts, p);
  else if (p.padded <= 32) launch<32>(facts, p);
  else launch<64>(facts, p);
}

}  // namespace sluice::cuda::pass_sm90
