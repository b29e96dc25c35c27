// What an adapter of rank at most 16 asks of x and dy on Hopper, in one kernel each way:
//
//   forward    xa = round(factor * dropout(x) A^T)
//   backward   dyb = round(factor * dy B), partials_b = dy^T xa, partials_a = dropout(x)^T dyb
//
// Tiles of X come through a ring in shared memory; the ranks are the 16 rows of mma's result. A sum over columns is
// formed in eight ranges of columns, which are added as a balanced tree: so its bits do not depend on how many blocks
// share the columns.
//
// Forward: a block takes 32 or 64 rows. Backward: 1, 2, 4 or 8 blocks take a chunk of 256 rows, some ranges each. They
// exchange their shares through global memory and wait for each other: they are never more than the device runs at once
// (num_splits). Dropout is drawn where x lies in shared memory.
//
// X is read before the kernel before has ended: that kernel must not write x or dy, and must begin with
// wait_for_previous_kernel.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "ops/common/mma.cuh"
#include "ops/common/sm90.cuh"
#include "ops/common/write.h"
#include "ops/gemm/gemm_sm90.cuh"
#include "ops/linear/linear_adapter.cuh"

namespace sluice::cuda::thin_sm90 {

constexpr int max_ranks = 16, rows = static_cast<int>(row_chunk), ranges = 8;
constexpr int threads = 512, warps = threads / 32;
// Tiles of X that are asked for before the kernel before has ended; more would keep that from its own loads.
constexpr int early_tiles = 1;
constexpr int slab_cols = 64, w_slab_bytes = max_ranks * 128;  // a slab: 64 columns, lines of 128 bytes

// Of columns, in slabs.
inline int64_t range_slabs(int64_t columns) { return ceil_div(ceil_div(columns, slab_cols), ranges); }

// Dropout of X [rows, cols]: what is drawn is left in `bytes`, when given, bit c % 8 of byte c / 8 of a row.
struct Keep {
  Draws draws;
  uint8_t* bytes = nullptr;
  int64_t stride = 0;  // bytes between rows
};
// One thread's part, of `all`, of dropping from a tile of `slabs` slabs of X in shared memory.
template <int lines, int slabs, int all>
struct Mask {
  static constexpr int items = slabs * lines * 8, rounds = (items + all - 1) / all;
  static_assert(rounds <= 8);
  uint64_t bits = 0;

  // `first_col` gives the first column of a slab; `count` rows from row0 exist.
  template <class FirstCol>
  __device__ void draw(const Keep& k, int thread, int row0, int count, int cols, const FirstCol& first_col) {
    bits = ~uint64_t{0};
#pragma unroll 1
    for (int i = 0; i < rounds; ++i) {
      const int item = thread + i * all, line = item / 8 % lines, col = first_col(item / (8 * lines)) + item % 8 * 8;
      if (item >= items || line >= count || col >= cols) continue;
      uint8_t* const byte = k.bytes != nullptr ? k.bytes + (row0 + line) * k.stride + col / 8 : nullptr;
      const uint64_t block = (static_cast<uint64_t>(k.draws.row_begin + row0 + line) * cols + col) / 4;
      const uint32_t b = kept_of_four(k.draws, block) | kept_of_four(k.draws, block + 1) << 4;
      if (byte != nullptr) *byte = static_cast<uint8_t>(b);
      bits ^= static_cast<uint64_t>(b ^ 0xFFU) << (8 * i);
    }
  }
  // Slabs lie lines * 128 bytes apart.
  __device__ void apply(uint8_t* tile, int thread) const {
#pragma unroll
    for (int i = 0; i < rounds; ++i) {
      const int item = thread + i * all, line = item / 8;
      if (item >= items) continue;
      const auto b = static_cast<uint32_t>(bits >> (8 * i));
      const auto mask = [&](int pair) {
        return ((b >> (2 * pair) & 1U) != 0 ? 0xFFFFU : 0U) | ((b >> (2 * pair + 1) & 1U) != 0 ? 0xFFFF0000U : 0U);
      };
      auto* const at_chunk = reinterpret_cast<uint4*>(tile + line * 128 + ((item % 8 ^ (line & 7)) << 4));
      const uint4 v = *at_chunk;
      *at_chunk = make_uint4(v.x & mask(0), v.y & mask(1), v.z & mask(2), v.w & mask(3));
    }
    fence_async_shared();
  }
};

// Sums of ranges, added as a balanced tree in the order in which they come.
template <int count>
struct Tree {
  float level[3][count];
  // Adds range i (of those that come); `sum` is then the sum of the largest subtree that ends with it.
  template <int l = 0>
  __device__ void add(int i, float (&sum)[count]) {
    if constexpr (l < 3) {
      if ((i >> l & 1) == 0) {
#pragma unroll
        for (int e = 0; e < count; ++e) level[l][e] = sum[e];
      } else {
#pragma unroll
        for (int e = 0; e < count; ++e) sum[e] = level[l][e] + sum[e];
        add<l + 1>(i, sum);
      }
    }
  }
};

// 16 bytes `chunk` of a line of a slab.
__device__ inline uint32_t at(uint32_t slab, int line, int chunk) {
  return slab + line * 128 + ((chunk ^ (line & 7)) << 4);
}

// An 8x8 matrix of 16 bits, two of a row in each thread, turned.
__device__ inline uint32_t transposed(uint32_t m) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(m));
  return result;
}

