// The texts that SentencePiece's models see: its normalizer.cc, and Hugging Face tokenizers' reading of the same table
// (normalizers/precompiled.rs), which differs: it takes the shortest key, and replaces whole grapheme clusters by it.
#include <utf8proc.h>

#include "text/normalizer.h"
#include "text/utf8.h"

namespace sluice {
namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // ▁, U+2581

bool is_ascii(char c) { return static_cast<uint8_t>(c) < 0x80; }

// End of the grapheme cluster that starts at `at`.
size_t cluster_end(std::string_view text, size_t at) {
  utf8proc_int32_t state = 0;
  auto code = static_cast<utf8proc_int32_t>(utf8_decode(text, at));
  at += utf8_length(text, at);
  while (at < text.size()) {
    if (is_ascii(text[at]) && text[at] != '\n') break;
    const auto next = static_cast<utf8proc_int32_t>(utf8_decode(text, at));
    if (utf8proc_grapheme_break_stateful(code, next, &state) != 0) break;
    code = next;
    at += utf8_length(text, at);
  }
  return at;
}

// One text on its way through SentencePiece's rules.
class Preparation {
 public:
  Preparation(const AlignedText& before, const SentencePieceRules& rules)
      : text_(before.text()), rules_(rules), editor_(before) {
    opens_ = before.source(0, text_.size()).begin == 0;
  }

  AlignedText run() {
    if (rules_.remove_extra_spaces) skip_leading_spaces();
    if (at_ == text_.size()) return editor_.finish();
    const bool wants_space = rules_.dummy_prefix == SentencePieceRules::Prefix::each ||
                             (rules_.dummy_prefix == SentencePieceRules::Prefix::first && opens_);
    if (wants_space) put_space(at_, at_);
    bool after_space = rules_.remove_extra_spaces;
    kept_ = at_;
    while (at_ < text_.size()) {
      auto [length, by] = next();
      while (after_space && by.starts_with(' ')) by.remove_prefix(1);
      put(by, length);
      if (!by.empty()) after_space = rules_.remove_extra_spaces && by.ends_with(' ');
      at_ += length;
    }
    keep_until(at_);
    AlignedText after = editor_.finish();
    if (rules_.remove_extra_spaces) drop_trailing_spaces(after);
    return after;
  }

 private:
  std::string_view space() const { return rules_.escape_spaces ? space_mark : " "; }
  void put_space(size_t begin, size_t end) { editor_.put(space(), begin, end); }

  // What stands at at_: how many bytes, and what they become.
  Charsmap::Match next() const {
    const std::string_view rest = text_.substr(at_);
    if (const size_t length = rules_.user_defined.length_at(text_, at_)) return {length, rest.substr(0, length)};
    if (rules_.charsmap) {
      if (const auto match = rules_.charsmap->longest(rest)) return *match;
    }
    const size_t length = utf8_length(text_, at_);
    return {length, rest.substr(0, length)};
  }

  void keep_until(size_t end) {
    editor_.keep(kept_, end);
    kept_ = end;
  }

  void put(std::string_view by, size_t length) {
    if (by.data() == text_.data() + at_ && by.size() == length && by.find(' ') == std::string_view::npos) return;
    keep_until(at_);
    kept_ = at_ + length;
    if (by.empty()) return editor_.stretch(at_ + length);  // as in SentencePiece, where a piece ends as the next begins
    for (size_t done = 0; done < by.size();) {
      const size_t end = std::min(by.find(' ', done), by.size());
      if (end > done) editor_.put(by.substr(done, end - done), at_, at_ + length);
      if (end < by.size()) put_space(at_, at_ + length);
      done = end + 1;
    }
  }

  void skip_leading_spaces() {
    while (at_ < text_.size()) {
      const auto [length, by] = next();
      if (by != " ") return;
      at_ += length;
    }
  }

  void drop_trailing_spaces(AlignedText& after) const {
    size_t end = after.text().size();
    while (after.text().substr(0, end).ends_with(space())) end -= space().size();
    if (end < after.text().size()) after = after.slice({0, static_cast<int64_t>(end)});
  }

  std::string_view text_;
  const SentencePieceRules& rules_;
  TextEditor editor_;
  size_t at_ = 0, kept_ = 0;  // what lies between stays as it is, and is yet to be written
  bool opens_ = false;
};

}  // namespace

AlignedText apply_sentencepiece(const AlignedText& text, const SentencePieceRules& rules) {
  return Preparation(text, rules).run();
}

AlignedText apply_charsmap(const AlignedText& before, const Charsmap& charsmap) {
  const std::string_view text = before.text();
  TextEditor editor(before);
  const auto put = [&](size_t begin, size_t end) {
    const auto match = charsmap.shortest(text.substr(begin, end - begin));
    if (match) editor.put(match->by, begin, end);
    return match.has_value();
  };
  for (size_t at = 0; at < text.size();) {
    const bool alone = is_ascii(text[at]) && text[at] != '\r' && (at + 1 == text.size() || is_ascii(text[at + 1]));
    const size_t end = alone ? at + 1 : cluster_end(text, at);
    if (end - at < 6 && put(at, end)) {
      at = end;
      continue;
    }
    while (at < end) {
      const size_t next = at + utf8_length(text, at);
      if (!put(at, next)) editor.keep(at, next);
      at = next;
    }
  }
  return editor.finish();
}

}  // namespace sluice
