// Decoding attention over bf16 caches on tensor cores: heads of 64, 128, 256 and 512.
//
// A block takes one split after another, a kv head and up to eight of its query heads at a time. Each of its warps
// takes every eighth step of 16 rows and keeps a ring in shared memory, which cp.async fills by units of 16 rows and up
// to 128 columns: those of the keys, then of the values. S = K Qᵀ and Oᵀ += Vᵀ Pᵀ are products of 16 rows with eight
// columns, the heads. q and P are float: they are split into bf16 that add up to them (q of bf16 is one, of float
// three; P two or three, as exact as o asks for).
#pragma once

#include "ops/attention/attention_decode.cuh"
#include "ops/common/mma.cuh"

namespace sluice::cuda::decode {

constexpr int tile_threads = 256, tile_warps = tile_threads / 32, step_rows = 16, tile_heads = 8;

extern __shared__ __align__(16) uint8_t tiles_shared[];

template <int D>
struct TilePlan {
  static constexpr int width = D < 128 ? D : 128,
                       units = D / width;  // columns of a unit; units of a row
  static constexpr int stride = width * 2 + 16, unit_bytes = step_rows * stride;
  static constexpr int stages = D == 512 ? 4 : 5;
  static constexpr int q_stride = D * 2 + 16, q_bytes = 3 * tile_heads * q_stride;
  static constexpr int sum_stride = width + 4;  // floats between heads
  static constexpr int ring_at = q_bytes, sums_at = ring_at + tile_warps * stages * unit_bytes;
  static constexpr int tops_at = sums_at + tile_warps * tile_heads * sum_stride * 4;
  static constexpr int shared_bytes = tops_at + 2 * tile_warps * tile_heads * 4;
};

__device__ inline uint32_t tile_address(uint32_t at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(tiles_shared)) + at;
}
template <class T>
__device__ inline T& tile_at(uint32_t at) {
  return *reinterpret_cast<T*>(tiles_shared + at);
}
__device__ inline uint32_t transpose_matrix(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}
// A split, for a kv head and some of its query heads.
struct TileItem {
  const __nv_bfloat16 *k, *v;  // the kv head's columns of row 0
  int64_t part;
  int first, ring, rows;  // row r lies at first + r, less `ring` when that is past it
  int index, head_begin, num_heads;
};

struct TileItems {
  int count, splits;  // of all sequences and heads; the most of a sequence

  // Item number i, of no rows where the sequence has fewer splits.
  __device__ TileItem item(const Table& table, const Shared& s, int i) const {
    const int split = i % splits, block = i / splits % (s.K * s.head_blocks),
              sequence = i / splits / (s.K * s.head_blocks);
    const Entry& e = table.entries[sequence];
    const int first = split * e.split_rows, kv_head = block / s.head_blocks, group = s.H / s.K;
    TileItem item;
    const int64_t column = static_cast<int64_t>(kv_head) * s.D;
    item.k = static_cast<const __nv_bfloat16*>(e.k) + column, item.v = static_cast<const __nv_bfloat16*>(e.v) + column;
    item.first = static_cast<int>(e.first) + first, item.ring = static_cast<int>(e.ring), item.part = e.part + split;
    item.rows = min(e.split_rows, e.rows - first), item.index = e.index;
    item.head_begin = kv_head * group + block % s.head_blocks * tile_heads;
    item.num_heads = min(tile_heads, (kv_head + 1) * group - item.head_begin);
    return item;
  }
};

