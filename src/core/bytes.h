// Sizes for people.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

std::string format_bytes(uint64_t bytes);  // "1.50 GiB", "12.3 MiB", "870 bytes": never 0 of a unit that is too large

}  // namespace sluice
