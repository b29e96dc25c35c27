// Regular expressions as Python's `re` reads them, run by PCRE2: PEFT's configs hold them. Look-behind, named groups (?P<n>…), inline flags
// and possessive quantifiers are spelled alike in both; {,n} is rewritten.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace sluice {

class PythonRegex {
 public:
  // Throws Error(bad_config) naming `where` and the pattern when it is none.
  PythonRegex(const std::string& pattern, const std::string& where);

  // re.fullmatch. Throws Error(bad_config) when the pattern needs too much backtracking.
  bool matches_all(const std::string& text) const;
  // re.match, and what its group of that name holds; nothing without a match.
  std::optional<std::string> group_at_start(const std::string& text, const char* name) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace sluice
