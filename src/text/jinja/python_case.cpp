// Case as Python's str has it: Unicode's full mappings, a final sigma where one belongs.
#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

// Characters whose upper case is more than one character, with their upper and title case: SpecialCasing.txt of Unicode 15, the
// mappings without conditions.
struct Special {
  uint32_t code, upper[3], title[3];
};
// clang-format off
constexpr Special specials[] = {
    {0xDF, {0x53, 0x53}, {0x53, 0x73}}, {0x149, {0x2BC, 0x4E}, {0x2BC, 0x4E}}, {0x1F0, {0x4A, 0x30C}, {0x4A, 0x30C}},
    {0x390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}}, {0x3B0, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}}, {0x1E96, {0x48, 0x331}, {0x48, 0x331}},
    {0x1E97, {0x54, 0x308}, {0x54, 0x308}}, {0x1E98, {0x57, 0x30A}, {0x57, 0x30A}},
    {0x1E99, {0x59, 0x30A}, {0x59, 0x30A}}, {0x1E9A, {0x41, 0x2BE}, {0x41, 0x2BE}},
    {0x1F50, {0x3A5, 0x313}, {0x3A5, 0x313}}, {0x1F52, {0x3A5, 0x313, 0x300}, {0x3A5, 0x313, 0x300}},
    {0x1F54, {0x3A5, 0x313, 0x301}, {0x3A5, 0x313, 0x301}}, {0x1F56, {0x3A5, 0x313, 0x342}, {0x3A5, 0x313, 0x342}},
    {0x1F80, {0x1F08, 0x399}, {0x1F88}}, {0x1F81, {0x1F09, 0x399}, {0x1F89}}, {0x1F82, {0x1F0A, 0x399}, {0x1F8A}},
    {0x1F83, {0x1F0B, 0x399}, {0x1F8B}}, {0x1F84, {0x1F0C, 0x399}, {0x1F8C}}, {0x1F85, {0x1F0D, 0x399}, {0x1F8D}},
    {0x1F86, {0x1F0E, 0x399}, {0x1F8E}}, {0x1F87, {0x1F0F, 0x399}, {0x1F8F}}, {0x1F88, {0x1F08, 0x399}, {0x1F88}},
    {0x1F89, {0x1F09, 0x399}, {0x1F89}}, {0x1F8A, {0x1F0A, 0x399}, {0x1F8A}}, {0x1F8B, {0x1F0B, 0x399}, {0x1F8B}},
    {0x1F8C, {0x1F0C, 0x399}, {0x1F8C}}, {0x1F8D, {0x1F0D, 0x399}, {0x1F8D}}, {0x1F8E, {0x1F0E, 0x399}, {0x1F8E}},
    {0x1F8F, {0x1F0F, 0x399}, {0x1F8F}}, {0x1F90, {0x1F28, 0x399}, {0x1F98}}, {0x1F91, {0x1F29, 0x399}, {0x1F99}},
    {0x1F92, {0x1F2A, 0x399}, {0x1F9A}}, {0x1F93, {0x1F2B, 0x399}, {0x1F9B}}, {0x1F94, {0x1F2C, 0x399}, {0x1F9C}},
    {0x1F95, {0x1F2D, 0x399}, {0x1F9D}}, {0x1F96, {0x1F2E, 0x399}, {0x1F9E}}, {0x1F97, {0x1F2F, 0x399}, {0x1F9F}},
    {0x1F98, {0x1F28, 0x399}, {0x1F98}}, {0x1F99, {0x1F29, 0x399}, {0x1F99}}, {0x1F9A, {0x1F2A, 0x399}, {0x1F9A}},
    {0x1F9B, {0x1F2B, 0x399}, {0x1F9B}}, {0x1F9C, {0x1F2C, 0x399}, {0x1F9C}}, {0x1F9D, {0x1F2D, 0x399}, {0x1F9D}},
    {0x1F9E, {0x1F2E, 0x399}, {0x1F9E}}, {0x1F9F, {0x1F2F, 0x399}, {0x1F9F}}, {0x1FA0, {0x1F68, 0x399}, {0x1FA8}},
    {0x1FA1, {0x1F69, 0x399}, {0x1FA9}}, {0x1FA2, {0x1F6A, 0x399}, {0x1FAA}}, {0x1FA3, {0x1F6B, 0x399}, {0x1FAB}},
    {0x1FA4, {0x1F6C, 0x399}, {0x1FAC}}, {0x1FA5, {0x1F6D, 0x399}, {0x1FAD}}, {0x1FA6, {0x1F6E, 0x399}, {0x1FAE}},
    {0x1FA7, {0x1F6F, 0x399}, {0x1FAF}}, {0x1FA8, {0x1F68, 0x399}, {0x1FA8}}, {0x1FA9, {0x1F69, 0x399}, {0x1FA9}},
    {0x1FAA, {0x1F6A, 0x399}, {0x1FAA}}, {0x1FAB, {0x1F6B, 0x399}, {0x1FAB}}, {0x1FAC, {0x1F6C, 0x399}, {0x1FAC}},
    {0x1FAD, {0x1F6D, 0x399}, {0x1FAD}}, {0x1FAE, {0x1F6E, 0x399}, {0x1FAE}}, {0x1FAF, {0x1F6F, 0x399}, {0x1FAF}},
    {0x1FB2, {0x1FBA, 0x399}, {0x1FBA, 0x345}}, {0x1FB3, {0x391, 0x399}, {0x1FBC}},
    {0x1FB4, {0x386, 0x399}, {0x386, 0x345}}, {0x1FB6, {0x391, 0x342}, {0x391, 0x342}},
    {0x1FB7, {0x391, 0x342, 0x399}, {0x391, 0x342, 0x345}}, {0x1FBC, {0x391, 0x399}, {0x1FBC}},
    {0x1FC2, {0x1FCA, 0x399}, {0x1FCA, 0x345}}, {0x1FC3, {0x397, 0x399}, {0x1FCC}},
    {0x1FC4, {0x389, 0x399}, {0x389, 0x345}}, {0x1FC6, {0x397, 0x342}, {0x397, 0x342}},
    {0x1FC7, {0x397, 0x342, 0x399}, {0x397, 0x342, 0x345}}, {0x1FCC, {0x397, 0x399}, {0x1FCC}},
    {0x1FD2, {0x399, 0x308, 0x300}, {0x399, 0x308, 0x300}}, {0x1FD3, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x1FD6, {0x399, 0x342}, {0x399, 0x342}}, {0x1FD7, {0x399, 0x308, 0x342}, {0x399, 0x308, 0x342}},
    {0x1FE2, {0x3A5, 0x308, 0x300}, {0x3A5, 0x308, 0x300}}, {0x1FE3, {0x3A5, 0x308, 0x301}, {0x3A5, 0x308, 0x301}},
    {0x1FE4, {0x3A1, 0x313}, {0x3A1, 0x313}}, {0x1FE6, {0x3A5, 0x342}, {0x3A5, 0x342}},
    {0x1FE7, {0x3A5, 0x308, 0x342}, {0x3A5, 0x308, 0x342}}, {0x1FF2, {0x1FFA, 0x399}, {0x1FFA, 0x345}},
    {0x1FF3, {0x3A9, 0x399}, {0x1FFC}}, {0x1FF4, {0x38F, 0x399}, {0x38F, 0x345}},
    {0x1FF6, {0x3A9, 0x342}, {0x3A9, 0x342}}, {0x1FF7, {0x3A9, 0x342, 0x399}, {0x3A9, 0x342, 0x345}},
    {0x1FFC, {0x3A9, 0x399}, {0x1FFC}}, {0xFB00, {0x46, 0x46}, {0x46, 0x66}}, {0xFB01, {0x46, 0x49}, {0x46, 0x69}},
    {0xFB02, {0x46, 0x4C}, {0x46, 0x6C}}, {0xFB03, {0x46, 0x46, 0x49}, {0x46, 0x66, 0x69}},
    {0xFB04, {0x46, 0x46, 0x4C}, {0x46, 0x66, 0x6C}}, {0xFB05, {0x53, 0x54}, {0x53, 0x74}},
    {0xFB06, {0x53, 0x54}, {0x53, 0x74}}, {0xFB13, {0x544, 0x546}, {0x544, 0x576}},
    {0xFB14, {0x544, 0x535}, {0x544, 0x565}}, {0xFB15, {0x544, 0x53B}, {0x544, 0x56B}},
    {0xFB16, {0x54E, 0x546}, {0x54E, 0x576}}, {0xFB17, {0x544, 0x53D}, {0x544, 0x56D}}};
