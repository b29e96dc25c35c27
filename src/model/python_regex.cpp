#include "model/python_regex.h"

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/error.h"

namespace sluice {

namespace {

// Python's {,n} is {0,n}, which PCRE2 before 10.43 takes as text.
std::string with_lower_bounds(const std::string& pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    out += pattern[i];
    if (pattern[i] == '\\' && i + 1 < pattern.size()) out += pattern[++i];
    else if (pattern.compare(i, 2, "{,") == 0) {
      const size_t end = pattern.find_first_not_of("0123456789", i + 2);
      if (end != std::string::npos && end > i + 2 && pattern[end] == '}') out += '0';
    }
  }
  return out;
}

PCRE2_SPTR units(const std::string& text) { return reinterpret_cast<PCRE2_SPTR>(text.c_str()); }

// Enough for any name of a module; a pattern that needs more would run for hours.
constexpr uint32_t match_limit = 1000000;

}  // namespace

struct PythonRegex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = pcre2_match_context_create(nullptr);
  std::string pattern, where;

  Code(const std::string& pattern, const std::string& where) : pattern(pattern), where(where) {
    pcre2_set_match_limit(limits, match_limit);
    int error = 0;
    PCRE2_SIZE offset = 0;
    const std::string text = with_lower_bounds(pattern);
    code = pcre2_compile(units(text), text.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    if (code != nullptr) return;
    pcre2_match_context_free(limits);
    PCRE2_UCHAR message[128];
    pcre2_get_error_message(error, message, sizeof message);
    throw Error(ErrorCode::bad_config, fmt::format("{}: '{}' is not a regular expression: {}", where,
                                                   pattern.substr(0, 200), reinterpret_cast<const char*>(message)));
  }
  ~Code() {
    pcre2_code_free(code);
    pcre2_match_context_free(limits);
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  bool run(const std::string& text, uint32_t options, pcre2_match_data* data) const {
    const int rc = pcre2_match(code, units(text), text.size(), 0, options, data, limits);
    check(rc >= 0 || rc == PCRE2_ERROR_NOMATCH, ErrorCode::bad_config,
          fmt::format("{}: '{}' gives up on {} (PCRE2 code {}); write a simpler pattern", where, pattern.substr(0, 200),
                      text, rc));
    return rc >= 0;
  }
};

namespace {

struct MatchData {
  explicit MatchData(const pcre2_code* code) : data(pcre2_match_data_create_from_pattern(code, nullptr)) {}
  ~MatchData() { pcre2_match_data_free(data); }
  MatchData(const MatchData&) = delete;
  MatchData& operator=(const MatchData&) = delete;
  pcre2_match_data* data;
};

}  // namespace

PythonRegex::PythonRegex(const std::string& pattern, const std::string& where)
    : code_(std::make_shared<const Code>(pattern, where)) {}

bool PythonRegex::matches_all(const std::string& text) const {
  const MatchData match(code_->code);
  return code_->run(text, PCRE2_ANCHORED | PCRE2_ENDANCHORED, match.data);
}

std::optional<std::string> PythonRegex::group_at_start(const std::string& text, const char* name) const {
  const MatchData match(code_->code);
  if (!code_->run(text, PCRE2_ANCHORED, match.data)) return std::nullopt;
  PCRE2_SIZE begin = 0;
  const int number = pcre2_substring_number_from_name(code_->code, reinterpret_cast<PCRE2_SPTR>(name));
  if (number < 0) return std::nullopt;
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.data) + 2 * number;
  begin = ends[0];
  if (begin == PCRE2_UNSET) return std::nullopt;
  return text.substr(begin, ends[1] - begin);
}

}  // namespace sluice
