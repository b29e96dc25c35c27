#include "ops/common/copy.h"

namespace sluice {

void copy_from_host(Context& ctx, const CopyFromHost& args) { SLUICE_DISPATCH(ctx, copy_from_host, args); }
void copy_to_host(Context& ctx, const CopyToHost& args) { SLUICE_DISPATCH(ctx, copy_to_host, args); }
void zero(Context& ctx, const Zero& args) { SLUICE_DISPATCH(ctx, zero, args); }

}  // namespace sluice
