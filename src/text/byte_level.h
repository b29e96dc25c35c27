// GPT-2's way to write any bytes as printable characters (Radford et al. 2019): the printable bytes of Latin-1 stand for
// themselves, the other 68 for U+0100 and up, in order. So byte 0x20 is "Ġ" (U+0120) and 0x0A is "Ċ" (U+010A).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/utf8.h"

namespace sluice {

inline std::array<uint16_t, 256> byte_level_alphabet() {
  std::array<uint16_t, 256> code_of{};
  uint16_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    code_of[static_cast<size_t>(byte)] = printable ? static_cast<uint16_t>(byte) : next++;
  }
  return code_of;
}

// The bytes that a token's text stands for, or nothing when it has a character outside the alphabet.
inline std::optional<std::string> byte_level_decode(std::string_view text) {
  static const std::array<int16_t, 0x144> byte_of = [] {
    std::array<int16_t, 0x144> table;
    table.fill(-1);
    const auto code_of = byte_level_alphabet();
    for (int16_t byte = 0; byte < 256; ++byte) table[code_of[static_cast<size_t>(byte)]] = byte;
    return table;
  }();
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const uint32_t code = length == 0 ? 0x144 : utf8_decode(text, at);
    if (code >= byte_of.size() || byte_of[code] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte_of[code]));
    at += length;
  }
  return bytes;
}

inline std::string byte_level_encode(std::string_view bytes) {
  static const auto code_of = byte_level_alphabet();
  std::string text;
  for (char byte : bytes) append_utf8(text, code_of[static_cast<uint8_t>(byte)]);
  return text;
}

}  // namespace sluice
