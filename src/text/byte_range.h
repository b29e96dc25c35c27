// A half-open range of bytes of a text.
#pragma once

#include <cstdint>

namespace sluice {

struct ByteRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

}  // namespace sluice
