#include <cstring>

#include "ops/common/copy.h"
#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {

void copy_from_host(Context& ctx, const CopyFromHost& args) {
  if (ctx.counting() || args.tensor.size_bytes() == 0) return;
  std::memcpy(args.tensor.data, args.host, static_cast<size_t>(args.tensor.size_bytes()));
}

void copy_to_host(Context& ctx, const CopyToHost& args) {
  if (ctx.counting() || args.tensor.size_bytes() == 0) return;
  std::memcpy(args.host, args.tensor.data, static_cast<size_t>(args.tensor.size_bytes()));
}

void zero(Context& ctx, const Zero& args) {
  if (ctx.counting() || args.tensor.size_bytes() == 0) return;
  std::memset(args.tensor.data, 0, static_cast<size_t>(args.tensor.size_bytes()));
}

}  // namespace sluice::SLUICE_CPU
