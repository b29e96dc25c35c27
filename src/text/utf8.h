// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace sluice {

// Bytes of the character that starts at `at`, 1 to 4, or 0 when no valid character starts there.
inline size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0; };
  const auto trail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t lead = byte(0);
  if (at >= text.size()) return 0;
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return trail(1) ? 2 : 0;
  if (lead < 0xF0) {
    if (!trail(1) || !trail(2) || (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F)) return 0;
    return 3;
  }
  if (lead > 0xF4 || !trail(1) || !trail(2) || !trail(3)) return 0;
  if ((lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F)) return 0;
  return 4;
}

// The start of the character that ends at `end`, in valid text.
inline size_t utf8_previous(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

// The code point at `at`; a character must start there.
inline uint32_t utf8_decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  if (lead < 0xF0) return (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

inline void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t b) { out.push_back(static_cast<char>(b)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

// End of the valid text that starts at `from`.
inline size_t utf8_valid_end(std::string_view text, size_t from) {
  size_t at = from;
  while (at < text.size()) {
    uint64_t eight;
    if (at + 8 <= text.size() && (std::memcpy(&eight, text.data() + at, 8), (eight & 0x8080808080808080ULL) == 0)) {
      at += 8;
      continue;
    }
    const size_t length = utf8_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

}  // namespace sluice
