// The GGUF format of llama.cpp. (The reader follows.)
#pragma once

#include "io/mmap.h"

namespace sluice {

class GgufFile {
 public:
  const MappedFile& map() const { return map_; }

 private:
  MappedFile map_;
};

}  // namespace sluice
