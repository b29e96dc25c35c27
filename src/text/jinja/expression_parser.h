// The lower half of the parser: tokens and expressions. parser.cpp adds the statements; nobody else includes this.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace sluice::jinja {

inline constexpr int max_nesting = 150;  // of expressions and statements in one another

inline ExprPtr make(Expr::Type type, int line, std::string text = "") {
  auto expr = std::make_unique<Expr>();
  expr->type = type;
  expr->line = line;
  expr->text = std::move(text);
  return expr;
}

template <class... Items>
ExprPtr make_of(Expr::Type type, int line, std::string text, Items... items) {
  ExprPtr expr = make(type, line, std::move(text));
  (expr->items.push_back(std::move(items)), ...);
  return expr;
}

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

  using Ends = std::initializer_list<std::string_view>;

  // ---- tokens

  const Token& now() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = tokens_[at_];
    if (token.type != Token::end) ++at_;
    return token;
  }
  bool is_sign(std::string_view sign) const { return now().is(Token::sign, sign); }
  bool is_word(std::string_view word) const { return now().is(Token::name, word); }
  bool take_sign(std::string_view sign) { return is_sign(sign) ? (take(), true) : false; }
  bool take_word(std::string_view word) { return is_word(word) ? (take(), true) : false; }

  [[noreturn]] void fail(const std::string& message, int line) const { throw SyntaxFault{line, message}; }
  [[noreturn]] void fail(const std::string& message) const { fail(message, now().line); }

  [[noreturn]] void fail_expected(std::string_view what) const {
    if (now().type == Token::end) fail(fmt::format("unexpected end of template, expected '{}'.", what));
    fail(fmt::format("expected token '{}', got '{}'", what, describe(now())));
  }
  void expect_sign(std::string_view sign) {
    if (!take_sign(sign)) fail_expected(sign);
  }
  void expect(Token::Type type) {
    if (now().type != type) fail_expected(describe(Token{.type = type}));
    take();
  }
  const Token& expect_name() {
    if (now().type != Token::name) fail_expected("name");
    return take();
  }

  int id(const std::string& name) {
    const auto found = std::find(program_.names.begin(), program_.names.end(), name);
    if (found != program_.names.end()) return static_cast<int>(found - program_.names.begin());
    program_.names.push_back(name);
    return static_cast<int>(program_.names.size()) - 1;
  }

  struct Depth {
    explicit Depth(ExpressionParser& parser) : parser(parser) {
      if (++parser.depth_ > max_nesting) parser.fail("nested too deeply");
    }
    ~Depth() { --parser.depth_; }
    ExpressionParser& parser;
  };

  // Sets a member for as long as this lives.
  template <class T>
  struct Keep {
    Keep(T& member, T value) : member(member), before(member) { member = value; }
    ~Keep() { member = before; }
    T& member;
    T before;
  };

  // ---- expressions, loosest first

  bool at_tuple_end(std::string_view word) const;

  // One expression, or a tuple of them where there is a comma. `word` ends the tuple, as a closing bracket does.
  ExprPtr tuple(bool conditions = true, std::string_view word = "", bool may_be_empty = false);

  ExprPtr expression(bool conditions = true);

  ExprPtr or_chain();

  ExprPtr and_chain();

  ExprPtr negation();

  // The comparison sign that comes next, taken; empty for none.
  std::string comparison_sign();

  ExprPtr comparison();

  // A left-associative chain of binary operators.
  template <class Part>
  ExprPtr chain(Ends signs, const Part& part) {
    int line = now().line;
    ExprPtr left = part();
    while (true) {
      const auto sign = std::find_if(signs.begin(), signs.end(), [&](std::string_view s) { return is_sign(s); });
      if (sign == signs.end()) return left;
      take();
      left = make_of(Expr::binary, line, std::string(*sign), std::move(left), part());
      limit_chain(*left);
      line = now().line;
    }
  }

  ExprPtr sum();

  ExprPtr concatenation();

  ExprPtr product();

  ExprPtr unary(bool with_filters);

  ExprPtr primary();

  ExprPtr name();

  ExprPtr literal();

  ExprPtr list();

  ExprPtr dict();

  ExprPtr postfix(ExprPtr result);

  ExprPtr filters_and_tests(ExprPtr result);

  // Chains are loops here and recursion when they run and are freed.
  void limit_chain(const Expr& expr) const;

  ExprPtr subscript(ExprPtr object);

  // An index or a slice.
  ExprPtr key();

  ExprPtr call(ExprPtr function);

  void arguments(Expr& call);

  std::string dotted_name();

  ExprPtr filters(ExprPtr value, bool first_without_bar);

  ExprPtr test(ExprPtr value);

  bool starts_argument();

  // ---- names of filters and tests that do not exist: an error now, or inside an if, which may never come to them, when they run

  struct Unknown {
    size_t at;
    int line;
    std::string message;
  };
  void unknown(size_t at, int line, std::string message);
  // What was read since token `begin` turned out to be inside an inline if.
  void check_names(size_t begin);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  bool soft_ = false;
  Program program_;
  std::vector<Signature*> signatures_;  // of the macros that are being read, outermost first
  std::vector<Unknown> unknown_;
};

}  // namespace sluice::jinja
