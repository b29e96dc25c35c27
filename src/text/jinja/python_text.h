// Python's str methods on text with origins: by code point, with Unicode's white space and case as Python has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/marked_text.h"
#include "text/utf8.h"

namespace sluice::jinja {

// use(begin, end) for the bytes of each character; a byte that is no UTF-8 counts as one.
template <class Use>
void for_each_character(std::string_view text, const Use& use) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::max<size_t>(1, utf8_length(text, at));
    use(at, at + length);
    at += length;
  }
}

int64_t character_count(std::string_view text);
bool is_python_space(uint32_t code);

enum class Side : uint8_t { left, right, both };
// chars: a set of characters, or nothing for white space.
MarkedText strip(const MarkedText& text, Side side, const std::optional<std::string>& chars = std::nullopt);

MarkedText upper(const MarkedText& text);
MarkedText lower(const MarkedText& text);
MarkedText capitalize(const MarkedText& text);
MarkedText title(const MarkedText& text);  // str.title
MarkedText swapcase(const MarkedText& text);

// count < 0: all.
MarkedText replace(const MarkedText& text, std::string_view old, const MarkedText& with, int64_t count);
std::vector<MarkedText> split(const MarkedText& text, std::string_view separator, int64_t most);
std::vector<MarkedText> rsplit(const MarkedText& text, std::string_view separator, int64_t most);
std::vector<MarkedText> split_space(const MarkedText& text, int64_t most, bool from_right);
std::vector<MarkedText> splitlines(const MarkedText& text, bool keep_ends);

// Python's text[start:stop:step]; nothing: left out. step is not 0.
struct Slice {
  std::optional<int64_t> start, stop;
  int64_t step = 1;
};
// The indices that a slice of `length` items takes, in order.
std::vector<int64_t> slice_indices(const Slice& slice, int64_t length);
MarkedText slice_text(const MarkedText& text, const Slice& slice);
// The byte at which character `index` begins; the size of the text past its end.
size_t byte_of_character(std::string_view text, int64_t index);

// str.isalpha, isdigit, isalnum, isspace, islower, isupper, isnumeric, isdecimal, istitle, isascii, isidentifier. Nothing for another name.
std::optional<bool> text_is(std::string_view name, std::string_view text);

}  // namespace sluice::jinja