// clang-format on

const Special* special(uint32_t code) {
  const auto* found = std::lower_bound(std::begin(specials), std::end(specials), code,
                                       [](const Special& entry, uint32_t c) { return entry.code < c; });
  return found != std::end(specials) && found->code == code ? found : nullptr;
}

void put(std::string& out, const uint32_t (&codes)[3]) {
  for (uint32_t code : codes) {
    if (code != 0) append_utf8(out, code);
  }
}

using Map = utf8proc_int32_t (*)(utf8proc_int32_t);
uint32_t map(Map how, uint32_t code) { return static_cast<uint32_t>(how(static_cast<utf8proc_int32_t>(code))); }

utf8proc_category_t category(uint32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }
bool is_lower(uint32_t code) {
  if (category(code) == UTF8PROC_CATEGORY_LL) return true;
  return (category(code) == UTF8PROC_CATEGORY_LM || category(code) == UTF8PROC_CATEGORY_LO ||
          category(code) == UTF8PROC_CATEGORY_NL || category(code) == UTF8PROC_CATEGORY_SO) &&
         (map(utf8proc_toupper, code) != code || code == 0xAA || code == 0xBA);
}
bool is_upper(uint32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU ||
         ((category(code) == UTF8PROC_CATEGORY_NL || category(code) == UTF8PROC_CATEGORY_SO) &&
          map(utf8proc_tolower, code) != code);
}
bool is_cased(uint32_t code) { return is_lower(code) || is_upper(code) || category(code) == UTF8PROC_CATEGORY_LT; }
bool is_case_ignorable(uint32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default:
      return code == '\'' || code == '.' || code == ':' || code == 0xB7 || code == 0x387 || code == 0x55F ||
             code == 0x5F4 || code == 0x2018 || code == 0x2019 || code == 0x2024 || code == 0x2027;
  }
}

