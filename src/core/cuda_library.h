// The CUDA backend as a shared library, opened at the first use of a CUDA device.
#pragma once

#include "core/context.h"

namespace sluice {

// The address of `sluice_cuda_<name>` in libsluice_cuda.so. Throws Error(device) when the library or the symbol is
// missing, with what to do.
void* cuda_symbol(const char* name);

// Stands around an op on a CUDA device. With SLUICE_CUDA_SYNC=1 in the environment it waits for the device after the op, so that an error names
// the op that failed, or after the graph that the op is captured in (core/device.h); with SLUICE_CUDA_PROFILE=1, when nothing is captured, it
// also adds up the time of each op and prints the table when the program ends.
class CudaOp {
 public:
  CudaOp(const Context& ctx, const char* name);
  void done();
  // A graph is being captured on this thread, so nothing can be waited for.
  static inline thread_local bool capturing = false;
  // Whether ops are to be launched one by one: to be profiled, or by SLUICE_CUDA_GRAPH=0.
  static bool one_by_one();

 private:
  const Context& ctx_;
  const char* name_;
  double begin_ = 0;
};

template <class Args>
auto cuda_entry(const char* name) {
  return reinterpret_cast<void (*)(Context&, const Args&)>(cuda_symbol(name));
}

}  // namespace sluice
