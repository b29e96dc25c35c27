// Base64 (RFC 4648, section 4), as tokenizer files carry bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

// Nothing when `text` is not base64. Padding may be left out.
inline std::optional<std::string> base64_decode(std::string_view text) {
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') value = static_cast<uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z') value = static_cast<uint32_t>(c - 'a' + 26);
    else if (c >= '0' && c <= '9') value = static_cast<uint32_t>(c - '0' + 52);
    else if (c == '+') value = 62;
    else if (c == '/') value = 63;
    else return std::nullopt;
    bits = bits << 6 | value;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  if (count == 6) return std::nullopt;
  return bytes;
}

}  // namespace sluice
