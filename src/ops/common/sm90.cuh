// Hopper's building blocks for kernels: mbarriers, the bulk tensor copy engine (TMA), and matrix descriptors for wgmma (sm90_wgmma.cuh).
//
// They exist in code built for sm_90a only. A kernel that uses them keeps its body in `#ifdef SLUICE_SM90A` (empty for other targets) and is
// launched where `facts_of(ctx).hopper()`.
//
// Shared tiles are of one kind: rows of 128 bytes (64 bf16), 128-byte swizzle, the tile's begin aligned to 1024. Wider tiles are several such
// slabs, one after another.  A TMA box {64, rows} writes one slab of `rows` rows.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "core/error.h"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SLUICE_SM90A
#endif

#include "ops/common/sm90_wgmma.cuh"

namespace sluice::cuda {

// A view of a bf16 matrix in global memory for TMA: [rows, cols], `stride` elements between rows (a multiple of 8; the address of 16 bytes),
// read or written in boxes of box_rows x box_cols (box_cols <= 64: one swizzled row). What lies outside reads as zero and is not written.
// Passed to kernels as `const __grid_constant__ CUtensorMap`. Throws Error(device). Host code; sm90.cu.
CUtensorMap tensor_map(const void* data, int64_t rows, int64_t cols, int64_t stride, int box_rows, int box_cols = 64);
// The same with heads: [rows, heads, head_dim], head h at + h * head_dim; coordinates {column in head, head, row}.
CUtensorMap tensor_map_heads(const void* data, int64_t rows, int64_t heads, int64_t head_dim, int box_rows,
                             int box_cols = 64);
// Of floats, in boxes of box_rows x 32 (one swizzled row).
CUtensorMap tensor_map_heads_f32(const float* data, int64_t rows, int64_t heads, int64_t head_dim, int box_rows);

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Matrix descriptors (PTX ISA, "Matrix descriptor format"). `address` of shared memory.
// k contiguous: slab [rows, 64 k]; step k by 16: + 32 bytes inside a slab. Rows 8 i … 8 i + 7 lie 1024 i bytes on.
__device__ inline uint64_t descriptor_k(uint32_t address) {
  return (static_cast<uint64_t>((address & 0x3FFFFU) >> 4)) | (uint64_t{1} << 16) | (uint64_t{1024 >> 4} << 32) |
         (uint64_t{1} << 62);
}
// mn contiguous: slabs [k rows, 64 mn], `slab_bytes` apart; step k by 16: + 2048 bytes.
__device__ inline uint64_t descriptor_mn(uint32_t address, uint32_t slab_bytes) {
  return (static_cast<uint64_t>((address & 0x3FFFFU) >> 4)) | (static_cast<uint64_t>(slab_bytes >> 4) << 16) |
         (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}

#ifdef __CUDACC__

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// mbarriers in shared memory.
__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// After all inits by one thread, before __syncthreads (and cluster_sync with clusters).
__device__ inline void barrier_init_fence() {
#ifdef SLUICE_SM90A
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
__device__ inline void barrier_expect_bytes(uint64_t* barrier, uint32_t bytes) {  // also arrives once
#ifdef SLUICE_SM90A
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}
__device__ inline void barrier_arrive(uint64_t* barrier) {
#ifdef SLUICE_SM90A
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
// At the same barrier of a block of the cluster. Without a release fence of cluster scope, which costs about 1,000 cycles: what it orders are
// reads of wgmma, complete by then.
__device__ inline void barrier_arrive_at(uint64_t* barrier, int rank) {
#ifdef SLUICE_SM90A
  asm volatile(
      "{.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
#endif
}
// Waits until the phase with this parity is complete. A fresh barrier: wait(…, 1) returns at once, wait(…, 0) after the first completion.
// Lanes may see the completion at different times.
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
#ifdef SLUICE_SM90A
  asm volatile(
      "{.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\n"
      "bra again;\n"
      "end:}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

__device__ inline void prefetch_map(const CUtensorMap* map) {
#ifdef SLUICE_SM90A
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
#endif
}
// Box at (row, col) into shared memory, by one thread; completes on the barrier.
__device__ inline void tma_load(void* shared, const CUtensorMap* map, uint64_t* barrier, int col, int row) {
#ifdef SLUICE_SM90A
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(col), "r"(row)
      : "memory");
#endif
}
__device__ inline void tma_load_head(void* shared, const CUtensorMap* map, uint64_t* barrier, int col, int head,
                                     int row) {
#ifdef SLUICE_SM90A
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(col), "r"(head), "r"(row)
      : "memory");
#endif
}
// Bulk stores from shared to global memory, given by one thread: closes a group of them.
__device__ inline void tma_store_commit() {
#ifdef SLUICE_SM90A
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
template <int pending>
__device__ void tma_store_wait() {  // until the shared memory may be overwritten
#ifdef SLUICE_SM90A
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
#endif
}
// Makes ordinary stores to shared memory visible to wgmma and TMA; before the barrier.
__device__ inline void fence_async_shared() {
#ifdef SLUICE_SM90A
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Registers of a warpgroup, in kernels with __launch_bounds__(threads, 1): a producer gives some back, a consumer takes more.
template <int count>
__device__ void registers_dealloc() {
#ifdef SLUICE_SM90A
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
template <int count>
__device__ void registers_alloc() {
#ifdef SLUICE_SM90A
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
#endif
}
// A named barrier (1-15) among `threads` threads.
__device__ inline void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Four 8x8 matrices of bf16 from registers to shared memory; lane l gives the address of one row of 16 bytes.
__device__ inline void stmatrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#ifdef SLUICE_SM90A
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
#endif
}
// The elected lane of a converged warp.
__device__ inline bool elect_one() {
#ifdef SLUICE_SM90A
  uint32_t elected = 0;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
#else
  return false;
#endif
}

#endif  // __CUDACC__

}  // namespace sluice::cuda