std::vector<uint32_t> codes_of(std::string_view text) {
  std::vector<uint32_t> codes;
  codes.reserve(text.size());
  for_each_character(text, [&](size_t begin, size_t) {
    codes.push_back(utf8_length(text, begin) == 0 ? 0xFFFD : utf8_decode(text, begin));
  });
  return codes;
}

// Sigma at the end of a word: a cased letter before it and none after, what is case-ignorable between them.
bool is_final_sigma(const std::vector<uint32_t>& codes, size_t at) {
  size_t before = at;
  while (before > 0 && is_case_ignorable(codes[before - 1])) --before;
  if (before == 0 || !is_cased(codes[before - 1])) return false;
  size_t after = at + 1;
  while (after < codes.size() && is_case_ignorable(codes[after])) ++after;
  return after == codes.size() || !is_cased(codes[after]);
}

void put_upper(std::string& out, uint32_t code) {
  if (const Special* entry = special(code)) put(out, entry->upper);
  else append_utf8(out, map(utf8proc_toupper, code));
}
void put_title(std::string& out, uint32_t code) {
  if (const Special* entry = special(code)) put(out, entry->title);
  else append_utf8(out, map(utf8proc_totitle, code));
}
void put_lower(std::string& out, const std::vector<uint32_t>& codes, size_t at) {
  const uint32_t code = codes[at];
  if (code == 0x3A3) append_utf8(out, is_final_sigma(codes, at) ? 0x3C2 : 0x3C3);
  else if (code == 0x130) append_utf8(out, 'i'), append_utf8(out, 0x307);
  else append_utf8(out, map(utf8proc_tolower, code));
}

