#include "text/normalizer.h"

#include "core/error.h"
#include "text/utf8.h"

namespace sluice {
namespace {

using Kind = NormalizerStep::Kind;

void check_growth(size_t size, size_t limit) {
  check(size <= limit, ErrorCode::bad_file,
        "the tokenizer's normalizer makes a text more than 64 times longer; the tokenizer's file is damaged");
}

AlignedText replace_all(const AlignedText& before, const Regex& pattern, std::string_view by, size_t limit,
                        RegexScratch& scratch) {
  const std::string_view text = before.text();
  TextEditor editor(before);
  size_t done = 0, from = 0;
  while (from <= text.size()) {
    const auto match = pattern.find(text, from, scratch);
    if (!match) break;
    const auto begin = static_cast<size_t>(match->begin), end = static_cast<size_t>(match->end);
    editor.keep(done, begin);
    editor.put(by, begin, end);
    check_growth(editor.size(), limit);
    done = end;
    from = end;
    if (begin == end) from = end < text.size() ? end + utf8_length(text, end) : end + 1;
  }
  editor.keep(done, text.size());
  return editor.finish();
}

AlignedText prepend(const AlignedText& before, std::string_view prefix) {
  TextEditor editor(before);
  editor.put(prefix, 0, 0);
  editor.keep(0, before.text().size());
  return editor.finish();
}

AlignedText strip(AlignedText text, const NormalizerStep& step) {
  const std::string_view all = text.text();
  size_t begin = 0, end = all.size();
  while (step.left && begin < end && is_white_space(utf8_decode(all, begin))) begin += utf8_length(all, begin);
  while (step.right && end > begin) {
    const size_t last = utf8_previous(all, end);
    if (!is_white_space(utf8_decode(all, last))) break;
    end = last;
  }
  if (begin == 0 && end == all.size()) return text;
  return text.slice({static_cast<int64_t>(begin), static_cast<int64_t>(end)});
}

AlignedText apply(const NormalizerStep& step, AlignedText text, size_t limit, RegexScratch& scratch) {
  switch (step.kind) {
    case Kind::replace:
      return step.pattern->find(text.text(), 0, scratch) ? replace_all(text, *step.pattern, step.text, limit, scratch)
                                                         : text;
    case Kind::prepend: return prepend(text, step.text);
    case Kind::strip: return strip(std::move(text), step);
    case Kind::nfc:
    case Kind::nfd:
    case Kind::nfkc:
    case Kind::nfkd: return to_unicode_form(text, step);
    case Kind::precompiled: return apply_charsmap(text, *step.rules->charsmap);
    case Kind::sentencepiece: return apply_sentencepiece(text, *step.rules);
    default: return change_characters(std::move(text), step.kind);
  }
}

}  // namespace

AlignedText normalize(const Normalizer& normalizer, AlignedText text, RegexScratch& scratch) {
  const size_t limit = 64 * text.text().size() + 4096;  // steps of a hostile file can multiply without end
  for (const NormalizerStep& step : normalizer) {
    if (text.text().empty()) break;
    text = apply(step, std::move(text), limit, scratch);
    check_growth(text.text().size(), limit);
  }
  return text;
}

std::string normalize(const Normalizer& normalizer, std::string_view text) {
  RegexScratch scratch;
  return std::string(normalize(normalizer, AlignedText(text, 0), scratch).text());
}

}  // namespace sluice
