#include "io/file_error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace sluice {
namespace {

// Bytes of the well-formed sequence that starts at `text`, or 0 (Unicode 15, table 3-7).
size_t utf8_length(std::string_view text) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0U; };
  auto in = [&](size_t i, unsigned low, unsigned high) { return byte(i) >= low && byte(i) <= high; };
  auto tail = [&](size_t i) { return in(i, 0x80, 0xBF); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool second = first == 0xE0 ? in(1, 0xA0, 0xBF) : first == 0xED ? in(1, 0x80, 0x9F) : tail(1);
    return second && tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool second = first == 0xF0 ? in(1, 0x90, 0xBF) : first == 0xF4 ? in(1, 0x80, 0x8F) : tail(1);
    return second && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text, size_t longest) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= longest) return out + "...";
    const auto first = static_cast<uint8_t>(text[0]);
    const size_t length = first < 0x20 || first == 0x7F ? 0 : utf8_length(text);
    if (length == 0) out += fmt::format("\\x{:02x}", first);
    else out += text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

void bad_file(std::string_view file, const std::string& problem) {
  throw Error(ErrorCode::bad_file, fmt::format("{}: {}", file, problem));
}

void bad_file_errno(std::string_view file, std::string_view what) {
  const int reason = errno;
  bad_file(file, fmt::format("{}: {}", what, std::strerror(reason)));
}

}  // namespace sluice
