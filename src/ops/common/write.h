// Whether an output is overwritten or added to, for inputs that were read twice.
#pragma once

#include <cstdint>

namespace sluice {

enum class Write : uint8_t { set, add };

// Sums over tokens run over chunks of this many rows, in order, in float32, whatever the tile; tiles are multiples of it.
// So no gradient depends on the plan.
constexpr int64_t row_chunk = 256;

}  // namespace sluice
