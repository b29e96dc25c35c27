// The source tree, whose files tests read: the one this program was built from, or the environment variable SLUICE_SOURCE_DIR.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace sluice::test {

inline std::filesystem::path source_dir() {
  const char* given = std::getenv("SLUICE_SOURCE_DIR");
  return given != nullptr && *given != '\0' ? given : SLUICE_SOURCE_DIR;
}

}  // namespace sluice::test
