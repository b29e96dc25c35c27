// How errors about files are worded: the file, the place, what was found, what was needed, what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "core/error.h"

namespace sluice {

// Text from a file, fit for a one-line message: control characters and bad UTF-8 escaped, cut after `longest` bytes.
std::string printable(std::string_view text, size_t longest = 80);

bool is_utf8(std::string_view text);  // well-formed: no overlong forms, surrogates or code points past U+10FFFF

// Throws Error(bad_file, "<file>: <problem>").
[[noreturn]] void bad_file(std::string_view file, const std::string& problem);
// The same, with the reason that errno holds: "<file>: <what>: No such file or directory".
[[noreturn]] void bad_file_errno(std::string_view file, std::string_view what);

}  // namespace sluice
