// Instructions that kernels without wgmma share: 8x8 matrices from shared memory, tensor cores on a warp's registers, copies that a warp waits
// for, and kernels that begin while the one before ends. Addresses are those of shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace sluice::cuda {

// Four 8x8 matrices of 16 bits; lane l gives the address of row l % 8 of matrix l / 8.
template <bool transposed = false>
__device__ inline void ldmatrix_x4(uint32_t shared, uint32_t (&r)[4]) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
  }
}

// c [16, 8] += a [16, 16] b [16, 8] of bf16; c are four floats.
__device__ inline void mma_16x8x16(float* c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                   uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma_16x8x16(float* c, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16x8x16(c, a[0], a[1], a[2], a[3], b0, b1);
}

// 16 bytes, past the first `count` zeros.
__device__ inline void copy_async_part_16(uint32_t shared, const void* from, int count) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(count) : "memory");
}
__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Programmatic dependent launch: the next kernel may begin; what the kernels before wrote is there.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace sluice::cuda
