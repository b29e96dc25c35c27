// One pass over the rows of x or dy on Hopper (AdapterPass, linear_adapter.cuh): X is read once, at the speed of
// memory. For ranks over 16; linear_thin_sm90.cuh takes the others.
//
// A block takes a chunk of 256 rows and a range of columns, and 64 columns at a time: one warpgroup forms the thin
// product's share of these columns, [256, ranks], the other the chunk's gradient [64, ranks]. The blocks of a chunk are
// a cluster; each adds the shares of some rows, in order, from the shared memory of all. A chunk's only block writes
// 0 + its share.
#pragma once

#include <algorithm>

#include "ops/common/sm90.cuh"
#include "ops/common/write.h"
#include "ops/gemm/gemm_sm90.cuh"
#include "ops/linear/linear_adapter.cuh"

namespace sluice::cuda::pass_sm90 {

constexpr int threads = 384, rows = static_cast<int>(row_chunk), cols = 64, x_bytes = rows * 128;
constexpr int max_splits = 4;  // with one block an SM, 8,192 rows of any width are one wave

// How the columns are cut: by their number alone, since the cut decides the order of the sums.
inline int num_splits(int64_t columns) {
  int splits = 1;
  while (splits < max_splits && columns > 640 * splits) splits *= 2;
  return splits;
}
inline int64_t split_columns(int64_t columns) { return round_up(ceil_div(columns, num_splits(columns)), cols); }

template <int ranks_>  // 32 or 64 ranks at a time
struct Shape {
  static constexpr int ranks = ranks_;
  static constexpr int stage_bytes = x_bytes + ranks * 128, other_bytes = rows * ranks * 2;
  static constexpr int max_stages = 6;
  // What `other` does not need goes to the ring.
  static constexpr int stages(bool gradient) { return (220000 - (gradient ? other_bytes : 0)) / stage_bytes; }
  static constexpr int shared_bytes(bool gradient) {
    return 1024 + (gradient ? other_bytes : 0) + stages(gradient) * stage_bytes + 128;
  }
  static_assert(stages(false) <= max_stages && rows * ranks * 4 <= stages(true) * stage_bytes);
};

struct Args {
  int rows, cols, padded;
  int split_cols, splits, stages;
  bool with_low, with_gradient;
  float factor;
  __nv_bfloat16* low;
  float* partials;
};

// mn contiguous, in lines of 32, 64 or 128 bytes with the swizzle of that width, one line wide: step k by 16: + 16
// lines.
template <int line>
__device__ uint64_t descriptor_of_lines(uint32_t address) {
  constexpr uint64_t swizzle = line == 128 ? 1 : line == 64 ? 2 : 3;
  return (static_cast<uint64_t>((address & 0x3FFFFU) >> 4)) | (uint64_t{1} << 16) | (uint64_t{8 * line >> 4} << 32) |
         (swizzle << 62);
}

// A float4 of a block of the cluster, by the address of its like in this block.
__device__ inline float4 load_from(uint32_t address, int rank) {
  float4 v = make_float4(0, 0, 0, 0);
#ifdef SLUICE_SM90A
  asm volatile(
      "{.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
#endif
  return v;
}

template <class S>
__global__ void __launch_bounds__(threads, 1)
    kernel(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
           const __grid_constant__ CUtensorMap map_other, const __grid_constant__ Args p) {
#ifdef SLUICE_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const ring = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
  uint8_t* const other = ring + p.stages * S::stage_bytes;  // [rows, ranks], lines of ranks * 2 bytes
  auto* const full = reinterpret_cast<uint64_t*>(other + (p.with_gradient ? S::other_bytes : 0));
  uint64_t *const empty = full + S::max_stages, *const other_full = empty + S::max_stages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < p.stages; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, 4 * ((p.with_low ? 1 : 0) + (p.with_gradient ? 1 : 0)));
    }
    barrier_init(other_full, 1);
    barrier_init_fence();
  }
  __syncthreads();
  gemm_sm90_detail::wait_for_previous_kernel();

  const int col0 = static_cast<int>(blockIdx.x) * p.split_cols, col1 = min(p.cols, col0 + p.split_cols);
  const int tiles = max(0, (col1 - col0 + cols - 1) / cols);
  const int chunk = static_cast<int>(blockIdx.y), row0 = chunk * rows, rank0 = static_cast<int>(blockIdx.z) * S::ranks;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32, lane = thread % 32;
  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == p.stages) stage = 0, phase ^= 1;
  };

  if (warpgroup == 0) {
    if (warp == 0 && elect_one()) {
      if (p.with_gradient) {
        barrier_expect_bytes(other_full, S::other_bytes);
        tma_load(other, &map_other, other_full, rank0, row0);
      }
      for (int t = 0; t < tiles; ++t) {
        barrier_wait(empty + stage, phase ^ 1);
        uint8_t* const x = ring + stage * S::stage_bytes;
        barrier_expect_bytes(full + stage, p.with_low ? S::stage_bytes : x_bytes);
        tma_load(x, &map_x, full + stage, col0 + t * cols, row0);
        if (p.with_low) tma_load(x + x_bytes, &map_w, full + stage, col0 + t * cols, rank0);
        advance();
      }
    }
  } else if (warpgroup == 1 && p.with_low) {
    float low[4][S::ranks / 2] = {};  // rows 64 i …
    for (int t = 0; t < tiles; ++t) {
      barrier_wait(full + stage, phase);
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
    // The ring is read to its end by both warpgroups before the shares take its place.
    if (p.splits > 1 && p.with_gradient) named_barrier_sync(1, 256);
    else if (p.splits > 1) named_barrier_sync(1, 128);
    auto* const shares = reinterpret_cast<float*>(ring);  // [rows, ranks]
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 64 * i + 16 * warp + lane / 4 + 8 * half, r = 2 * (lane % 4);
        float* const to = shares + row * S::ranks + r;
        __nv_bfloat16* const alone = p.low + int64_t{row0 + row} * p.padded + rank0 + r;
#pragma unroll
        for (int j = 0; j < S::ranks / 8; ++j) {
          const float2 v = make_float2(low[i][4 * j + 2 * half], low[i][4 * j + 2 * half + 1]);
          if (p.splits > 1) *reinterpret_cast<float2*>(to + 8 * j) = v;
          else if (row0 + row < p.rows && rank0 + 8 * j < p.padded)
            *reinterpret_cast<uint32_t*>(alone + 8 * j) = pack_bf16((0.0F + v.x) * p.factor, (0.0F + v.y) * p.factor);
        }
      }
    }
  } else if (warpgroup == 2 && p.with_gradient) {
    float d[S::ranks / 2];  // [64 columns, ranks]
#pragma unroll
    for (float& value : d) value = 0;
    barrier_wait(other_full, 0);
    const uint64_t right = descriptor_of_lines<S::ranks * 2>(shared_address(other));
    for (int t = 0; t < tiles; ++t) {
      barrier_wait(full + stage, phase);
      const uint64_t left = descriptor_mn(shared_address(ring + stage * S::stage_bytes), 8192);
      wgmma_fence_registers(d);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < rows / 16; ++k)
        wgmma_ss<S::ranks, Major::mn, Major::mn>(d, left + k * 128, right + k * 2 * S::ranks, k == 0 ? 0 : 1);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_fence_registers(d);
      if (lane == 0) barrier_arrive(empty + stage);
      advance();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = col0 + t * cols + 16 * warp + lane / 4 + 8 * half;
        if (col >= p.cols) continue;
        float* const to = p.partials + (int64_t{chunk} * p.cols + col) * p.padded + rank0 + 2 * (lane % 4);
#pragma unroll
        for (int j = 0; j < S::ranks / 8; ++j) {
          if (rank0 + 8 * j < p.padded)
            *reinterpret_cast<float2*>(to + 8 * j) = make_float2(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
        }
      }
    }
    if (p.with_low && p.splits > 1) named_barrier_sync(1, 256);
  }
  if (!p.with_low || p.splits == 1) return;

  __syncwarp();
  gemm_sm90_detail::cluster_sync();
  // This block's rows of the sum.
  const int own = rows / p.splits, first = static_cast<int>(blockIdx.x) * own;
  constexpr int quads = S::ranks / 4;
  for (int q = static_cast<int>(threadIdx.x); q < own * quads; q += threads) {
    const int row = first + q / quads, r = q % quads * 4;
    const uint32_t from = shared_address(ring) + (row * S::ranks + r) * 4;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int s = 0; s < p.splits; ++s) {
      const float4 part = load_from(from, s);
      sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    if (row0 + row < p.rows && rank0 + r < p.padded) {
      *reinterpret_cast<uint2*>(p.low + int64_t{row0 + row} * p.padded + rank0 + r) =
          make_uint2(pack_bf16(sum.x * p.factor, sum.y * p.factor), pack_bf16(sum.z * p.factor, sum.w * p.factor));
    }
  }
  gemm_sm90_detail::cluster_sync();  // others still read here