template <int D>
__global__ __launch_bounds__(tile_threads, 1) void decode_tiles_kernel(const __grid_constant__ Table table,
                                                                       const Shared s,
                                                                       const __grid_constant__ TileItems items) {
  using P = TilePlan<D>;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, t = lane % 4;
  const uint32_t ring = P::ring_at + warp * P::stages * P::unit_bytes;
  const int64_t stride = static_cast<int64_t>(s.K) * D;
  launch_dependents();
  wait_for_kernels_before();

  // The copies run ahead of the products, over the ends of items.
  int copy_number = static_cast<int>(blockIdx.x), copy_step = warp, copy_unit = 0;
  TileItem copied;
  const auto find_copied = [&] {
    for (; copy_number < items.count; copy_number += static_cast<int>(gridDim.x)) {
      copied = items.item(table, s, copy_number);
      if (copy_step * step_rows < copied.rows) return;
    }
  };
  const auto copy_next = [&](int stage) {
    if (copy_number < items.count) {
      constexpr int pieces = P::width / 8, rows_at_once = 32 / pieces;
      const bool values = copy_unit >= P::units;
      const __nv_bfloat16* cache =
          (values ? copied.v : copied.k) + (copy_unit % P::units) * P::width + lane % pieces * 8;
      const uint32_t to = tile_address(ring + stage * P::unit_bytes + lane / pieces * P::stride + lane % pieces * 16);
#pragma unroll
      for (int j = 0; j < step_rows / rows_at_once; ++j) {
        const int r = copy_step * step_rows + lane / pieces + j * rows_at_once;
        int row = copied.first + min(r, copied.rows - 1);
        if (copied.ring > 0 && row >= copied.ring) row -= copied.ring;
        // Rows past the last are zeros.
        copy_async_part_16(to + j * rows_at_once * P::stride, cache + row * stride, r < copied.rows ? 16 : 0);
      }
      if (++copy_unit == 2 * P::units) {
        copy_unit = 0;
        copy_step += tile_warps;
        if (copy_step * step_rows >= copied.rows) {
          copy_step = warp;
          copy_number += static_cast<int>(gridDim.x);
          find_copied();
        }
      }
    }
    copy_commit();
  };
  int stage = 0;
  const auto next_unit = [&] {  // where it lies
    copy_wait<P::stages - 2>();
    __syncwarp();
    copy_next(stage == 0 ? P::stages - 1 : stage - 1);
    const uint32_t at = ring + stage * P::unit_bytes;
    stage = stage == P::stages - 1 ? 0 : stage + 1;
    return at;
  };
  find_copied();
#pragma unroll
  for (int i = 0; i < P::stages - 1; ++i) copy_next(i);

  // q of an item, a share of it at each end of a unit of the item before.
  constexpr int pairs = tile_heads * P::width / 2 / tile_threads;
  const int q_parts = s.bf16_io ? 1 : 3, p_parts = s.bf16_io ? 2 : 3;
  const auto load_q = [&](const TileItem& item, int u, float(&v)[pairs][2]) {
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int i = tid + (u * pairs + j) * tile_threads, h = i / (D / 2), d = i % (D / 2) * 2;
      const int64_t at =
          (static_cast<int64_t>(item.index) * s.H + item.head_begin + min(h, item.num_heads - 1)) * D + d;
#pragma unroll
      for (int e = 0; e < 2; ++e)
        v[j][e] = s.bf16_io ? to_float(static_cast<const __nv_bfloat16*>(s.q)[at + e])
                            : static_cast<const float*>(s.q)[at + e];
    }
  };
  const auto write_q = [&](int u, float(&v)[pairs][2]) {
#pragma unroll
    for (int j = 0; j < pairs; ++j) {
      const int i = tid + (u * pairs + j) * tile_threads, h = i / (D / 2), d = i % (D / 2) * 2;
      for (int part = 0; part < q_parts; ++part) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[j][0], v[j][1]);
        v[j][0] -= __low2float(pair), v[j][1] -= __high2float(pair);
        tile_at<__nv_bfloat162>((part * tile_heads + h) * P::q_stride + d * 2) = pair;
      }
    }
  };
  int number = static_cast<int>(blockIdx.x);
  const auto find_item = [&](TileItem& item) {
    for (; number < items.count; number += static_cast<int>(gridDim.x)) {
      item = items.item(table, s, number);
      if (item.rows > 0) return true;
    }
    return false;
  };
  TileItem item;
  if (!find_item(item)) return;
