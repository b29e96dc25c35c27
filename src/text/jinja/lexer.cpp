#include "text/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace sluice::jinja {
namespace {

constexpr auto npos = std::string_view::npos;

// One line end for all, and none at the end of the file.
std::string normalized(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text.push_back(source[i]);
    } else {
      text.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_byte(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<uint8_t>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)), text_(source_) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) root();
    push(Token::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw SyntaxFault{line_, message}; }

  void push(Token::Type type, std::string_view text) {
    tokens_.push_back({.type = type, .line = line_, .text = std::string(text)});
  }

  void advance(size_t to) {
    line_ += static_cast<int>(
        std::count(text_.begin() + static_cast<int64_t>(at_), text_.begin() + static_cast<int64_t>(to), '\n'));
    at_ = to;
  }

  size_t skip_space(size_t from) const {
    while (from < text_.size()) {
      const size_t length = utf8_length(text_, from);
      if (length == 0 || !is_python_space(utf8_decode(text_, from))) break;
      from += length;
    }
    return from;
  }

  // Where the tag that opens at `open` says {% raw %}: the byte after it, else npos.
  size_t raw_end(size_t open) const {
    size_t at = open + 2;
    if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) ++at;
    at = skip_space(at);
    if (!text_.substr(at).starts_with("raw")) return npos;
    at = skip_space(at + 3);
    if (text_.substr(at).starts_with("-%}")) return skip_space(at + 3);
    return text_.substr(at).starts_with("%}") ? at + 2 : npos;
  }

  size_t next_tag(size_t from) const {
    for (size_t at = text_.find('{', from); at != npos; at = text_.find('{', at + 1)) {
      if (at + 1 < text_.size() && (text_[at + 1] == '%' || text_[at + 1] == '{' || text_[at + 1] == '#')) return at;
    }
    return npos;
  }

  // The text before a tag, without what the tag's sign or lstrip_blocks takes off its end.
  std::string_view before_tag(std::string_view data, char sign, bool variable) const {
    if (sign == '-') return data.substr(0, strip(MarkedText(std::string(data)), Side::right).size());
    if (sign == '+' || variable) return data;
    const size_t newline = data.rfind('\n');
    const size_t line = newline == npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return data;
    const std::string_view indent = data.substr(line);
    if (indent.empty() || strip(MarkedText(std::string(indent)), Side::both).size() > 0) return data;
    return data.substr(0, line);
  }

  void data(std::string_view text) {
    if (!text.empty()) push(Token::data, text);
  }

  void root() {
    const size_t open = next_tag(at_);
    if (open == npos) {
      data(text_.substr(at_));
      advance(text_.size());
      return;
    }
    const char kind = text_[open + 1];
    char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    if (sign != '-' && sign != '+') sign = '\0';
    data(before_tag(text_.substr(at_, open - at_), sign, kind == '{'));
    if (kind == '%' && raw_end(open) != npos) return raw(raw_end(open));
    advance(open);
    const size_t inside = open + (sign != '\0' ? 3 : 2);
    if (kind == '#') return comment(inside);
    push(kind == '%' ? Token::block_begin : Token::variable_begin, "");
    advance(inside);
    line_starting_ = false;
    tag(kind == '%');
  }

  // Past the sign, the closing mark and what it eats.
  void close(size_t mark, char sign, bool eats_line_end) {
    size_t end = mark + 2;
    if (sign == '-') end = skip_space(end);
    else if (sign != '+' && eats_line_end && end < text_.size() && text_[end] == '\n') ++end;
    line_starting_ = text_[end - 1] == '\n';
    advance(end);
  }

  void comment(size_t from) {
    const size_t mark = text_.find("#}", from);
    if (mark == npos) fail("Missing end of comment tag");
    const char sign = mark > from && (text_[mark - 1] == '-' || text_[mark - 1] == '+') ? text_[mark - 1] : '\0';
    close(mark, sign, true);
  }

  void raw(size_t begin) {
    advance(begin);
    line_starting_ = text_[begin - 1] == '\n';
    for (size_t open = text_.find("{%", begin); open != npos; open = text_.find("{%", open + 1)) {
      size_t at = open + 2;
      char sign = at < text_.size() ? text_[at] : '\0';
      if (sign == '-' || sign == '+') ++at;
      else sign = '\0';
      at = skip_space(at);
      if (!text_.substr(at).starts_with("endraw")) continue;
      at = skip_space(at + 6);
      const char end_sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
      if (end_sign != '\0') ++at;
      if (!text_.substr(at).starts_with("%}")) continue;
      data(before_tag(text_.substr(begin, open - begin), sign, false));
      return close(at, end_sign, true);
    }
    fail("Missing end of raw directive");
  }

  // Inside {% … %} or {{ … }}.
  void tag(bool block) {
    const std::string_view mark = block ? "%}" : "}}";
    brackets_.clear();
    while (true) {
      if (at_ >= text_.size()) return;
      const std::string_view rest = text_.substr(at_);
      if (brackets_.empty()) {
        const bool signed_end = (rest[0] == '-' || (rest[0] == '+' && block)) && rest.substr(1).starts_with(mark);
        if (signed_end || rest.starts_with(mark)) {
          push(block ? Token::block_end : Token::variable_end, "");
          return close(at_ + (signed_end ? 1 : 0), signed_end ? rest[0] : '\0', block);
        }
      }
      if (const size_t past = skip_space(at_); past != at_) advance(past);
      else token();
    }
  }

  void token() {
    const char c = text_[at_];
    if (is_digit(c)) return number();
    if (is_name_byte(c)) return name();
    if (c == '\'' || c == '"') return string(c);
    sign();
  }

  size_t digits_end(size_t from) const {
    size_t at = from;
    while (at < text_.size() &&
           (is_digit(text_[at]) || (text_[at] == '_' && at > from && at + 1 < text_.size() && is_digit(text_[at + 1]))))
      ++at;
    return at;
  }

  // Past a fraction or an exponent where the digits before it are followed by one, else npos: then the number is whole.
  size_t real_end(size_t digits) const {
    size_t at = digits;
    const auto digit_at = [&](size_t i) { return i < text_.size() && is_digit(text_[i]); };
    bool real = false;
    if (at < text_.size() && text_[at] == '.' && digit_at(at + 1)) at = digits_end(at + 1), real = true;
    if (at < text_.size() && (text_[at] == 'e' || text_[at] == 'E')) {
      size_t exponent = at + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (digit_at(exponent)) at = digits_end(exponent), real = true;
    }
    return real ? at : npos;
  }

  void number() {
    const bool after_dot = at_ > 0 && text_[at_ - 1] == '.';
    const size_t digits = digits_end(at_), real = after_dot ? npos : real_end(digits);
    push(real != npos ? Token::real : Token::integer, "");
    std::string text;
    int base = 10;
    size_t end = real != npos ? real : digits;
    if (real == npos && text_[at_] == '0') {
      const char letter = at_ + 1 < text_.size() ? static_cast<char>(text_[at_ + 1] | 0x20) : '\0';
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      const size_t from = base == 10 ? at_ : at_ + 2;
      end = from;
      while (end < text_.size() && (text_[end] == '_' || is_base_digit(text_[end], base == 10 ? 1 : base))) ++end;
      text = text_.substr(from, end - from);
    } else {
      text = text_.substr(at_, end - at_);
    }
    std::erase(text, '_');
    Token& token = tokens_.back();
    token.text = std::string(text_.substr(at_, end - at_));
    if (real != npos) {
      token.real_value = std::strtod(text.c_str(), nullptr);
    } else {
      const auto result = std::from_chars(text.data(), text.data() + text.size(), token.integer_value, base);
      if (result.ec != std::errc() || text.empty()) fail(fmt::format("the number {} does not fit 64 bits", token.text));
    }
    advance(end);
  }

  static bool is_base_digit(char c, int base) {
    const char low = static_cast<char>(c | 0x20);
    const int value = is_digit(c) ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : 99;
    return value < base;
  }

  void name() {
    size_t end = at_;
    while (end < text_.size() && is_name_byte(text_[end])) ++end;
    const std::string_view word = text_.substr(at_, end - at_);
    if (!text_is("isidentifier", word).value_or(false)) fail("Invalid character in identifier");
    push(Token::name, word);
    advance(end);
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail(fmt::format("unexpected char {} at {}", quote == '"' ? "'\"'" : "\"'\"", at_));
    push(Token::string, unescaped(text_.substr(at_ + 1, end - at_ - 1)));
    advance(end + 1);
  }

  // Python's "unicode-escape".
  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out.push_back(text[i]);
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view letters = "\\'\"abfnrtv", values = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t letter = letters.find(c); letter != npos) out.push_back(values[letter]);
      else if (c == '\n') continue;
      else if (c == 'x' || c == 'u' || c == 'U') i = hexadecimal(out, text, i, c == 'x' ? 2 : c == 'u' ? 4 : 8);
      else if (c >= '0' && c <= '7') i = octal(out, text, i);
      else if (c == 'N') fail("a string with \\N{…}, which is not supported; write the character");
      else out += {'\\', c};
    }
    return out;
  }

  size_t hexadecimal(std::string& out, std::string_view text, size_t at, size_t count) const {
    uint32_t code = 0;
    const std::string_view digits = text.substr(at + 1, count);
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != count || result.ptr != digits.data() + count) fail("truncated \\x or \\u escape in a string");
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail("a string with half a surrogate pair, which is no text; write the character");
    append_utf8(out, code);
    return at + count;
  }

  static size_t octal(std::string& out, std::string_view text, size_t at) {
    uint32_t code = 0;
    size_t end = at;
    while (end < text.size() && end < at + 3 && text[end] >= '0' && text[end] <= '7')
      code = code * 8 + static_cast<uint32_t>(text[end++] - '0');
    append_utf8(out, code);
    return end - 1;
  }

  void sign() {
    constexpr std::array<std::string_view, 26> signs = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                        "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                        ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (std::string_view candidate : signs) {
      if (!text_.substr(at_).starts_with(candidate)) continue;
      balance(candidate[0]);
      push(Token::sign, candidate);
      return advance(at_ + candidate.size());
    }
    fail(fmt::format("unexpected char '{}' at {}", text_[at_], at_));
  }

  void balance(char c) {
    if (c == '{' || c == '(' || c == '[') brackets_.push_back(c == '{' ? '}' : c == '(' ? ')' : ']');
    if (c != '}' && c != ')' && c != ']') return;
    if (brackets_.empty()) fail(fmt::format("unexpected '{}'", c));
    const char expected = brackets_.back();
    brackets_.pop_back();
    if (expected != c) fail(fmt::format("unexpected '{}', expected '{}'", c, expected));
  }

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<char> brackets_;  // the closing brackets that are due
  std::vector<Token> tokens_;
};

}  // namespace

std::string describe(const Token& token) {
  switch (token.type) {
    case Token::data: return "template data / text";
    case Token::block_begin: return "begin of statement block";
    case Token::block_end: return "end of statement block";
    case Token::variable_begin: return "begin of print statement";
    case Token::variable_end: return "end of print statement";
    case Token::string: return "string";
    case Token::integer: return "integer";
    case Token::real: return "float";
    case Token::end: return "end of template";
    default: return token.text;
  }
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(normalized(source)).run(); }

}  // namespace sluice::jinja
