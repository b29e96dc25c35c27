// The CUDA backend as a shared library, opened at the first use of a CUDA device.
#pragma once

#include "core/context.h"

namespace sluice {

// The address of `sluice_cuda_<name>` in libsluice_cuda.so. Throws Error(device) when the library or the symbol is
// missing, with what to do.
void* cuda_symbol(const char* name);

// With SLUICE_CUDA_SYNC=1 in the environment: waits for the device after an op, so that an error names the op that failed.
void after_cuda_op(const Context& ctx, const char* op);

template <class Args>
auto cuda_entry(const char* name) {
  return reinterpret_cast<void (*)(Context&, const Args&)>(cuda_symbol(name));
}

}  // namespace sluice
