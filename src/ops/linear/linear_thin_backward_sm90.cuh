// The backward of linear_thin_sm90.cuh: low products and gradients of x and dy.
#pragma once

#include "ops/linear/linear_thin_sm90.cuh"

namespace sluice::cuda::thin_sm90 {

__device__ inline uint64_t l2_policy(bool keep) {
  uint64_t policy = 0;
#ifdef SLUICE_SM90A
  if (keep) asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
  else asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
#endif
  return policy;
}
__device__ inline void tma_load_hinted(void* shared, const CUtensorMap* map, uint64_t* barrier, int col, int row,
                                       uint64_t policy) {
#ifdef SLUICE_SM90A
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, "
      "%4}], "
      "[%2], %5;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(col), "r"(row), "l"(policy)
      : "memory");
#endif
}
constexpr int stages = 5, x_bytes = rows * 128, stage_bytes = x_bytes + w_slab_bytes;
constexpr int pitch = rows + 8;  // of low [16, rows] in shared memory: conflict-free for the accesses below
constexpr int share_floats = rows * max_ranks;
constexpr int low_bytes = max_ranks * pitch * 2;
constexpr int backward_shared_bytes = 1024 + stages * stage_bytes + low_bytes + 128;

struct Side {
  int cols, range_slabs;
  Keep keep;                     // of X
  __nv_bfloat16* low = nullptr;  // [rows, padded] or null
  float* partials = nullptr;     // [chunks, cols, padded]
};
struct BackwardArgs {
  int rows, padded, splits;
  float factor;
  Side narrow, wide;
  float* shares;       // [2, chunks, splits, share_floats]
  uint32_t* arrivals;  // [chunks, 2], zeros: blocks that have given their share of a round
};

