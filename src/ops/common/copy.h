// Between host memory and the memory of the context's device.
#pragma once

#include "ops/common/dispatch.h"

namespace sluice {

struct CopyFromHost {
  const void* host;  // tensor.size_bytes() bytes
  Tensor tensor;     // out
};
void copy_from_host(Context& ctx, const CopyFromHost& args);

struct CopyToHost {
  Tensor tensor;  // in
  void* host;     // out; complete when the call returns
};
void copy_to_host(Context& ctx, const CopyToHost& args);

// Every byte of the tensor becomes zero.
struct Zero {
  Tensor tensor;
};
void zero(Context& ctx, const Zero& args);

SLUICE_BACKENDS(copy_from_host, CopyFromHost)
SLUICE_BACKENDS(copy_to_host, CopyToHost)
SLUICE_BACKENDS(zero, Zero)

}  // namespace sluice
