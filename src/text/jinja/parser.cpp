#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "text/jinja/builtins.h"
#include "text/jinja/lexer.h"
#include "text/jinja/syntax.h"

namespace sluice::jinja {
namespace {

constexpr int max_depth = 150;  // of expressions and statements in one another

ExprPtr make(Expr::Type type, int line, std::string text = "") {
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

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  Program run() {
    program_.body = body({});
    if (!unknown_.empty()) fail(unknown_.front().message, unknown_.front().line);
    return std::move(program_);
  }

 private:
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
    explicit Depth(Parser& parser) : parser(parser) {
      if (++parser.depth_ > max_depth) parser.fail("nested too deeply");
    }
    ~Depth() { --parser.depth_; }
    Parser& parser;
  };

  // Sets a member for as long as this lives.
  template <class T>
  struct Keep {
    Keep(T& member, T value) : member(member), before(member) { member = value; }
    ~Keep() { member = before; }
    T& member;
    T before;
  };

  // ---- statements

  // Up to a tag that begins with one of `ends`, which stays the next token; to the end of the file for none.
  Body body(Ends ends) {
    const Depth depth(*this);
    Body result;
    std::unique_ptr<Statement> output;
    const auto put = [&](ExprPtr expr) {
      if (!output) output = statement(Statement::output, expr->line);
      output->exprs.push_back(std::move(expr));
    };
    const auto flush = [&] {
      if (output) result.push_back(std::move(output));
    };
    while (now().type != Token::end) {
      const Token& token = now();
      if (token.type == Token::data) {
        take();
        ExprPtr text = make(Expr::constant, token.line);
        text->value = Value::string(token.text);
        put(std::move(text));
      } else if (token.type == Token::variable_begin) {
        take();
        put(tuple());
        expect(Token::variable_end);
      } else {
        flush();
        expect(Token::block_begin);
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_word(end); })) return result;
        result.push_back(tag(ends));
        expect(Token::block_end);
      }
    }
    if (ends.size() > 0)
      fail(fmt::format("Unexpected end of template. Jinja was looking for the following tags: '{}'.", *ends.begin()));
    flush();
    return result;
  }

  // The body of a tag whose head has been read, up to one of `ends`.
  Body inner(Ends ends) {
    take_sign(":");
    expect(Token::block_end);
    return body(ends);
  }
  Body inner_to(std::string_view end) {
    Body result = inner({end});
    take();
    return result;
  }

  static std::unique_ptr<Statement> statement(Statement::Type type, int line) {
    auto result = std::make_unique<Statement>();
    result->type = type;
    result->line = line;
    return result;
  }

  std::unique_ptr<Statement> tag(Ends ends) {
    if (now().type != Token::name) fail("tag name expected");
    const int line = now().line;
    const std::string word = take().text;
    if (word == "for") return for_loop(line);
    if (word == "if") return if_chain(line);
    if (word == "set") return set(line);
    if (word == "print") return print(line);
    if (word == "break" || word == "continue") return jump(word, line);
    const Keep<bool> soft(soft_, false);
    if (word == "macro") return macro(line);
    if (word == "call") return call_block(line);
    if (word == "with") return with(line);
    if (word == "filter") return filter_block(line);
    if (word == "block") return block(line);
    if (word == "generation") return generation(line);
    for (std::string_view other : {"extends", "include", "import", "from", "autoescape"}) {
      if (word == other)
        fail(fmt::format("{{% {} %}} is not supported: a chat template is one file and writes plain text", word), line);
    }
    std::string wanted;
    for (std::string_view end : ends) wanted += (wanted.empty() ? "'" : " or '") + std::string(end) + "'";
    fail(fmt::format("Encountered unknown tag '{}'.{}", word,
                     wanted.empty() ? "" : fmt::format(" Jinja was looking for the following tags: {}.", wanted)),
         line);
  }

  std::unique_ptr<Statement> for_loop(int line) {
    auto loop = statement(Statement::for_, line);
    const Keep<bool> soft(soft_, false);
    loop->target = target(false, "in");
    if (!take_word("in")) fail_expected("in");
    loop->expr = tuple(false, "recursive");
    if (take_word("if")) loop->test = expression();
    loop->recursive = take_word("recursive");
    {
      const Keep<int> inside(loops_, loops_ + 1);
      loop->body = inner({"endfor", "else"});
    }
    if (take().text == "else") loop->otherwise = inner_to("endfor");
    return loop;
  }

  std::unique_ptr<Statement> if_chain(int line) {
    auto result = statement(Statement::if_, line);
    const Keep<bool> soft(soft_, true);
    result->expr = tuple(false);
    result->body = inner({"elif", "else", "endif"});
    const Token& end = take();
    if (end.text == "elif") {
      const Depth depth(*this);
      result->otherwise.push_back(if_chain(end.line));
    } else if (end.text == "else") {
      result->otherwise = inner_to("endif");
    }
    return result;
  }

  std::unique_ptr<Statement> set(int line) {
    auto result = statement(Statement::set, line);
    result->target = target(true);
    if (take_sign("=")) {
      result->expr = tuple();
      return result;
    }
    result->type = Statement::set_block;
    const Keep<bool> soft(soft_, false);
    result->expr = filters(nullptr, false);
    result->body = inner_to("endset");
    return result;
  }

  std::unique_ptr<Statement> print(int line) {
    auto result = statement(Statement::output, line);
    while (now().type != Token::block_end) {
      if (!result->exprs.empty()) expect_sign(",");
      result->exprs.push_back(expression());
    }
    return result;
  }

  std::unique_ptr<Statement> jump(const std::string& word, int line) {
    if (loops_ == 0) fail(fmt::format("'{}' outside loop", word), line);
    return statement(word == "break" ? Statement::break_ : Statement::continue_, line);
  }

  void parameters(Signature& signature) {
    expect_sign("(");
    while (!is_sign(")")) {
      if (!signature.parameters.empty()) expect_sign(",");
      const std::string name = expect_name().text;
      Parameter parameter{.id = id(name), .name = name};
      if (take_sign("=")) parameter.otherwise = expression();
      else if (!signature.parameters.empty() && signature.parameters.back().otherwise)
        fail("non-default argument follows default argument");
      signature.parameters.push_back(std::move(parameter));
    }
    expect_sign(")");
  }

  Body callable_body(Signature& signature, std::string_view end) {
    const Keep<int> outside(loops_, 0);
    signatures_.push_back(&signature);
    Body result = inner_to(end);
    signatures_.pop_back();
    return result;
  }

  std::unique_ptr<Statement> macro(int line) {
    auto result = statement(Statement::macro, line);
    result->signature.name = expect_name().text;
    result->id = id(result->signature.name);
    parameters(result->signature);
    result->body = callable_body(result->signature, "endmacro");
    return result;
  }

  std::unique_ptr<Statement> call_block(int line) {
    auto result = statement(Statement::call_block, line);
    result->signature.name = "caller";
    if (is_sign("(")) parameters(result->signature);
    result->expr = expression();
    if (result->expr->type != Expr::call) fail("expected call", line);
    result->body = callable_body(result->signature, "endcall");
    return result;
  }

  std::unique_ptr<Statement> with(int line) {
    auto result = statement(Statement::with, line);
    while (now().type != Token::block_end) {
      if (!result->targets.empty()) expect_sign(",");
      result->targets.push_back(target(false));
      expect_sign("=");
      result->exprs.push_back(expression());
    }
    result->body = inner_to("endwith");
    return result;
  }

  std::unique_ptr<Statement> filter_block(int line) {
    auto result = statement(Statement::filter_block, line);
    result->expr = filters(nullptr, true);
    result->body = inner_to("endfilter");
    return result;
  }

  std::unique_ptr<Statement> block(int line) {
    auto result = statement(Statement::block, line);
    const std::string name = expect_name().text;
    if (is_word("scoped") || is_word("required"))
      fail("a block that is scoped or required is not supported: chat templates have no other template to fill it",
           line);
    const Keep<int> outside(loops_, 0);
    result->body = inner_to("endblock");
    take_word(name);
    return result;
  }

  std::unique_ptr<Statement> generation(int line) {
    auto result = statement(Statement::generation, line);
    program_.has_generation = true;
    const Keep<int> outside(loops_, 0);
    result->body = inner_to("endgeneration");
    return result;
  }

  // A name, a tuple of names, or with `spaces` an attribute of a namespace.
  ExprPtr target(bool spaces, std::string_view end = "") {
    const int line = now().line;
    std::vector<ExprPtr> names;
    bool is_tuple = false;
    do {
      if (!names.empty()) is_tuple = true;
      if (at_tuple_end(end) || (spaces && is_sign("="))) break;
      names.push_back(one_target(spaces));
    } while (take_sign(","));
    if (names.empty()) fail(fmt::format("Expected an expression, got '{}'", describe(now())));
    if (!is_tuple) return std::move(names[0]);
    ExprPtr result = make(Expr::tuple, line);
    result->items = std::move(names);
    return result;
  }

  ExprPtr one_target(bool spaces) {
    const Depth depth(*this);
    if (take_sign("(")) {
      ExprPtr inside = target(spaces);
      expect_sign(")");
      return inside;
    }
    if (now().type != Token::name) fail(fmt::format("can't assign to '{}'", describe(now())));
    const Token& token = take();
    for (std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (token.text == constant) fail("can't assign to 'const'", token.line);
    }
    ExprPtr result = make(Expr::name, token.line, token.text);
    result->id = id(token.text);
    if (spaces && take_sign(".")) {
      result->type = Expr::space_name;
      result->text = expect_name().text;
    }
    return result;
  }

  // ---- expressions, loosest first

  bool at_tuple_end(std::string_view word) const {
    return now().type == Token::variable_end || now().type == Token::block_end || is_sign(")") ||
           (!word.empty() && is_word(word));
  }

  // One expression, or a tuple of them where there is a comma. `word` ends the tuple, as a closing bracket does.
  ExprPtr tuple(bool conditions = true, std::string_view word = "", bool may_be_empty = false) {
    const int line = now().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (true) {
      if (!items.empty()) expect_sign(",");
      if (at_tuple_end(word)) break;
      items.push_back(expression(conditions));
      if (!is_sign(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items[0]);
    if (!is_tuple && !may_be_empty) fail(fmt::format("Expected an expression, got '{}'", describe(now())));
    ExprPtr result = make(Expr::tuple, line);
    result->items = std::move(items);
    return result;
  }

  ExprPtr expression(bool conditions = true) {
    const Depth depth(*this);
    if (!conditions) return or_chain();
    int line = now().line;
    const size_t begin = at_;
    ExprPtr result = or_chain();
    while (take_word("if")) {
      const Keep<bool> soft(soft_, true);
      ExprPtr test = or_chain();
      ExprPtr otherwise = take_word("else") ? expression() : nullptr;
      check_names(begin);
      result = make_of(Expr::condition, line, "", std::move(test), std::move(result), std::move(otherwise));
      line = now().line;
    }
    return result;
  }

  ExprPtr or_chain() {
    int line = now().line;
    ExprPtr left = and_chain();
    while (take_word("or")) {
      left = make_of(Expr::or_, line, "", std::move(left), and_chain());
      limit_chain(*left);
      line = now().line;
    }
    return left;
  }

  ExprPtr and_chain() {
    int line = now().line;
    ExprPtr left = negation();
    while (take_word("and")) {
      left = make_of(Expr::and_, line, "", std::move(left), negation());
      limit_chain(*left);
      line = now().line;
    }
    return left;
  }

  ExprPtr negation() {
    const int line = now().line;
    if (!take_word("not")) return comparison();
    const Depth depth(*this);
    return make_of(Expr::not_, line, "", negation());
  }

  // The comparison sign that comes next, taken; empty for none.
  std::string comparison_sign() {
    for (std::string_view sign : {"==", "!=", "<", "<=", ">", ">="}) {
      if (take_sign(sign)) return std::string(sign);
    }
    if (take_word("in")) return "in";
    if (!is_word("not") || !next().is(Token::name, "in")) return "";
    take(), take();
    return "not in";
  }

  ExprPtr comparison() {
    const int line = now().line;
    ExprPtr first = sum();
    std::string sign = comparison_sign();
    if (sign.empty()) return first;
    ExprPtr result = make_of(Expr::comparison, line, "", std::move(first));
    for (; !sign.empty(); sign = comparison_sign()) {
      result->signs.push_back(sign);
      result->items.push_back(sum());
    }
    return result;
  }

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

  ExprPtr sum() {
    return chain({"+", "-"}, [&] { return concatenation(); });
  }

  ExprPtr concatenation() {
    const int line = now().line;
    ExprPtr first = product();
    if (!is_sign("~")) return first;
    ExprPtr result = make_of(Expr::concat, line, "", std::move(first));
    while (take_sign("~")) result->items.push_back(product());
    return result;
  }

  ExprPtr product() {
    return chain({"*", "/", "//", "%"}, [&] { return chain({"**"}, [&] { return unary(true); }); });
  }

  ExprPtr unary(bool with_filters) {
    const Depth depth(*this);
    const int line = now().line;
    ExprPtr result;
    if (take_sign("-")) result = make_of(Expr::negate, line, "", unary(false));
    else if (take_sign("+")) result = make_of(Expr::plus, line, "", unary(false));
    else result = primary();
    result = postfix(std::move(result));
    return with_filters ? filters_and_tests(std::move(result)) : std::move(result);
  }

  ExprPtr primary() {
    const Token& token = now();
    if (token.type == Token::name) return name();
    if (token.type == Token::string || token.type == Token::integer || token.type == Token::real) return literal();
    if (take_sign("(")) {
      ExprPtr inside = tuple(true, "", true);
      expect_sign(")");
      return inside;
    }
    if (is_sign("[") || is_sign("{")) return is_sign("[") ? list() : dict();
    fail(fmt::format("unexpected '{}'", describe(token)));
  }

  ExprPtr name() {
    const Token& token = take();
    ExprPtr result = make(Expr::constant, token.line);
    if (token.text == "true" || token.text == "True") result->value = Value(true);
    else if (token.text == "false" || token.text == "False") result->value = Value(false);
    else if (token.text != "none" && token.text != "None") {
      result->type = Expr::name;
      result->text = token.text;
      result->id = id(token.text);
      for (Signature* signature : signatures_) {
        signature->uses_varargs = signature->uses_varargs || token.text == "varargs";
        signature->uses_kwargs = signature->uses_kwargs || token.text == "kwargs";
        signature->uses_caller = signature->uses_caller || token.text == "caller";
      }
    }
    return result;
  }

  ExprPtr literal() {
    ExprPtr result = make(Expr::constant, now().line);
    if (now().type == Token::integer) {
      result->value = Value(take().integer_value);
    } else if (now().type == Token::real) {
      result->value = Value(take().real_value);
    } else {
      std::string text;
      while (now().type == Token::string) text += take().text;
      result->value = Value::string(std::move(text));
    }
    return result;
  }

  ExprPtr list() {
    ExprPtr result = make(Expr::list, take().line);
    while (!is_sign("]")) {
      if (!result->items.empty()) expect_sign(",");
      if (is_sign("]")) break;
      result->items.push_back(expression());
    }
    expect_sign("]");
    return result;
  }

  ExprPtr dict() {
    ExprPtr result = make(Expr::dict, take().line);
    while (!is_sign("}")) {
      if (!result->items.empty()) expect_sign(",");
      if (is_sign("}")) break;
      result->items.push_back(expression());
      expect_sign(":");
      result->items.push_back(expression());
    }
    expect_sign("}");
    return result;
  }

  ExprPtr postfix(ExprPtr result) {
    while (true) {
      if (is_sign(".") || is_sign("[")) result = subscript(std::move(result));
      else if (is_sign("(")) result = call(std::move(result));
      else return result;
      limit_chain(*result);
    }
  }

  ExprPtr filters_and_tests(ExprPtr result) {
    while (true) {
      if (is_sign("|")) result = filters(std::move(result), false);
      else if (is_word("is")) result = test(std::move(result));
      else if (is_sign("(")) result = call(std::move(result));
      else return result;
      limit_chain(*result);
    }
  }

  // Chains are loops here and recursion when they run and are freed.
  void limit_chain(const Expr& expr) const {
    int length = 0;
    for (const Expr* at = &expr; at != nullptr; at = at->items.empty() ? nullptr : at->items[0].get()) {
      if (++length > 4 * max_depth) fail("nested too deeply");
    }
  }

  ExprPtr subscript(ExprPtr object) {
    const Token& token = take();
    if (token.text == ".") {
      const Token& attribute = take();
      if (attribute.type == Token::name) return make_of(Expr::attribute, token.line, attribute.text, std::move(object));
      if (attribute.type != Token::integer) fail("expected name or number", attribute.line);
      ExprPtr index = make(Expr::constant, attribute.line);
      index->value = Value(attribute.integer_value);
      return make_of(Expr::item, token.line, "", std::move(object), std::move(index));
    }
    std::vector<ExprPtr> keys;
    while (!is_sign("]")) {
      if (!keys.empty()) expect_sign(",");
      keys.push_back(key());
    }
    expect_sign("]");
    ExprPtr index = make(Expr::tuple, token.line);
    if (keys.size() == 1) index = std::move(keys[0]);
    else index->items = std::move(keys);
    return make_of(Expr::item, token.line, "", std::move(object), std::move(index));
  }

  // An index or a slice.
  ExprPtr key() {
    const int line = now().line;
    ExprPtr start, stop, step;
    if (!is_sign(":")) {
      start = expression();
      if (!is_sign(":")) return start;
    }
    take();
    const auto given = [&] { return !is_sign(":") && !is_sign("]") && !is_sign(","); };
    if (given()) stop = expression();
    if (take_sign(":") && given()) step = expression();
    return make_of(Expr::slice, line, "", std::move(start), std::move(stop), std::move(step));
  }

  ExprPtr call(ExprPtr function) {
    ExprPtr result = make_of(Expr::call, now().line, "", std::move(function));
    arguments(*result);
    return result;
  }

  void arguments(Expr& call) {
    const int line = now().line;
    expect_sign("(");
    const auto ensure = [&](bool ok) {
      if (!ok) fail("invalid syntax for function call expression", line);
    };
    for (bool first = true; !is_sign(")"); first = false) {
      if (!first) expect_sign(",");
      if (is_sign(")")) break;
      if (take_sign("*")) {
        ensure(!call.more_positional && !call.more_named);
        call.more_positional = expression();
      } else if (take_sign("**")) {
        ensure(!call.more_named);
        call.more_named = expression();
      } else if (now().type == Token::name && next().is(Token::sign, "=")) {
        ensure(!call.more_named);
        std::string name = take().text;
        take();
        call.named.emplace_back(std::move(name), expression());
      } else {
        ensure(!call.more_positional && !call.more_named && call.named.empty());
        call.items.push_back(expression());
      }
    }
    expect_sign(")");
  }

  std::string dotted_name() {
    std::string name = expect_name().text;
    while (take_sign(".")) name += "." + expect_name().text;
    return name;
  }

  ExprPtr filters(ExprPtr value, bool first_without_bar) {
    while (is_sign("|") || first_without_bar) {
      if (!first_without_bar) take();
      first_without_bar = false;
      const int line = now().line;
      const size_t at = at_;
      ExprPtr filter = make_of(Expr::filter, line, dotted_name(), std::move(value));
      if (!is_filter(filter->text)) unknown(at, line, fmt::format("No filter named '{}'.", filter->text));
      if (is_sign("(")) arguments(*filter);
      limit_chain(*filter);
      value = std::move(filter);
    }
    return value;
  }

  ExprPtr test(ExprPtr value) {
    const int line = take().line;
    const bool negated = take_word("not");
    const size_t at = at_;
    ExprPtr result = make_of(Expr::test, line, dotted_name(), std::move(value));
    if (!is_test(result->text)) unknown(at, line, fmt::format("No test named '{}'.", result->text));
    if (is_sign("(")) arguments(*result);
    else if (starts_argument()) result->items.push_back(postfix(primary()));
    return negated ? make_of(Expr::not_, line, "", std::move(result)) : std::move(result);
  }

  bool starts_argument() {
    if (is_word("is")) fail("You cannot chain multiple tests with is");
    if (is_word("else") || is_word("or") || is_word("and")) return false;
    return now().type == Token::name || now().type == Token::string || now().type == Token::integer ||
           now().type == Token::real || is_sign("[") || is_sign("{");
  }

  // ---- names of filters and tests that do not exist: an error now, or inside an if, which may never come to them, when they run

  struct Unknown {
    size_t at;
    int line;
    std::string message;
  };
  void unknown(size_t at, int line, std::string message) {
    if (!soft_) unknown_.push_back({at, line, std::move(message)});
  }
  // What was read since token `begin` turned out to be inside an inline if.
  void check_names(size_t begin) {
    std::erase_if(unknown_, [&](const Unknown& u) { return u.at >= begin; });
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  bool soft_ = false;
  Program program_;
  std::vector<Signature*> signatures_;  // of the macros that are being read, outermost first
  std::vector<Unknown> unknown_;
};

}  // namespace

int Program::id_of(std::string_view name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

Program parse(std::string_view source) { return Parser(source).run(); }

}  // namespace sluice::jinja
