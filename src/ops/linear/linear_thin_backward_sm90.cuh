// The backward of linear_thin_sm90.cuh: dyb, then the gradients, with dy and x read once each.
#pragma once

#include "ops/linear/linear_thin_sm90.cuh"

namespace sluice::cuda::thin_sm90 {

constexpr int stages = 6, x_bytes = rows * 128, stage_bytes = x_bytes + w_slab_bytes;
constexpr int pitch = rows + 8;  // of dyb [16, rows] in shared memory: conflict-free for the accesses below
constexpr int share_floats = rows * max_ranks;
constexpr int low_bytes = max_ranks * pitch * 2;
constexpr int backward_shared_bytes = 1024 + stages * stage_bytes + low_bytes + 128;

struct Side {
  int cols, range_slabs;
  float* partials;  // [chunks, cols, padded]
};
struct BackwardArgs {
  int rows, padded, splits;
  float factor;
  Side dy, x;
  Keep keep;                // of x
  const __nv_bfloat16* xa;  // [rows, padded]
  __nv_bfloat16* dyb;       // [rows, padded]
  float* shares;            // [chunks, splits, share_floats]
  uint32_t* arrivals;       // [chunks], zeros: blocks that have given their share
};

// Half of the warps form dyb, the other half the gradients. These wait for the shares of all blocks between dy and x.
template <bool masked>
__global__ void __launch_bounds__(threads, 1)
    backward_kernel(const __grid_constant__ CUtensorMap map_dy, const __grid_constant__ CUtensorMap map_w,
                    const __grid_constant__ CUtensorMap map_x, const __grid_constant__ BackwardArgs p) {
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
  const int tiles_dy = tiles_of(p.dy), tiles_x = tiles_of(p.x), total = tiles_dy + tiles_x;
  const auto issue_parts = [&](int i, bool x, bool w) {
    uint8_t* const to = shared + i % stages * stage_bytes;
    uint64_t* const full = ring.full + i % stages;
    const bool is_dy = i < tiles_dy;
    const int col = (is_dy ? first_slab(p.dy) + i : first_slab(p.x) + i - tiles_dy) * slab_cols;
    if (x) {
      barrier_expect_bytes(full, is_dy ? stage_bytes : x_bytes);
      tma_load(to, is_dy ? &map_dy : &map_x, full, col, row0);
    }
    if (w && is_dy) tma_load(to + x_bytes, &map_w, full, col, 0);
  };
  const auto issue = [&](int i) { issue_parts(i, true, true); };
  ring.start(total, issue_parts);

  const auto begin_dy = [&] { return shared_address(shared + ring.begin_tile(total, issue) * stage_bytes); };
  const auto begin_x = [&](int slab) {
    Mask<rows, 1, threads> mask;
    if constexpr (masked)
      mask.draw(p.keep, thread, row0, p.rows - row0, p.x.cols, [&](int) { return slab * slab_cols; });
    uint8_t* const tile = shared + ring.begin_tile(total, issue) * stage_bytes;
    if constexpr (masked) {
      mask.apply(tile, thread);
      __syncthreads();
    }
    return shared_address(tile);
  };
  // The blocks' sums of dyb, as they lie in the threads of a half.
  constexpr int half_threads = threads / 2, share = share_floats / 4;
  const auto shares_of = [&](int of_split) {
    return reinterpret_cast<float4*>(p.shares) + (int64_t{chunk} * p.splits + of_split) * share + thread % half_threads;
  };

  if (warp < warps / 2) {
    float sums[16];  // [16 ranks, 32 rows of this warp]
    Tree<16> tree;
    int i = 0;
    for (int range = 0; range < own_ranges; ++range) {
#pragma unroll
      for (float& sum : sums) sum = 0;
      for (const int end = min(tiles_dy, i + p.dy.range_slabs); i < end; ++i) {
        const uint32_t tile = begin_dy();
#pragma unroll
        for (int k = 0; k < slab_cols / 16; ++k) {
          uint32_t w[4];
          ldmatrix_x4(at(tile + x_bytes, lane % 8 + 8 * (lane / 8 % 2), 2 * k + lane / 16), w);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            uint32_t x[4];
            ldmatrix_x4(at(tile, 32 * warp + 16 * j + lane % 8 + 8 * (lane / 16), 2 * k + lane / 8 % 2), x);
#pragma unroll
            for (int h = 0; h < 2; ++h) mma_16x8x16(sums + 8 * j + 4 * h, w, x[2 * h], x[2 * h + 1]);
          }
        }
        ring.end_tile();
      }
      tree.add(range, sums);
    }
    float4* const to = shares_of(split);
#pragma unroll
    for (int j = 0; j < 4; ++j)
      __stcg(to + j * half_threads, make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]));
    named_barrier_sync(1, half_threads);
    // Not by the thread that begins loads: the fence takes its time.
    if (thread == 32) {
      asm volatile("fence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p.arrivals + chunk) : "memory");
    }
    for (int j = 0; j < tiles_x; ++j) {
      begin_x(first_slab(p.x) + j);
      ring.end_tile();
    }
    return;
  }

  uint32_t other[rows / 16][4];  // [16 ranks, rows]: xa, then dyb, the left operand of the gradient
