// Normalizer steps that look at one character at a time. What they do is Hugging Face tokenizers' (normalizers/bert.rs, strip.rs,
// utils.rs, unicode.rs, byte_level.rs).
#include <utf8proc.h>

#include <optional>

#include "text/byte_level.h"
#include "text/normalizer.h"
#include "text/old_unicode.h"
#include "text/utf8.h"

namespace sluice {
namespace {

using Kind = NormalizerStep::Kind;

// `change(code, out)` says whether it changes a character, and then appends what stands in its place to `out`.
template <class Change>
AlignedText map_characters(AlignedText before, const Change& change) {
  const std::string_view text = before.text();
  std::optional<TextEditor> editor;
  std::string instead;
  size_t kept = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    instead.clear();
    if (change(utf8_decode(text, at), instead)) {
      if (!editor) editor.emplace(before);
      editor->keep(kept, at);
      editor->put(instead, at, at + length);
      kept = at + length;
    }
    at += length;
  }
  if (!editor) return before;
  editor->keep(kept, text.size());
  return editor->finish();
}

bool to_lower(uint32_t code, std::string& out) {
  if (code == 0x130) return out += "i\u0307", true;  // the one character whose lower case is two, whatever the language
  const auto lower = static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
  if (lower == code) return false;
  append_utf8(out, lower);
  return true;
}

bool is_mark(uint32_t code) {
  if (code < 0x300 || unknown_to_unicode_9(code)) return false;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME ||
         code == 0x1CF2 || code == 0x1CF3;  // letters since version 12
}

bool is_nonspacing_mark(uint32_t code) {
  if (code < 0x300 || unnamed_in_unicode_8(code)) return false;
  return utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_MN ||
         code == 0x1734;  // takes room since version 14
}

bool clean(uint32_t code, std::string& out) {
  if (code >= 0x20 && code < 0x7F) return false;
  if (is_white_space(code) && code != 0x0B && code != 0x0C && code != 0x85) return out += ' ', true;
  if (code > 0x7F && (unknown_to_unicode_9(code) || code == 0x8E2)) return false;  // known to version 8 only
  if (code == 0 || code == 0xFFFD) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO: return true;
    default: return false;
  }
}

bool is_han(uint32_t code) {
  return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B73F) ||
         (code >= 0x2B740 && code <= 0x2B81F) || (code >= 0x2B920 && code <= 0x2CEAF) ||
         (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

bool space_han(uint32_t code, std::string& out) {
  if (!is_han(code)) return false;
  out += ' ';
  append_utf8(out, code);
  out += ' ';
  return true;
}

bool nmt(uint32_t code, std::string& out) {
  if ((code >= 0x01 && code <= 0x08) || code == 0x0B || (code >= 0x0E && code <= 0x1F) || code == 0x7F ||
      code == 0x8F || code == 0x9F)
    return true;
  const bool space = code == 0x09 || code == 0x0A || code == 0x0C || code == 0x0D || code == 0x1680 ||
                     (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
                     code == 0xFEFF || code == 0xFFFD;
  if (space) out += ' ';
  return space;
}

AlignedText to_byte_level(const AlignedText& before) {
  const std::string_view text = before.text();
  TextEditor editor(before);
  for (size_t at = 0; at < text.size(); ++at) editor.put(byte_level_encode(text.substr(at, 1)), at, at + 1);
  return editor.finish();
}

}  // namespace

AlignedText change_characters(AlignedText text, Kind kind) {
  const auto mapped = [&](const auto& change) { return map_characters(std::move(text), change); };
  switch (kind) {
    case Kind::lowercase: return mapped(to_lower);
    case Kind::strip_accents: return mapped([](uint32_t code, std::string&) { return is_mark(code); });
    case Kind::strip_nonspacing: return mapped([](uint32_t code, std::string&) { return is_nonspacing_mark(code); });
    case Kind::clean: return mapped(clean);
    case Kind::space_han: return mapped(space_han);
    case Kind::nmt: return mapped(nmt);
    default: return to_byte_level(text);
  }
}

}  // namespace sluice