// Full and empty stages of a ring whose loads are begun by thread 0 of those that use them: tile i takes the place of
// tile i - stages once all warps have passed it.
template <int stages>
struct Ring {
  uint64_t *full, *empty;
  int next = 0, stage = 0;
  uint32_t phase = 0;

  __device__ Ring(uint64_t* barriers) : full(barriers), empty(barriers + stages) {}
  __device__ void init() const {
    for (int s = 0; s < stages; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, warps);
    }
    barrier_init_fence();
  }
  // Begins the loads of the first tiles: `issue_parts(tile, of X, of its weights)`, by thread 0. What the kernels before wrote
  // is there after this; X of the first tiles is asked for before.
  template <class IssueParts>
  __device__ void start(int total, const IssueParts& issue_parts) const {
    if (threadIdx.x == 0) {
      init();
      for (int i = 0; i < min(early_tiles, total); ++i) issue_parts(i, true, false);
    }
    __syncthreads();
    gemm_sm90_detail::wait_for_previous_kernel();
    if (threadIdx.x == 0) {
      for (int i = 0; i < min(stages, total); ++i) issue_parts(i, i >= early_tiles, true);
    }
  }
  template <class Issue>
  __device__ int begin_tile(int total, const Issue& issue) {
    if (threadIdx.x == 0 && next > 0 && next - 1 + stages < total) {
      barrier_wait(empty + (stage == 0 ? stages - 1 : stage - 1), stage == 0 ? phase ^ 1 : phase);
      issue(next - 1 + stages);
    }
    __syncwarp();
    barrier_wait(full + stage, phase);
    return stage;
  }
  __device__ void end_tile() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty + stage);
    ++next;
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// One side of the work: X [rows, cols], its weights [padded, cols], what comes of it.
struct Operand {
  const void* x = nullptr;
  int64_t cols = 0;
  const void* w = nullptr;
  Dropout dropout;           // of x
  uint32_t* keep = nullptr;  // [rows, keep_words(cols)] (drop, linear_adapter.cuh) out, may be null
  void* low = nullptr;
  float* partials = nullptr;

  Keep kept() const { return {draws_of(dropout), reinterpret_cast<uint8_t*>(keep), keep_words(cols) * 4}; }
};

template <auto kernel, class... Arguments>
void launch(const DeviceFacts& facts, dim3 grid, int threads, int shared_bytes, const Arguments&... arguments) {
  static std::atomic<uint64_t> prepared{0};
  const uint64_t bit = uint64_t{1} << facts.index;
  if ((prepared.load() & bit) == 0) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
               "an adapter's products");
    prepared.fetch_or(bit);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = facts.stream;
  const std::array attributes = gemm_sm90_detail::launch_attributes(1);
  config.attrs = const_cast<cudaLaunchAttribute*>(attributes.data());
  config.numAttrs = attributes.size();
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), "an adapter's products");
}

}  // namespace sluice::cuda::thin_sm90
