#include "ops/common/aside.h"

#include <array>
#include <map>

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

namespace {

// The streams for copies of a device, and for each slot an event before its copy and one after.
struct Beside {
  std::array<cudaStream_t, 2> streams{};
  std::array<cudaEvent_t, 8> before{}, after{};

  Beside() {
    for (cudaStream_t& stream : streams)
      check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a CUDA stream");
    for (auto* events : {&before, &after}) {
      for (cudaEvent_t& event : *events)
        check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making a CUDA event");
    }
  }
};

Beside& beside(const DeviceFacts& facts) {
  static std::map<int, Beside> all;
  return all[facts.index];
}

}  // namespace

void copy_aside(Context& ctx, const CopyAside& args) {
  if (ctx.counting() || args.from.size_bytes() == 0) return;
  const DeviceFacts& facts = facts_of(ctx);
  Beside& b = beside(facts);
  const auto slot = static_cast<size_t>(args.slot);
  const cudaStream_t stream = b.streams[slot < 6 ? 0 : 1];
  check_cuda(cudaEventRecord(b.before[slot], facts.stream), "copy_aside");
  check_cuda(cudaStreamWaitEvent(stream, b.before[slot], 0), "copy_aside");
  check_cuda(cudaMemcpyAsync(args.to.data, args.from.data, static_cast<size_t>(args.from.size_bytes()),
                             cudaMemcpyDefault, stream),
             "copy_aside");
  check_cuda(cudaEventRecord(b.after[slot], stream), "copy_aside");
}

void wait_aside(Context& ctx, const WaitAside& args) {
  if (ctx.counting()) return;
  const DeviceFacts& facts = facts_of(ctx);
  check_cuda(cudaStreamWaitEvent(facts.stream, beside(facts).after[static_cast<size_t>(args.slot)], 0), "wait_aside");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(copy_aside, CopyAside)
SLUICE_CUDA_ENTRY(wait_aside, WaitAside)
