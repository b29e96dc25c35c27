#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <string>

#include "core/error.h"
#include "text/utf8.h"

namespace sluice {
namespace {

// Unicode's White_Space, and Oniguruma's word characters: Alphabetic, marks, decimal digits, connectors.
constexpr std::string_view space_items = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view word_items =
    R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}\p{Nl}\p{M}\p{Nd}\p{Pc}\p{L})";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        char_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else {
        out_ += c, ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    throw Error(ErrorCode::bad_file, "pattern " + std::string(pattern_) + ": found " + std::string(construct) +
                                         ", which is not supported; convert the tokenizer to one without it");
  }
  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  void copy(size_t count) { out_ += pattern_.substr(at_, count), at_ += count; }

  void copy_through(char end, std::string_view what) {
    const size_t last = pattern_.find(end, at_);
    if (last == std::string_view::npos) refuse(what);
    copy(last + 1 - at_);
  }

  // Escapes that mean the same inside and outside a class.
  bool plain_escape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    switch (c) {
      case 'p':
      case 'P':
        if (at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{') copy_through('}', "\\p{ without }");
        else refuse("\\p without braces");
        return true;
      case 'u':
        if (at_ + 6 > pattern_.size()) refuse("a short \\u");
        out_ += "\\x{" + std::string(pattern_.substr(at_ + 2, 4)) + "}", at_ += 6;
        return true;
      case 'x':
        if (at_ + 2 < pattern_.size() && pattern_[at_ + 2] == '{') copy_through('}', "\\x{ without }");
        else copy(2);
        return true;
      case 'v': out_ += "\\x0b", at_ += 2; return true;
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e': copy(2); return true;
      default:
        if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) != 0) return false;
        copy(2);
        return true;
    }
  }

  void escape() {
    if (plain_escape()) return;
    const std::string space(space_items), word(word_items);
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    switch (c) {
      case 's': out_ += "[" + space + "]"; break;
      case 'S': out_ += "[^" + space + "]"; break;
      case 'w': out_ += "[" + word + "]"; break;
      case 'W': out_ += "[^" + word + "]"; break;
      case 'b': out_ += "(?:(?<=[" + word + "])(?![" + word + "])|(?<![" + word + "])(?=[" + word + "]))"; break;
      case 'A':
      case 'z': out_ += pattern_.substr(at_, 2); break;
      default: refuse("\\" + std::string(1, c));
    }
    at_ += 2;
  }

  void char_class() {
    copy(1);
    if (next_is("^")) copy(1);
    if (next_is("]")) out_ += "\\]", ++at_;
    while (true) {
      if (at_ >= pattern_.size()) refuse("[ without ]");
      if (next_is("]")) return copy(1);
      if (next_is("&&")) refuse("the class intersection &&");
      if (next_is("[:")) {
        const size_t last = pattern_.find(":]", at_);
        if (last == std::string_view::npos) refuse("[: without :]");
        copy(last + 2 - at_);
      } else if (next_is("[")) {
        refuse("a class inside a class");
      } else if (next_is("\\s")) {
        out_ += space_items, at_ += 2;
      } else if (next_is("\\w")) {
        out_ += word_items, at_ += 2;
      } else if (next_is("\\S")) {
        copy(2);  // as PCRE2 has it: differs for U+180E only
      } else if (next_is("\\")) {
        if (!plain_escape()) refuse(pattern_.substr(at_, 2));
      } else {
        copy(1);
      }
    }
  }

  void group() {
    if (!next_is("(?")) return copy(1);
    for (std::string_view opening : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"}) {
      if (next_is(opening)) return copy(opening.size());
    }
    if (at_ == 0 && next_is("(?i)")) return copy(4);
    refuse(pattern_.substr(at_, 4));
  }

  // {n}, {n,}, {n,m} and Ruby's {,m}; anything else is a plain brace.
  void interval() {
    const size_t last = pattern_.find('}', at_);
    const std::string_view body = last == std::string_view::npos ? "" : pattern_.substr(at_ + 1, last - at_ - 1);
    const bool is_interval =
        !body.empty() && body != "," && body.find_first_not_of("0123456789,") == std::string_view::npos;
    if (!is_interval) {
      out_ += "\\{", ++at_;
      return;
    }
    out_ += body.front() == ',' ? "{0" + std::string(body) + "}" : "{" + std::string(body) + "}";
    at_ = last + 1;
    if (next_is("+")) refuse("a quantifier after {n,m}");  // possessive for PCRE2, repeated for Oniguruma
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2_syntax(std::string_view pattern) { return Translator(pattern).run(); }

struct Regex::Code {
  pcre2_code* code = nullptr;
  bool jit = false;
  std::string pattern;
  Code(std::string_view pattern, std::string_view compiled, uint32_t options) : pattern(pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(compiled.data()), compiled.size(), options, &error, &offset,
                         context);
    pcre2_compile_context_free(context);
    if (code == nullptr) {
      PCRE2_UCHAR message[128];
      pcre2_get_error_message(error, message, sizeof message);
      throw Error(ErrorCode::bad_file, "pattern " + std::string(pattern) + ": found a construct that PCRE2 refuses (" +
                                           reinterpret_cast<const char*>(message) +
                                           "); convert the tokenizer to one without it");
    }
    jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
};

struct RegexScratch::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr);
  State() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

RegexScratch::RegexScratch() : state_(std::make_unique<State>()) {}
RegexScratch::~RegexScratch() = default;
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;

Regex::Regex(std::string_view pattern)
    : code_(std::make_shared<Code>(pattern, to_pcre2_syntax(pattern), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE)) {}

Regex Regex::literal(std::string_view text) {
  return Regex(std::make_shared<Code>(text, text, PCRE2_UTF | PCRE2_LITERAL));
}

std::optional<ByteRange> Regex::find(std::string_view subject, size_t from, RegexScratch& scratch) const {
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data() == nullptr ? "" : subject.data());
  RegexScratch::State& state = *scratch.state_;
  int rc = code_->jit ? pcre2_jit_match(code_->code, text, subject.size(), from, 0, state.data, state.context)
                      : PCRE2_ERROR_JIT_STACKLIMIT;
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code_->code, text, subject.size(), from, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, state.data,
                     state.context);
  }
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) {
    throw Error(ErrorCode::bad_config, "pattern " + code_->pattern + ": PCRE2 gave up at byte " + std::to_string(from) +
                                           " of a text of " + std::to_string(subject.size()) + " bytes (code " +
                                           std::to_string(rc) + "); break the text into shorter rows");
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state.data);
  return ByteRange{static_cast<int64_t>(range[0]), static_cast<int64_t>(range[1])};
}

}  // namespace sluice
