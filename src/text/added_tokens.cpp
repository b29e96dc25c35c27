#include "text/added_tokens.h"

#include <algorithm>

#include "text/regex.h"
#include "text/utf8.h"

namespace sluice {
namespace {

bool is_word_at(std::string_view text, size_t at) {
  static const Regex word("[\\w\\x{200C}\\x{200D}]");
  RegexScratch scratch;
  return word.find(text.substr(at, utf8_length(text, at)), 0, scratch).has_value();
}

bool touches_a_word(std::string_view text, ByteRange range) {
  const auto begin = static_cast<size_t>(range.begin), end = static_cast<size_t>(range.end);
  return (begin > 0 && is_word_at(text, utf8_previous(text, begin))) || (end < text.size() && is_word_at(text, end));
}

}  // namespace

bool is_white_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.text.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; });
  for (const AddedToken& token : tokens_) can_start_[static_cast<uint8_t>(token.text[0])] = true;
}

// The sorted tokens that agree with the text up to a depth are a range; the range narrows byte by byte.
const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, size_t at) const {
  const AddedToken* longest = nullptr;
  auto first = tokens_.begin(), last = tokens_.end();
  for (size_t depth = 0; at + depth < text.size() && first != last; ++depth) {
    const uint8_t byte = static_cast<uint8_t>(text[at + depth]);
    const auto byte_of = [depth](const AddedToken& t) {
      return depth < t.text.size() ? static_cast<uint8_t>(t.text[depth]) : -1;
    };
    first = std::partition_point(first, last, [&](const AddedToken& t) { return byte_of(t) < byte; });
    last = std::partition_point(first, last, [&](const AddedToken& t) { return byte_of(t) <= byte; });
    if (first != last && first->text.size() == depth + 1) longest = &*first;
  }
  return longest;
}

std::vector<AddedTokenMatcher::Match> AddedTokenMatcher::split(std::string_view text, bool parse_special) const {
  std::vector<Match> pieces;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = can_start_[static_cast<uint8_t>(text[at])] ? longest_at(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->text.size();
    at = end;
    if (token->special && !parse_special) continue;
    if (token->single_word && touches_a_word(text, {static_cast<int64_t>(begin), static_cast<int64_t>(end)})) continue;
    if (token->lstrip) {
      while (begin > done && is_white_space(utf8_decode(text, utf8_previous(text, begin))))
        begin = utf8_previous(text, begin);
    }
    if (token->rstrip) {
      while (end < text.size() && is_white_space(utf8_decode(text, end))) end += utf8_length(text, end);
      at = end;
    }
    if (done < begin) pieces.push_back({-1, {static_cast<int64_t>(done), static_cast<int64_t>(begin)}});
    pieces.push_back({token->id, {static_cast<int64_t>(begin), static_cast<int64_t>(end)}});
    done = end;
  }
  if (done < text.size()) pieces.push_back({-1, {static_cast<int64_t>(done), static_cast<int64_t>(text.size())}});
  return pieces;
}

}  // namespace sluice
