// What `ulimit -v` leaves, for libraries that do not survive a refusal.
#pragma once

#include <cstdint>

namespace sluice {

// Throws Error(out_of_memory) when the process' limit of address space leaves less than `bytes`. Without a limit it costs one system call.
void check_address_space(int64_t bytes);

}  // namespace sluice
