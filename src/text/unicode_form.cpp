#include <utf8proc.h>

#include <cstdlib>

#include "core/error.h"
#include "text/normalizer.h"
#include "text/old_unicode.h"
#include "text/utf8.h"

namespace sluice {
namespace {

using Kind = NormalizerStep::Kind;

utf8proc_option_t options_of(Kind kind) {
  switch (kind) {
    case Kind::nfc: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case Kind::nfd: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case Kind::nfkc: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    default: return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
  }
}

std::string unicode_form(std::string_view text, utf8proc_option_t options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &out, options);
  check(size >= 0, ErrorCode::out_of_memory,
        "normalizing a text: " + std::string(size < 0 ? utf8proc_errmsg(size) : ""));
  std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(size));
  std::free(out);
  return result;
}

// A character that no form changes or joins with what is before it: ASCII, and with `version_9` what came later.
bool stays(std::string_view text, size_t at, bool version_9) {
  return static_cast<uint8_t>(text[at]) < 0x80 || (version_9 && unknown_to_unicode_9(utf8_decode(text, at)));
}

// End of the first base character at or after `at` and the marks that follow it.
size_t sequence_end(std::string_view text, size_t at, size_t end) {
  at += utf8_length(text, at);
  while (at < end &&
         utf8proc_get_property(static_cast<utf8proc_int32_t>(utf8_decode(text, at)))->combining_class != 0) {
    at += utf8_length(text, at);
  }
  return at;
}

// bytes [begin, end) change under the form: replaces the smallest parts that can be changed by themselves.
void put_changed(TextEditor& editor, std::string_view text, size_t begin, size_t end, utf8proc_option_t options) {
  const auto flush = [&](size_t from, size_t to, const std::string& form) {
    if (form == text.substr(from, to - from)) editor.keep(from, to);
    else editor.put(form, from, to);
  };
  size_t from = begin, to = sequence_end(text, begin, end);
  std::string form = unicode_form(text.substr(from, to - from), options);
  while (to < end) {
    const size_t next = sequence_end(text, to, end);
    std::string next_form = unicode_form(text.substr(to, next - to), options);
    std::string joint = unicode_form(text.substr(from, next - from), options);
    if (joint == form + next_form) {
      flush(from, to, form);
      from = to, form = std::move(next_form);
    } else {
      form = std::move(joint);
    }
    to = next;
  }
  flush(from, to, form);
}

}  // namespace

// A form is taken of runs of the characters that may change, each run with the one character before it.
AlignedText to_unicode_form(const AlignedText& before, const NormalizerStep& step) {
  const utf8proc_option_t options = options_of(step.kind);
  const std::string_view text = before.text();
  TextEditor editor(before);
  for (size_t at = 0; at < text.size();) {
    size_t run = at, last = at;
    for (; run < text.size() && stays(text, run, step.unicode_9); run += utf8_length(text, run)) last = run;
    if (run == text.size()) {
      editor.keep(at, run);
      break;
    }
    const size_t begin = static_cast<uint8_t>(text[last]) < 0x80 ? last : run;  // later characters join with none
    size_t end = run;
    while (end < text.size() && !stays(text, end, step.unicode_9)) end += utf8_length(text, end);
    editor.keep(at, begin);
    const std::string_view part = text.substr(begin, end - begin);
    if (unicode_form(part, options) == part) editor.keep(begin, end);
    else put_changed(editor, text, begin, end, options);
    at = end;
  }
  return editor.finish();
}

}  // namespace sluice