#endif
}

template <int ranks>
void launch(const DeviceFacts& facts, const AdapterPass& p) {
  using S = Shape<ranks>;
  static std::atomic<uint64_t> prepared{0};
  const uint64_t bit = uint64_t{1} << facts.index;
  if ((prepared.load() & bit) == 0) {
    check_cuda(cudaFuncSetAttribute(kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    std::max(S::shared_bytes(true), S::shared_bytes(false))),
               "an adapter's pass");
    prepared.fetch_or(bit);
  }
  const CUtensorMap x = tensor_map(p.x, p.rows, p.cols, p.cols, rows);
  const CUtensorMap w = p.w != nullptr ? tensor_map(p.w, p.padded, p.cols, p.cols, ranks) : x;
  const CUtensorMap other = p.other != nullptr ? tensor_map(p.other, p.rows, p.padded, p.padded, rows, ranks) : x;
  const bool gradient = p.other != nullptr;
  const Args args{.rows = static_cast<int>(p.rows),
                  .cols = static_cast<int>(p.cols),
                  .padded = static_cast<int>(p.padded),
                  .split_cols = static_cast<int>(split_columns(p.cols)),
                  .splits = num_splits(p.cols),
                  .stages = S::stages(gradient),
                  .with_low = p.w != nullptr,
                  .with_gradient = gradient,
                  .factor = p.factor,
                  .low = static_cast<__nv_bfloat16*>(p.low),
                  .partials = p.partials};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(args.splits), static_cast<unsigned>(ceil_div(p.rows, rows)),
                        static_cast<unsigned>(ceil_div(p.padded, ranks)));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(S::shared_bytes(gradient));
  config.stream = facts.stream;
  const std::array attributes =
      gemm_sm90_detail::launch_attributes(p.w != nullptr ? static_cast<int>(config.gridDim.x) : 1);
  config.attrs = const_cast<cudaLaunchAttribute*>(attributes.data());
  config.numAttrs = attributes.size();
  check_cuda(cudaLaunchKernelEx(&config, kernel<S>, x, w, other, args), "an adapter's pass");
}

inline void run(const Context& ctx, const AdapterPass& p) {
  const DeviceFacts& facts = facts_of(ctx);
  if (p.padded <= 32) launch<32>(facts, p);
  else launch<64>(facts, p);
}

}  // namespace sluice::cuda::pass_sm90
