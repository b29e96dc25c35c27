#include "text/charsmap.h"

#include <algorithm>

#include "core/error.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr size_t longest_key = 256;  // real tables have keys of up to 20 bytes or so; bounds what a damaged one costs

uint32_t read_u32(std::string_view bytes, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])); };
  return byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
}

// A unit of the double array: an offset to the children, the label that leads here, and whether a value stands here.
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }
uint32_t label_of(uint32_t unit) { return unit & (1U << 31 | 0xFF); }
bool has_value(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFF; }

}  // namespace

Charsmap::Charsmap(std::string_view precompiled) {
  const uint32_t size = precompiled.size() >= 4 ? read_u32(precompiled, 0) : 0;
  check(size >= 4 && size % 4 == 0 && size <= precompiled.size() - 4, ErrorCode::bad_file,
        "precompiled_charsmap of " + std::to_string(precompiled.size()) + " bytes has a table of " +
            std::to_string(size) + ", needed a multiple of 4 inside it; the file is damaged");
  for (size_t at = 4; at < 4 + size; at += 4) units_.push_back(read_u32(precompiled, at));
  texts_ = precompiled.substr(4 + size);
  check(texts_.ends_with('\0') && utf8_valid_end(texts_, 0) == texts_.size(), ErrorCode::bad_file,
        "precompiled_charsmap: its texts are not UTF-8 that ends in 0; the file is damaged");
}

std::optional<Charsmap::Match> Charsmap::find(std::string_view text, bool first) const {
  std::optional<Match> found;
  uint32_t node = offset_of(units_[0]);
  for (size_t at = 0; at < std::min(text.size(), longest_key); ++at) {
    const auto label = static_cast<uint8_t>(text[at]);
    node ^= label;
    if (node >= units_.size() || label_of(units_[node]) != label) break;
    const uint32_t unit = units_[node];
    node ^= offset_of(unit);
    if (!has_value(unit)) continue;
    const uint32_t value = node < units_.size() ? value_of(units_[node]) : UINT32_MAX;
    check(value < texts_.size() && (static_cast<uint8_t>(texts_[value]) & 0xC0) != 0x80, ErrorCode::bad_file,
          "precompiled_charsmap: a value points outside its texts; the tokenizer's file is damaged");
    found = Match{at + 1, std::string_view(texts_.c_str() + value)};
    if (first) break;
  }
  return found;
}

}  // namespace sluice
