// Launches that may begin while the kernel before them ends (programmatic dependent launch, on Hopper). The kernel waits
// itself, in every thread, before it reads or writes what other kernels write or read: wait_for_kernels_before()
// (mma.cuh); the sooner it calls launch_dependents(), the sooner the next one is there.
#pragma once

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

template <class... Parameters, class... Arguments>
void launch_early(const Context& ctx, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                  const char* what, Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(ctx);
  config.attrs = &attribute;
  config.numAttrs = facts_of(ctx).hopper() ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), what);
}

}  // namespace sluice::cuda