#pragma unroll
  for (int u = 0; u < P::units; ++u) {
    float v[pairs][2];
    load_q(item, u, v);
    write_q(u, v);
  }
  __syncthreads();
  for (bool more = true; more;) {
    // Of the heads 2 t, 2 t + 1.
    float acc[P::units * P::width / 16][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (int step = warp; step * step_rows < item.rows; step += tile_warps) {
      // Sums of a few products each: the tensor cores round towards zero.
      float scores[4] = {};
#pragma unroll
      for (int u = 0; u < P::units; ++u) {
        const uint32_t keys = next_unit() + lane % 16 * P::stride + lane / 16 * 16;
        const uint32_t q_at = lane % 8 * P::q_stride + lane / 8 * 16 + u * P::width * 2;
        float dots[3][4] = {};
#pragma unroll
        for (int i = 0; i < P::width / 32; ++i) {
          uint32_t a[2][4];
          ldmatrix_x4(tile_address(keys + i * 64), a[0]);
          ldmatrix_x4(tile_address(keys + i * 64 + 32), a[1]);
#pragma unroll
          for (int part = 0; part < 3; ++part) {
            if (part >= q_parts) break;
            uint32_t b[4];
            ldmatrix_x4(tile_address(q_at + part * tile_heads * P::q_stride + i * 64), b);
            mma_16x8x16(dots[part], a[0], b[0], b[1]);
            mma_16x8x16(dots[part], a[1], b[2], b[3]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[i] += dots[2][i] + dots[1][i] + dots[0][i];
      }
      // Of the rows lane / 4 and that + 8, for two heads each.
      float p[4], factor[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float value = scores[i] * s.scale;
        if (s.softcap > 0) value = s.softcap * tanhf(value / s.softcap);
        p[i] = step * step_rows + lane / 4 + i / 2 * 8 < item.rows ? value : -INFINITY;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = fmaxf(p[h], p[2 + h]);
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, offset));
        most = fmaxf(most, top[h]);
        factor[h] = expf(top[h] - most);
        top[h] = most;
        p[h] = expf(p[h] - most), p[2 + h] = expf(p[2 + h] - most);
        sum[h] = fmaf(sum[h], factor[h], p[h] + p[2 + h]);
      }
      uint32_t b[3][2];
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        if (part >= p_parts) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const __nv_bfloat162 pair = __floats2bfloat162_rn(p[2 * half], p[2 * half + 1]);
          p[2 * half] -= __low2float(pair), p[2 * half + 1] -= __high2float(pair);
          b[part][half] = transpose_matrix(*reinterpret_cast<const uint32_t*>(&pair));
        }
      }
#pragma unroll
      for (int u = 0; u < P::units; ++u) {
        const uint32_t values = next_unit() + (lane % 8 + lane / 16 * 8) * P::stride + lane / 8 % 2 * 16;
#pragma unroll
        for (int i = 0; i < P::width / 16; ++i) {
          uint32_t a[4];
          ldmatrix_x4<true>(tile_address(values + i * 32), a);
          float c[4] = {};
#pragma unroll
          for (int part = 2; part >= 0; --part) {
            if (part < p_parts) mma_16x8x16(c, a, b[part][0], b[part][1]);
          }
          float(&sums)[4] = acc[u * (P::width / 16) + i];
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[e] = fmaf(sums[e], factor[e % 2], c[e]);
        }
      }
    }

    // The sums of the warps, in order; then the next item's q.
    const TileItem done = item;
    number += static_cast<int>(gridDim.x);
    more = find_item(item);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) sum[h] += __shfl_xor_sync(0xffffffffU, sum[h], offset);
      if (lane < 4) {
        tile_at<float>(P::tops_at + (warp * tile_heads + 2 * t + h) * 4) = top[h];
        tile_at<float>(P::tops_at + ((tile_warps + warp) * tile_heads + 2 * t + h) * 4) = sum[h];
      }
    }
    __syncthreads();
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = -INFINITY;
#pragma unroll
      for (int w = 0; w < tile_warps; ++w)
        most = fmaxf(most, tile_at<float>(P::tops_at + (w * tile_heads + 2 * t + h) * 4));
      factor[h] = expf(top[h] - most);
    }
    if (tid < done.num_heads) {
      float most = -INFINITY, total = 0;
      for (int w = 0; w < tile_warps; ++w) most = fmaxf(most, tile_at<float>(P::tops_at + (w * tile_heads + tid) * 4));
      for (int w = 0; w < tile_warps; ++w)
        total = fmaf(tile_at<float>(P::tops_at + ((tile_warps + w) * tile_heads + tid) * 4),
                     expf(tile_at<float>(P::tops_at + (w * tile_heads + tid) * 4) - most), total);
      s.parts.top[done.part * s.H + done.head_begin + tid] = most;
      s.parts.sum[done.part * s.H + done.head_begin + tid] = total;
    }
#pragma unroll
    for (int u = 0; u < P::units; ++u) {
#pragma unroll
      for (int i = 0; i < P::width / 16; ++i) {
        if (2 * t >= done.num_heads) break;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int h = 2 * t + e % 2, d = i * 16 + lane / 4 + e / 2 * 8;
          tile_at<float>(P::sums_at + ((warp * tile_heads + h) * P::sum_stride + d) * 4) =
              acc[u * (P::width / 16) + i][e] * factor[e % 2];
        }
      }
      float q[pairs][2];
      if (more) load_q(item, u, q);
      __syncthreads();
      for (int i = tid; i < done.num_heads * P::width; i += tile_threads) {
        const int h = i / P::width, d = i % P::width;
        float total = 0;
#pragma unroll
        for (int w = 0; w < tile_warps; ++w)
          total += tile_at<float>(P::sums_at + ((w * tile_heads + h) * P::sum_stride + d) * 4);
        s.parts.acc[(done.part * s.H + done.head_begin + h) * s.depth + u * P::width + d] = total;
      }
      if (more) write_q(u, q);
      __syncthreads();
    }
  }
}

}  // namespace sluice::cuda::decode
