// SHA-256, to tell whether a file is the one it should be.
//
//   sha256_file("model.gguf") == "0be2f5…"   // 64 lower-case hexadecimal digits
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace sluice {

std::string sha256(std::span<const std::byte> bytes);

// Throws Error(bad_file) when the file cannot be read. An empty file has a hash too.
std::string sha256_file(const std::string& path);

}  // namespace sluice
