// Regular expressions as tokenizer files write them (Oniguruma, Ruby syntax, Unicode), run by PCRE2.
//
// The two engines read a few constructs differently. What differs is rewritten (\s, \w and \b follow the Unicode properties,
// ^ and $ match at lines) and what cannot be rewritten (class intersections, nested classes, inline flags other than i, \h, \X …)
// is refused by name. PCRE2 10.42 knows Unicode 14: characters assigned later count as unassigned.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/byte_range.h"

namespace sluice {

// What one thread needs to run a Regex.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
};

class Regex {
 public:
  // Throws Error(bad_file) that names the construct which is not supported.
  explicit Regex(std::string_view pattern);
  static Regex literal(std::string_view text);

  // The leftmost match in `subject` (valid UTF-8) that starts at or after `from`. Throws Error(bad_config) when a pattern
  // gives up on a text (too much backtracking).
  std::optional<ByteRange> find(std::string_view subject, size_t from, RegexScratch& scratch) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
};

// The pattern in PCRE2's syntax; shown for tests.
std::string to_pcre2_syntax(std::string_view pattern);

}  // namespace sluice