// Half of the warps form low products, the other half gradients. These wait for the sums of all blocks; the low
// products go on meanwhile.
template <bool masked>
__global__ void __launch_bounds__(threads, 1)
    backward_kernel(const __grid_constant__ CUtensorMap map_narrow, const __grid_constant__ CUtensorMap map_w_narrow,
                    const __grid_constant__ CUtensorMap map_wide, const __grid_constant__ CUtensorMap map_w_wide,
                    const __grid_constant__ BackwardArgs p) {
#ifdef SLUICE_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const shared = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
  auto* const low = reinterpret_cast<__nv_bfloat16*>(shared + stages * stage_bytes);  // [16, pitch]
  Ring<stages> ring(reinterpret_cast<uint64_t*>(shared + stages * stage_bytes + low_bytes));
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int split = static_cast<int>(blockIdx.x), chunk = static_cast<int>(blockIdx.y), row0 = chunk * rows;
  const int own_ranges = ranges / p.splits;
  const auto first_slab = [&](const Side& s) { return split * own_ranges * s.range_slabs; };
  const auto tiles_of = [&](const Side& s) {
    return max(0, min(own_ranges * s.range_slabs, (s.cols + slab_cols - 1) / slab_cols - first_slab(s)));
  };
  const int tiles_n = tiles_of(p.narrow), tiles_w = tiles_of(p.wide), total = tiles_n + tiles_w + tiles_n;

  // The tiles in the order of their use: narrow, wide, narrow again.
  const uint64_t keep = l2_policy(true), drop = l2_policy(false);
  const auto issue_parts = [&](int i, bool x, bool w) {
    uint8_t* const to = shared + i % stages * stage_bytes;
    uint64_t* const full = ring.full + i % stages;
    const bool again = i >= tiles_n + tiles_w, is_wide = !again && i >= tiles_n;
    const int col =
        ((is_wide ? first_slab(p.wide) - tiles_n : first_slab(p.narrow) - (again ? tiles_n + tiles_w : 0)) + i) *
        slab_cols;
    if (x) {
      barrier_expect_bytes(full, again ? x_bytes : stage_bytes);
      tma_load_hinted(to, is_wide ? &map_wide : &map_narrow, full, col, row0, again || is_wide ? drop : keep);
    }
    if (w && !again) tma_load(to + x_bytes, is_wide ? &map_w_wide : &map_w_narrow, full, col, 0);
  };
  const auto issue = [&](int i) { issue_parts(i, true, true); };
  ring.start(total, issue_parts);

  const auto begin_tile = [&](const Side& s, int slab) {
    Mask<rows, 1, threads> mask;
    const bool drops = masked && s.keep.any;
    if (drops) {
      mask.draw(s.keep, thread, row0, p.rows - row0, s.cols, ring.next >= tiles_n + tiles_w,
                [&](int) { return slab * slab_cols; });
    }
    uint8_t* const tile = shared + ring.begin_tile(total, issue) * stage_bytes;
    if (drops) {
      mask.apply(tile, thread);
      __syncthreads();
    }
    return shared_address(tile);
  };
  const auto pass_tiles = [&](const Side& s, int tiles) {
    for (int i = 0; i < tiles; ++i) {
      begin_tile(s, first_slab(s) + i);
      ring.end_tile();
    }
  };
  // The blocks' sums of low in `round` 0 or 1, as they lie in the threads of a half.
  constexpr int half_threads = threads / 2, share = share_floats / 4;
  uint32_t* const arrivals = p.arrivals + 2 * chunk;
  const auto shares_of = [&](int round, int of_split) {
    return reinterpret_cast<float4*>(p.shares) + ((int64_t{round} * gridDim.y + chunk) * p.splits + of_split) * share +
           thread % half_threads;
  };

  if (warp < warps / 2) {
    float sums[16];  // [16 ranks, 32 rows of this warp]
    Tree<16> tree;
    const auto add_low = [&](uint32_t tile) {
#pragma unroll
      for (int k = 0; k < slab_cols / 16; ++k) {
        uint32_t w[4];
        ldmatrix_x4(at(tile + x_bytes, lane % 8 + 8 * (lane / 8 % 2), 2 * k + lane / 16), w);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t x[4];
          ldmatrix_x4(at(tile, 32 * warp + 16 * i + lane % 8 + 8 * (lane / 16), 2 * k + lane / 8 % 2), x);
#pragma unroll
          for (int h = 0; h < 2; ++h) mma_16x8x16(sums + 8 * i + 4 * h, w, x[2 * h], x[2 * h + 1]);
        }
      }
    };
    const auto low_of = [&](const Side& s, int tiles, int round) {
      int i = 0;
      for (int range = 0; range < own_ranges; ++range) {
#pragma unroll
        for (float& sum : sums) sum = 0;
        for (const int end = min(tiles, i + s.range_slabs); i < end; ++i) {
          add_low(begin_tile(s, first_slab(s) + i));
          ring.end_tile();
        }
        tree.add(range, sums);
      }
      float4* const to = shares_of(round, split);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        __stcg(to + j * half_threads, make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
      named_barrier_sync(1, half_threads);
      // Not by the thread that begins loads: the fence takes its time.
      if (thread == 32) {
        asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals + round) : "memory");
      }
    };
    low_of(p.narrow, tiles_n, 0);
    low_of(p.wide, tiles_w, 1);
    pass_tiles(p.narrow, tiles_n);
    return;
  }

  uint32_t other[rows / 16][4];  // [16 ranks, rows]: the other side's low, the left operand of the gradient
  const int half_warp = warp - warps / 2;
  const auto gradient = [&](uint32_t tile, const Side& s, int col) {  // of this warp's 8 columns
    float d[4][4] = {};
#pragma unroll
    for (int k = 0; k < rows / 32; ++k) {
      uint32_t x[4];
      ldmatrix_x4<true>(at(tile, 32 * k + lane, half_warp), x);
#pragma unroll
      for (int h = 0; h < 2; ++h) mma_16x8x16(d[2 * (k % 2) + h], other[2 * k + h], x[2 * h], x[2 * h + 1]);
    }
    col += 8 * half_warp;
    if (col >= s.cols) return;
    float* const to = s.partials + (int64_t{chunk} * s.cols + col + 2 * t) * p.padded + g;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float sum = d[0][e] + d[1][e] + (d[2][e] + d[3][e]);
      if (e < 2 || p.padded > 8) to[e % 2 * p.padded + 8 * (e / 2)] = sum;
    }
  };
  const auto gradient_of = [&](const Side& s, int tiles) {
    for (int i = 0; i < tiles; ++i) {
      const int slab = first_slab(s) + i;
      gradient(begin_tile(s, slab), s, slab * slab_cols);
      ring.end_tile();
    }
  };
  // The sums of all blocks of a round; they become the left operand.
  const auto fetch = [&](__nv_bfloat16* to, int round) {
    if (thread == half_threads) {
      uint32_t arrived = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(arrivals + round) : "memory");
      } while (arrived < static_cast<uint32_t>(p.splits));
    }
    named_barrier_sync(2, half_threads);
    float sums[16];
    Tree<16> tree;
    for (int s = 0; s < p.splits; ++s) {
      const float4* const from = shares_of(round, s);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 v = __ldcg(from + j * half_threads);
        sums[4 * j] = v.x, sums[4 * j + 1] = v.y, sums[4 * j + 2] = v.z, sums[4 * j + 3] = v.w;
      }
      tree.add(s, sums);
    }
    const bool writes = to != nullptr && half_warp * p.splits / (warps / 2) == split;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // ranks 8 h …
        const int row = 32 * half_warp + 8 * i + 2 * t, r = g + 8 * h;
        const uint32_t pair = pack_bf16(sums[4 * i + 2 * h] * p.factor, sums[4 * i + 2 * h + 1] * p.factor);
        *reinterpret_cast<uint32_t*>(low + r * pitch + row) = pair;
        if (writes && r < p.padded) {
          auto* const values = reinterpret_cast<uint16_t*>(to) + int64_t{row0 + row} * p.padded + r;
          if (row0 + row < p.rows) values[0] = static_cast<uint16_t>(pair);
          if (row0 + row + 1 < p.rows) values[p.padded] = static_cast<uint16_t>(pair >> 16);
        }
      }
    }
    named_barrier_sync(2, half_threads);
