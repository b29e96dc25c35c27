#include <cstring>

#include "ops/common/aside.h"
#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {

void copy_aside(Context& ctx, const CopyAside& args) {
  if (ctx.counting() || args.from.size_bytes() == 0) return;
  std::memcpy(args.to.data, args.from.data, static_cast<size_t>(args.from.size_bytes()));
}

void wait_aside(Context& /*ctx*/, const WaitAside& /*args*/) {}

}  // namespace sluice::SLUICE_CPU
