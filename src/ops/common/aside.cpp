#include "ops/common/aside.h"

namespace sluice {

void copy_aside(Context& ctx, const CopyAside& args) {
  SLUICE_ASSERT(args.from.shape == args.to.shape && args.from.dtype == args.to.dtype);
  SLUICE_ASSERT(args.slot >= 0 && args.slot < 8);
  SLUICE_DISPATCH(ctx, copy_aside, args);
}

void wait_aside(Context& ctx, const WaitAside& args) {
  SLUICE_ASSERT(args.slot >= 0 && args.slot < 8);
  SLUICE_DISPATCH(ctx, wait_aside, args);
}

}  // namespace sluice