#pragma unroll
    for (int k = 0; k < rows / 16; ++k) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        other[k][e] =
            *reinterpret_cast<const uint32_t*>(low + (g + 8 * (e % 2)) * pitch + 16 * k + 2 * t + 8 * (e / 2));
    }
    named_barrier_sync(2, half_threads);
  };
  pass_tiles(p.narrow, tiles_n);
  fetch(p.narrow.low, 0);
  gradient_of(p.wide, tiles_w);
  fetch(p.wide.low, 1);
  gradient_of(p.narrow, tiles_n);
#endif
}

// As many blocks for a chunk as the device runs at once.
inline int num_splits(const DeviceFacts& facts, int64_t chunks) {
  int splits = 1;
  while (splits < ranges && chunks * splits * 2 <= facts.num_multiprocessors) splits *= 2;
  return splits;
}
// Scratch of the backward with at most N rows: floats of shares.
inline int64_t shares_floats(const DeviceFacts& facts, int64_t N) {
  const int64_t chunks = ceil_div(N, rows);
  return 2 * share_floats * std::max(chunks, std::min<int64_t>(chunks * ranges, facts.num_multiprocessors));
}

// What both sides give; `narrow` is read twice. `arrivals`: two zeros for each chunk.
inline void backward(const DeviceFacts& facts, int64_t N, int64_t padded, float factor, const Operand& narrow,
                     const Operand& wide, float* shares, uint32_t* arrivals) {
  const auto side = [](const Operand& o) {
    return Side{.cols = static_cast<int>(o.cols),
                .range_slabs = static_cast<int>(range_slabs(o.cols)),
                .keep = o.kept(),
                .low = static_cast<__nv_bfloat16*>(o.low),
                .partials = o.partials};
  };
  const int64_t chunks = ceil_div(N, rows);
  const int splits = num_splits(facts, chunks);
  const BackwardArgs args{.rows = static_cast<int>(N),
                          .padded = static_cast<int>(padded),
                          .splits = splits,
                          .factor = factor,
                          .narrow = side(narrow),
                          .wide = side(wide),
                          .shares = shares,
                          .arrivals = arrivals};
  const auto map_x = [&](const Operand& o) { return tensor_map(o.x, N, o.cols, o.cols, rows); };
  const auto map_w = [&](const Operand& o) { return tensor_map(o.w, padded, o.cols, o.cols, max_ranks); };
  const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(chunks));
  const CUtensorMap n = map_x(narrow), w_n = map_w(narrow), w = map_x(wide), w_w = map_w(wide);
  if (narrow.dropout.p == 0 && wide.dropout.p == 0)
    launch<backward_kernel<false>>(facts, grid, threads, backward_shared_bytes, n, w_n, w, w_w, args);
  else launch<backward_kernel<true>>(facts, grid, threads, backward_shared_bytes, n, w_n, w, w_w, args);
}

}  // namespace sluice::cuda::thin_sm90
