// What the Hopper kernels of attention_backward share: bulk copies, and the ring by which one warp feeds two warpgroups.
#pragma once

#include "ops/attention/attention_backward.cuh"
#include "ops/common/sm90.cuh"

#pragma nv_diag_suppress 177  // declared but not used: so in code for other targets, where the kernels are empty

namespace sluice::cuda::backward {

constexpr int threads = 384;          // a warpgroup that copies, two that compute
constexpr int slab_bytes = 64 * 128;  // 64 rows of 64 bf16

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint64_t* barrier) {
#ifdef SLUICE_SM90A
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}
__device__ __forceinline__ void bulk_store(void* global, uint32_t shared, uint32_t bytes) {
#ifdef SLUICE_SM90A
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void bulk_store_done() {
#ifdef SLUICE_SM90A
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void tma_load_slab(uint32_t shared, const CUtensorMap* map, uint64_t* barrier, int col,
                                              int head, int row) {
#ifdef SLUICE_SM90A
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(col), "r"(head), "r"(row)
      : "memory");
#endif
}

// Matrix descriptors as in sm90.cuh by their low word, to which an offset / 16 can be added: cheap to make where they are used.
__device__ __forceinline__ uint32_t low_k(uint32_t address) { return (address >> 4) | (1U << 16); }
__device__ __forceinline__ uint32_t low_mn(uint32_t address, uint32_t stride_of_slabs) {
  return (address >> 4) | (stride_of_slabs >> 4 << 16);
}
__device__ __forceinline__ uint64_t descriptor(uint32_t low) { return uint64_t{(1U << 30) | (1024 >> 4)} << 32 | low; }
// Keeps the compiler from making what depends on x outside of a loop.
__device__ __forceinline__ uint32_t here(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The thread, read where it is used rather than kept in a register.
__device__ __forceinline__ int thread_here() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// A ring of stages in shared memory, filled by one warp and read by two warpgroups. Every thread of theirs gives a
// stage back: a lane for its warp would cost the same, and racecheck (CUDA 13.0) does not follow it.
template <int count>
struct Ring {
  uint64_t full[count], empty[count];
  int info[count];  // what the stage holds; written before `full`
};
struct Turn {
  int stage = 0;
  uint32_t parity = 0;
  template <int count>
  __device__ void next() {
    if (++stage == count) stage = 0, parity ^= 1;
  }
};
// Its fence is barrier_init_fence() without waiting for global memory.
template <int count>
__device__ void init_ring(Ring<count>& ring, int arrivals = threads - 128) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < count; ++i) barrier_init(&ring.full[i], 1), barrier_init(&ring.empty[i], arrivals);
#ifdef SLUICE_SM90A
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    fence_async_shared();
  }
  __syncthreads();
}

extern __shared__ unsigned char shared_bytes[];
// The first address that is a multiple of 1024: kernels ask for 1024 bytes more than they use.
__device__ inline uint32_t shared_begin() { return (shared_address(shared_bytes) + 1023) & ~1023U; }

// P, and the slope of the softcap: dS = P slope (dP - delta).
// `dot` is q . k, lse2 in units of log 2.
template <bool capped>
__device__ __forceinline__ float weigh(const BackwardArgs& args, float dot, float lse2, float& slope) {
  slope = 1;
  if constexpr (capped) {
    const float tanh = 1 - __fdividef(2.0F, exp2_approx(dot * args.cap_in) + 1);
    dot = args.softcap * tanh, slope = 1 - tanh * tanh;
  }
  return exp2_approx(fmaf(dot, args.factor, -lse2));
}

template <class Kernel>
void allow_shared(Kernel kernel, int bytes) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "attention_backward: shared memory");
}

}  // namespace sluice::cuda::backward
