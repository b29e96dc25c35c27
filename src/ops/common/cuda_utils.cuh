// What every CUDA kernel file shares: checked calls, the stream of a context, and how a backend function is exported.
//
//   namespace sluice::cuda {
//   void rmsnorm_forward(Context& ctx, const RmsNormForward& args) {
//     …scratch from ctx.arena…
//     if (ctx.counting()) return;
//     kernel<<<grid, block, 0, stream_of(ctx)>>>(…);
//     check_launch("rmsnorm_forward");
//   }
//   }
//   SLUICE_CUDA_ENTRY(rmsnorm_forward, RmsNormForward)
//
// Everything of a device runs on one stream, in order; nothing waits except copies to the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>

#include "core/context.h"
#include "core/error.h"
#include "core/kernel_path.h"
#include "core/tensor.h"

// The symbol by which SLUICE_DISPATCH finds a backend function in libsluice_cuda.so.
#define SLUICE_CUDA_ENTRY(function, Args)                                                                     \
  extern "C" __attribute__((visibility("default"))) void sluice_cuda_##function(::sluice::Context& ctx,       \
                                                                                const ::sluice::Args& args) { \
    ::sluice::cuda::function(ctx, args);                                                                      \
  }

namespace sluice::cuda {

// Throws Error(device): "<what>: <CUDA's text>". Out of memory is Error(out_of_memory).
inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const ErrorCode code = status == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::device;
  throw Error(code, std::string(what) + ": CUDA says " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}
// After a kernel launch.
inline void check_launch(const char* what) { check_cuda(cudaGetLastError(), what); }

// Facts of the device that a launch asks for; read once. Makes the context's device current for the calling thread.
struct DeviceFacts {
  int index = 0;
  KernelPath path = KernelPath::portable;
  int num_multiprocessors = 0;
  int64_t shared_bytes_per_block = 0;  // the most that a block can ask for
  cudaStream_t stream = nullptr;       // where all work of the device runs
  // Whether wgmma and TMA kernels (built for sm_90a) are to run here.
  bool hopper() const { return path == KernelPath::sm90; }
};
const DeviceFacts& facts_of(const Context& ctx);
inline cudaStream_t stream_of(const Context& ctx) { return facts_of(ctx).stream; }

// Eight bf16, or four float, by one 16-byte access.
struct alignas(16) Bf16x8 {
  __nv_bfloat162 v[4];
};

inline __host__ __device__ int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline __host__ __device__ int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Storage types to float and back; bf16 rounds to nearest even as the CPU does.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Calls body.template operator()<T>() with T the kernels' type of a dtype.
template <class Body>
void with_type(DType dtype, Body body) {
  if (dtype == DType::bf16) {
    body.template operator()<__nv_bfloat16>();
  } else {
    SLUICE_ASSERT(dtype == DType::f32);
    body.template operator()<float>();
  }
}

// Sum over the lanes of a warp, the same in every lane, in a fixed order.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
  return x;
}
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, offset));
  return x;
}

}  // namespace sluice::cuda