// Each character becomes what put(out, codes, at) writes, with its own origin.
template <class Put>
MarkedText mapped(const MarkedText& text, const Put& put) {
  const std::vector<uint32_t> codes = codes_of(text.text());
  MarkedText out;
  out.reserve(text.size());
  std::string piece;
  size_t at = 0;
  for_each_character(text.text(), [&](size_t begin, size_t) {
    piece.clear();
    put(piece, codes, at++);
    out.append(piece, text.stretches().empty() ? Origin{} : text.origin_at(begin));
  });
  return out;
}

// True where every character passes, and there is one.
template <class Test>
bool all(const std::vector<uint32_t>& codes, const Test& test) {
  return !codes.empty() && std::all_of(codes.begin(), codes.end(), test);
}

bool is_alpha(uint32_t code) {
  switch (category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return true;
    default: return false;
  }
}
bool is_decimal(uint32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
bool is_digit(uint32_t code) {
  return is_decimal(code) || code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 ||
         (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089) ||
         (code >= 0x2460 && code <= 0x2468) || (code >= 0x2776 && code <= 0x277E);
}
bool is_numeric(uint32_t code) {
  return is_digit(code) || category(code) == UTF8PROC_CATEGORY_NL || category(code) == UTF8PROC_CATEGORY_NO;
}

// Some cased character, and each of them follows the rule.
template <class Bad>
bool cased(const std::vector<uint32_t>& codes, const Bad& bad) {
  return std::any_of(codes.begin(), codes.end(), is_cased) && std::none_of(codes.begin(), codes.end(), bad);
}

bool is_title(const std::vector<uint32_t>& codes) {
  bool any = false, inside = false;
  for (uint32_t code : codes) {
    const bool starts = is_upper(code) || category(code) == UTF8PROC_CATEGORY_LT;
    if (starts ? inside : (is_lower(code) && !inside)) return false;
    inside = is_cased(code);
    any = any || inside;
  }
  return any;
}

}  // namespace

MarkedText upper(const MarkedText& text) {
  return mapped(text, [](std::string& out, const auto& codes, size_t at) { put_upper(out, codes[at]); });
}
MarkedText lower(const MarkedText& text) { return mapped(text, put_lower); }
MarkedText capitalize(const MarkedText& text) {
  return mapped(text, [](std::string& out, const auto& codes, size_t at) {
    if (at == 0) put_title(out, codes[at]);
    else put_lower(out, codes, at);
  });
}
MarkedText title(const MarkedText& text) {
  return mapped(text, [](std::string& out, const auto& codes, size_t at) {
    if (at > 0 && is_cased(codes[at - 1])) put_lower(out, codes, at);
    else put_title(out, codes[at]);
  });
}
MarkedText swapcase(const MarkedText& text) {
  return mapped(text, [](std::string& out, const auto& codes, size_t at) {
    if (is_upper(codes[at])) put_lower(out, codes, at);
    else if (is_lower(codes[at])) put_upper(out, codes[at]);
    else append_utf8(out, codes[at]);
  });
}

std::optional<bool> text_is(std::string_view name, std::string_view text) {
  if (!name.starts_with("is")) return std::nullopt;
  const std::vector<uint32_t> codes = codes_of(text);
  name.remove_prefix(2);
  if (name == "alpha") return all(codes, is_alpha);
  if (name == "digit") return all(codes, is_digit);
  if (name == "decimal") return all(codes, is_decimal);
  if (name == "numeric") return all(codes, is_numeric);
  if (name == "alnum") return all(codes, [](uint32_t c) { return is_alpha(c) || is_numeric(c); });
  if (name == "space") return all(codes, is_python_space);
  if (name == "ascii") return std::all_of(codes.begin(), codes.end(), [](uint32_t c) { return c < 0x80; });
  if (name == "lower") return cased(codes, [](uint32_t c) { return is_cased(c) && !is_lower(c); });
  if (name == "upper") return cased(codes, [](uint32_t c) { return is_cased(c) && !is_upper(c); });
  if (name == "title") return is_title(codes);
  if (name == "identifier") {
    return all(codes, [](uint32_t c) { return is_alpha(c) || is_decimal(c) || c == '_'; }) && !is_decimal(codes[0]);
  }
  return std::nullopt;
}

}  // namespace sluice::jinja
