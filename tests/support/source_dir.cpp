// The one test source that knows paths of this build, so that a compiler's cache serves every other from any checkout.
#include "support/source_dir.h"

#include <cstdlib>

namespace sluice::test {

std::filesystem::path source_dir() {
  const char* given = std::getenv("SLUICE_SOURCE_DIR");
  return given != nullptr && *given != '\0' ? given : SLUICE_SOURCE_DIR;
}

std::filesystem::path program_path() { return SLUICE_PROGRAM; }

}  // namespace sluice::test
