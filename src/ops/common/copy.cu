#include "ops/common/copy.h"

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

namespace {

// Whether cudaMemcpyAsync has read the host's memory when it returns. It stages what is small and pageable; pinned memory is read
// later, and how much of a large pageable copy is staged is the driver's choice.
bool read_at_once(const void* host, int64_t bytes) {
  constexpr int64_t staged_bytes = 64 << 10;
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, host), "asking where host memory lies");
  return attributes.type == cudaMemoryTypeUnregistered && bytes <= staged_bytes;
}

size_t bytes_of(const Tensor& t) { return static_cast<size_t>(t.size_bytes()); }

}  // namespace

// The host's memory may change or go as soon as this returns. The direction is found by the driver, since the tests' tensors are
// pinned host memory.
void copy_from_host(Context& ctx, const CopyFromHost& args) {
  if (ctx.counting() || args.tensor.size_bytes() == 0) return;
  const cudaStream_t stream = stream_of(ctx);
  check_cuda(cudaMemcpyAsync(args.tensor.data, args.host, bytes_of(args.tensor), cudaMemcpyDefault, stream),
             "copying to the device");
  if (!read_at_once(args.host, args.tensor.size_bytes())) {
    check_cuda(cudaStreamSynchronize(stream), "waiting for a copy to the device or for work before it");
  }
}

// Waits for all work so far; what failed in it comes to light here.
void copy_to_host(Context& ctx, const CopyToHost& args) {
  if (ctx.counting() || args.tensor.size_bytes() == 0) return;
  const cudaStream_t stream = stream_of(ctx);
  check_cuda(cudaMemcpyAsync(args.host, args.tensor.data, bytes_of(args.tensor), cudaMemcpyDefault, stream),
             "copying from the device");
  check_cuda(cudaStreamSynchronize(stream), "waiting for a copy from the device or for work before it");
}

void zero(Context& ctx, const Zero& args) {
  if (ctx.counting() || args.tensor.size_bytes() == 0) return;
  check_cuda(cudaMemsetAsync(args.tensor.data, 0, bytes_of(args.tensor), stream_of(ctx)), "zero");
  check_launch("zero");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(copy_from_host, CopyFromHost)
SLUICE_CUDA_ENTRY(copy_to_host, CopyToHost)
SLUICE_CUDA_ENTRY(zero, Zero)
