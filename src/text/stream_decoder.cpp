#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes at `at` that are the start of a character and could still become one; 0 when they cannot.
size_t unfinished_length(std::string_view text, size_t at) {
  const size_t left = text.size() - at;
  for (std::string_view rest : {"\x80", "\x80\x80", "\x80\x80\x80", "\xA0\x80", "\x90\x80\x80"}) {
    std::string whole(text.substr(at));
    if (left < 4 && utf8_length(whole += rest, 0) == whole.size()) return left;
  }
  return 0;
}

// Moves whole characters from the front of `pending` to the result; keeps what may yet become one, unless `last`.
std::string take_characters(std::string& pending, bool last) {
  std::string out;
  size_t at = 0;
  while (at < pending.size()) {
    const size_t valid = utf8_valid_end(pending, at);
    out.append(pending, at, valid - at);
    at = valid;
    if (at == pending.size()) break;
    const size_t unfinished = unfinished_length(pending, at);
    if (unfinished > 0 && !last) break;
    out += replacement;
    size_t bad = 1;  // a maximal part: the longest start of some character
    while (at + bad < pending.size() && unfinished_length(std::string_view(pending).substr(at, bad + 1), 0) > 0) ++bad;
    at += bad;
  }
  pending.erase(0, at);
  return out;
}

}  // namespace

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special, bool at_start)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special), at_start_(at_start), is_first_(at_start) {}

std::string StreamDecoder::push(int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  if (id < 0 || id >= tokenizer_.vocab_size()) return {};
  std::string_view bytes = tokenizer_.parts_->bytes(id, is_first_);
  is_first_ = false;
  if (at_start_ && !bytes.empty()) {
    bytes.remove_prefix(tokenizer_.parts_->leading_spaces(bytes));
    at_start_ = false;
  }
  pending_ += bytes;
  return take_characters(pending_, false);
}

std::string StreamDecoder::finish() { return take_characters(pending_, true); }

std::string to_valid_utf8(std::string_view bytes) {
  std::string pending(bytes);
  return take_characters(pending, true);
}

}  // namespace sluice
