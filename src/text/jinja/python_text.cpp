#include "text/jinja/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "text/jinja/value.h"

namespace sluice::jinja {
namespace {

uint32_t code_at(std::string_view text, size_t at) {
  return utf8_length(text, at) == 0 ? 0xFFFD : utf8_decode(text, at);
}

// The beginning of the character before byte `end`.
size_t previous(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return utf8_length(text, at) == end - at ? at : end - 1;
}

bool is_printable(uint32_t code) {
  if (code == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

bool is_line_end(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

}  // namespace

int64_t character_count(std::string_view text) {
  int64_t count = 0;
  for_each_character(text, [&](size_t, size_t) { ++count; });
  return count;
}

bool is_python_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

MarkedText strip(const MarkedText& marked, Side side, const std::optional<std::string>& chars) {
  const std::string_view text = marked.text();
  std::vector<uint32_t> set;
  if (chars) for_each_character(*chars, [&](size_t begin, size_t) { set.push_back(code_at(*chars, begin)); });
  const auto goes = [&](uint32_t code) {
    return chars ? std::find(set.begin(), set.end(), code) != set.end() : is_python_space(code);
  };
  size_t begin = 0, end = text.size();
  while (side != Side::right && begin < end && goes(code_at(text, begin)))
    begin += std::max<size_t>(1, utf8_length(text, begin));
  while (side != Side::left && end > begin) {
    const size_t at = previous(text, end);
    if (!goes(code_at(text, at))) break;
    end = at;
  }
  return marked.slice(begin, end);
}

MarkedText replace(const MarkedText& text, std::string_view old, const MarkedText& with, int64_t count) {
  const std::string_view view = text.text();
  MarkedText out;
  if (old.empty()) {  // between all characters
    for_each_character(view, [&](size_t begin, size_t end) {
      if (count != 0) out.append(with), --count;
      out.append(text, begin, end);
    });
    if (count != 0) out.append(with);
    return out;
  }
  size_t at = 0;
  for (size_t found = view.find(old); found != std::string_view::npos && count != 0; --count) {
    out.append(text, at, found);
    out.append(with);
    at = found + old.size();
    found = view.find(old, at);
  }
  out.append(text, at, view.size());
  return out;
}

std::vector<MarkedText> split(const MarkedText& text, std::string_view separator, int64_t most) {
  if (separator.empty()) raise("ValueError", "empty separator");
  const std::string_view view = text.text();
  std::vector<MarkedText> parts;
  size_t at = 0;
  for (size_t found = view.find(separator); found != std::string_view::npos && most != 0; --most) {
    parts.push_back(text.slice(at, found));
    at = found + separator.size();
    found = view.find(separator, at);
  }
  parts.push_back(text.slice(at, view.size()));
  return parts;
}

std::vector<MarkedText> rsplit(const MarkedText& text, std::string_view separator, int64_t most) {
  if (separator.empty()) raise("ValueError", "empty separator");
  const std::string_view view = text.text();
  std::vector<MarkedText> parts;
  size_t end = view.size();
  for (; most != 0 && end >= separator.size(); --most) {
    const size_t found = view.rfind(separator, end - separator.size());
    if (found == std::string_view::npos) break;
    parts.push_back(text.slice(found + separator.size(), end));
    end = found;
  }
  parts.push_back(text.slice(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<MarkedText> split_space(const MarkedText& text, int64_t most, bool from_right) {
  const std::string_view view = text.text();
  std::vector<std::pair<size_t, size_t>> words;  // runs without white space
  bool inside = false;
  for_each_character(view, [&](size_t begin, size_t end) {
    const bool space = is_python_space(code_at(view, begin));
    if (!space && !inside) words.emplace_back(begin, end);
    if (!space) words.back().second = end;
    inside = !space;
  });
  const auto limit = static_cast<size_t>(most);
  if (most >= 0 && words.size() > limit) {  // the rest stays whole, without the white space at its outer end
    if (from_right) {
      const size_t rest = words.size() - limit;
      words.erase(words.begin() + 1, words.begin() + static_cast<int64_t>(rest));
      words[0] = {0, strip(text.slice(0, limit > 0 ? words[1].first : view.size()), Side::right).size()};
    } else {
      words.resize(limit + 1);
      words[limit].second = view.size();
    }
  }
  std::vector<MarkedText> parts;
  for (const auto& [begin, end] : words) parts.push_back(text.slice(begin, end));
  return parts;
}

std::vector<MarkedText> splitlines(const MarkedText& text, bool keep_ends) {
  const std::string_view view = text.text();
  std::vector<MarkedText> lines;
  size_t begin = 0;
  for (size_t at = 0; at < view.size();) {
    const size_t length = std::max<size_t>(1, utf8_length(view, at));
    if (!is_line_end(code_at(view, at))) {
      at += length;
      continue;
    }
    const size_t next = at + (view.substr(at).starts_with("\r\n") ? 2 : length);
    lines.push_back(text.slice(begin, keep_ends ? next : at));
    begin = at = next;
  }
  if (begin < view.size()) lines.push_back(text.slice(begin, view.size()));
  return lines;
}

std::vector<int64_t> slice_indices(const Slice& slice, int64_t length) {
  const int64_t step = slice.step;
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  const auto clamp = [&](std::optional<int64_t> at, int64_t otherwise) {
    if (!at) return otherwise;
    return std::clamp(*at < 0 ? *at + length : *at, low, high);
  };
  const int64_t start = clamp(slice.start, step > 0 ? low : high), stop = clamp(slice.stop, step > 0 ? high : low);
  std::vector<int64_t> indices;
  if (step > 0) {
    for (int64_t i = start; i<stop; i = i> stop - step ? stop : i + step) indices.push_back(i);
  } else {
    for (int64_t i = start; i > stop; i = i < stop - step ? stop : i + step) indices.push_back(i);
  }
  return indices;
}

size_t byte_of_character(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += std::max<size_t>(1, utf8_length(text, at));
  return at;
}

MarkedText slice_text(const MarkedText& text, const Slice& slice) {
  const std::string_view view = text.text();
  std::vector<size_t> starts;
  starts.reserve(view.size() + 1);
  for_each_character(view, [&](size_t begin, size_t) { starts.push_back(begin); });
  starts.push_back(view.size());
  const std::vector<int64_t> indices = slice_indices(slice, static_cast<int64_t>(starts.size()) - 1);
  if (slice.step == 1) {
    if (indices.empty()) return {};
    return text.slice(starts[static_cast<size_t>(indices.front())], starts[static_cast<size_t>(indices.back()) + 1]);
  }
  MarkedText out;
  for (int64_t i : indices) out.append(text, starts[static_cast<size_t>(i)], starts[static_cast<size_t>(i) + 1]);
  return out;
}

MarkedText repr_text(const MarkedText& text) {
  const std::string& view = text.text();
  const char quote = view.find('\'') != std::string::npos && view.find('"') == std::string::npos ? '"' : '\'';
  MarkedText out(std::string(1, quote));
  for_each_character(view, [&](size_t begin, size_t end) {
    const uint32_t code = code_at(view, begin);
    const Origin origin = text.stretches().empty() ? Origin{} : text.origin_at(begin);
    if (code == static_cast<uint32_t>(quote) || code == '\\') {
      out.append(std::string{'\\', static_cast<char>(code)}, origin);
    } else if (code == '\n' || code == '\r' || code == '\t') {
      out.append(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t", origin);
    } else if (is_printable(code)) {
      out.append(text, begin, end);
    } else {
      out.append(code < 0x100     ? fmt::format("\\x{:02x}", code)
                 : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                  : fmt::format("\\U{:08x}", code),
                 origin);
    }
  });
  out.append(std::string(1, quote));
  return out;
}

}  // namespace sluice::jinja