#pragma unroll
  for (int k = 0; k < rows / 16; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = row0 + 16 * k + 8 * (e / 2) + g, r = 8 * (e % 2) + 2 * t;
      other[k][e] =
          row < p.rows && r < p.padded ? *reinterpret_cast<const uint32_t*>(p.xa + int64_t{row} * p.padded + r) : 0U;
    }
  }
#pragma unroll
  for (auto& matrices : other) {
#pragma unroll
    for (uint32_t& m : matrices) m = transposed(m);
  }
  const int half_warp = warp - warps / 2;
  const auto gradient = [&](uint32_t tile, const Side& s, int slab) {  // of this warp's 8 columns
    float d[4][4] = {};
#pragma unroll
    for (int k = 0; k < rows / 32; ++k) {
      uint32_t x[4];
      ldmatrix_x4<true>(at(tile, 32 * k + lane, half_warp), x);
#pragma unroll
      for (int h = 0; h < 2; ++h) mma_16x8x16(d[2 * (k % 2) + h], other[2 * k + h], x[2 * h], x[2 * h + 1]);
    }
    ring.end_tile();
    const int col = slab * slab_cols + 8 * half_warp;
    if (col >= s.cols) return;
    float* const to = s.partials + (int64_t{chunk} * s.cols + col + 2 * t) * p.padded + g;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float sum = d[0][e] + d[1][e] + (d[2][e] + d[3][e]);
      if (e < 2 || p.padded > 8) to[e % 2 * p.padded + 8 * (e / 2)] = sum;
    }
  };
  for (int i = 0; i < tiles_dy; ++i) gradient(begin_dy(), p.dy, first_slab(p.dy) + i);

  // The sums of all blocks become the left operand.
  if (thread == half_threads) {
    uint32_t arrived = 0;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(p.arrivals + chunk) : "memory");
    } while (arrived < static_cast<uint32_t>(p.splits));
  }
  named_barrier_sync(2, half_threads);
  {
    float sums[16];
    Tree<16> tree;
    for (int s = 0; s < p.splits; ++s) {
      const float4* const from = shares_of(s);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 v = __ldcg(from + j * half_threads);
        sums[4 * j] = v.x, sums[4 * j + 1] = v.y, sums[4 * j + 2] = v.z, sums[4 * j + 3] = v.w;
      }
      tree.add(s, sums);
    }
    const bool writes = half_warp * p.splits / (warps / 2) == split;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {  // ranks 8 h …
        const int row = 32 * half_warp + 8 * i + 2 * t, r = g + 8 * h;
        const uint32_t pair = pack_bf16(sums[4 * i + 2 * h] * p.factor, sums[4 * i + 2 * h + 1] * p.factor);
        *reinterpret_cast<uint32_t*>(low + r * pitch + row) = pair;
        if (writes && r < p.padded) {
          auto* const values = reinterpret_cast<uint16_t*>(p.dyb) + int64_t{row0 + row} * p.padded + r;
          if (row0 + row < p.rows) values[0] = static_cast<uint16_t>(pair);
          if (row0 + row + 1 < p.rows) values[p.padded] = static_cast<uint16_t>(pair >> 16);
        }
      }
    }
  }
  named_barrier_sync(2, half_threads);
#pragma unroll
  for (int k = 0; k < rows / 16; ++k) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      other[k][e] = *reinterpret_cast<const uint32_t*>(low + (g + 8 * (e % 2)) * pitch + 16 * k + 2 * t + 8 * (e / 2));
  }
  for (int i = 0; i < tiles_x; ++i) {
    const int slab = first_slab(p.x) + i;
    gradient(begin_x(slab), p.x, slab);
  }
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
  return share_floats * std::max(chunks, std::min<int64_t>(chunks * ranges, facts.num_multiprocessors));
}

// dyb = dy's low and the partials of both, with xa [N, padded]. `arrivals`: a zero for each chunk.
inline void backward(const DeviceFacts& facts, int64_t N, int64_t padded, float factor, const Operand& dy,
                     const Operand& x, const void* xa, float* shares, uint32_t* arrivals) {
  const auto side = [](const Operand& o) {
    return Side{static_cast<int>(o.cols), static_cast<int>(range_slabs(o.cols)), o.partials};
  };
  const int64_t chunks = ceil_div(N, rows);
  const int splits = num_splits(facts, chunks);
  const BackwardArgs args{.rows = static_cast<int>(N),
                          .padded = static_cast<int>(padded),
                          .splits = splits,
                          .factor = factor,
                          .dy = side(dy),
                          .x = side(x),
                          .keep = x.kept(),
                          .xa = static_cast<const __nv_bfloat16*>(xa),
                          .dyb = static_cast<__nv_bfloat16*>(dy.low),
                          .shares = shares,
                          .arrivals = arrivals};
  const dim3 grid(static_cast<unsigned>(splits), static_cast<unsigned>(chunks));
  const CUtensorMap map_dy = tensor_map(dy.x, N, dy.cols, dy.cols, rows),
                    map_w = tensor_map(dy.w, padded, dy.cols, dy.cols, max_ranks),
                    map_x = tensor_map(x.x, N, x.cols, x.cols, rows);
  if (x.dropout.p == 0)
    launch<backward_kernel<false>>(facts, grid, threads, backward_shared_bytes, map_dy, map_w, map_x, args);
  else launch<backward_kernel<true>>(facts, grid, threads, backward_shared_bytes, map_dy, map_w, map_x, args);
}

}  // namespace sluice::cuda::thin_sm90
