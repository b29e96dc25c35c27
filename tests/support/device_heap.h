// In CUDA mode, `new` gives memory that the device reads and writes: so a test's vectors can be handed to kernels as they are.
#pragma once

#include <cstddef>

namespace sluice::test {

// From now on operator new takes from this block of pinned memory, aligned to 256 bytes; std::bad_alloc when it is full.
// What was allocated before stays valid. The block is never given back: call std::_Exit at the end.
void allocate_from(std::byte* block, size_t bytes);

}  // namespace sluice::test
