// Copies beside the computation: between the device's memory and pinned host memory, on two streams of their own: slots 0 … 5 share one, slots 6 and 7 the other,
// so that small copies need not wait for large ones.
//
//   copy_aside(ctx, {.from = x, .to = host, .slot = 0});   // begins once what x holds now has been computed
//   …                                                      // goes on meanwhile; x must not be written
//   wait_aside(ctx, {.slot = 0});                          // what is given to the device from here on sees the copy done
//
// On the CPU the copy is made at once. Slots are 0 … 7; one copy at a time in each. Deterministic.
#pragma once

#include "ops/common/dispatch.h"

namespace sluice {

struct CopyAside {
  Tensor from;  // in
  Tensor to;    // out, the same dtype and shape
  int slot = 0;
};
void copy_aside(Context& ctx, const CopyAside& args);

struct WaitAside {
  int slot = 0;
};
void wait_aside(Context& ctx, const WaitAside& args);

SLUICE_BACKENDS(copy_aside, CopyAside)
SLUICE_BACKENDS(wait_aside, WaitAside)

}  // namespace sluice
