// The source tree, whose files tests read: the one this program was built from, or the environment variable SLUICE_SOURCE_DIR.
#pragma once

#include <filesystem>

namespace sluice::test {

std::filesystem::path source_dir();

// The program `sluice` of the same build.
std::filesystem::path program_path();

}  // namespace sluice::test
