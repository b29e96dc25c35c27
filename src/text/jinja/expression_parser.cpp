#include "text/jinja/expression_parser.h"

#include <fmt/format.h>

#include "text/jinja/builtins.h"

namespace sluice::jinja {

bool ExpressionParser::at_tuple_end(std::string_view word) const {
  return now().type == Token::variable_end || now().type == Token::block_end || is_sign(")") ||
         (!word.empty() && is_word(word));
}

ExprPtr ExpressionParser::tuple(bool conditions, std::string_view word, bool may_be_empty) {
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

ExprPtr ExpressionParser::expression(bool conditions) {
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

ExprPtr ExpressionParser::or_chain() {
  int line = now().line;
  ExprPtr left = and_chain();
  while (take_word("or")) {
    left = make_of(Expr::or_, line, "", std::move(left), and_chain());
    limit_chain(*left);
    line = now().line;
  }
  return left;
}

ExprPtr ExpressionParser::and_chain() {
  int line = now().line;
  ExprPtr left = negation();
  while (take_word("and")) {
    left = make_of(Expr::and_, line, "", std::move(left), negation());
    limit_chain(*left);
    line = now().line;
  }
  return left;
}

ExprPtr ExpressionParser::negation() {
  const int line = now().line;
  if (!take_word("not")) return comparison();
  const Depth depth(*this);
  return make_of(Expr::not_, line, "", negation());
}

std::string ExpressionParser::comparison_sign() {
  for (std::string_view sign : {"==", "!=", "<", "<=", ">", ">="}) {
    if (take_sign(sign)) return std::string(sign);
  }
  if (take_word("in")) return "in";
  if (!is_word("not") || !next().is(Token::name, "in")) return "";
  take(), take();
  return "not in";
}

ExprPtr ExpressionParser::comparison() {
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

ExprPtr ExpressionParser::sum() {
  return chain({"+", "-"}, [&] { return concatenation(); });
}

ExprPtr ExpressionParser::concatenation() {
  const int line = now().line;
  ExprPtr first = product();
  if (!is_sign("~")) return first;
  ExprPtr result = make_of(Expr::concat, line, "", std::move(first));
  while (take_sign("~")) result->items.push_back(product());
  return result;
}

ExprPtr ExpressionParser::product() {
  return chain({"*", "/", "//", "%"}, [&] { return chain({"**"}, [&] { return unary(true); }); });
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const Depth depth(*this);
  const int line = now().line;
  ExprPtr result;
  if (take_sign("-")) result = make_of(Expr::negate, line, "", unary(false));
  else if (take_sign("+")) result = make_of(Expr::plus, line, "", unary(false));
  else result = primary();
  result = postfix(std::move(result));
  return with_filters ? filters_and_tests(std::move(result)) : std::move(result);
}

ExprPtr ExpressionParser::primary() {
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

ExprPtr ExpressionParser::name() {
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

ExprPtr ExpressionParser::literal() {
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

ExprPtr ExpressionParser::list() {
  ExprPtr result = make(Expr::list, take().line);
  while (!is_sign("]")) {
    if (!result->items.empty()) expect_sign(",");
    if (is_sign("]")) break;
    result->items.push_back(expression());
  }
  expect_sign("]");
  return result;
}

ExprPtr ExpressionParser::dict() {
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

ExprPtr ExpressionParser::postfix(ExprPtr result) {
  while (true) {
    if (is_sign(".") || is_sign("[")) result = subscript(std::move(result));
    else if (is_sign("(")) result = call(std::move(result));
    else return result;
    limit_chain(*result);
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr result) {
  while (true) {
    if (is_sign("|")) result = filters(std::move(result), false);
    else if (is_word("is")) result = test(std::move(result));
    else if (is_sign("(")) result = call(std::move(result));
    else return result;
    limit_chain(*result);
  }
}

void ExpressionParser::limit_chain(const Expr& expr) const {
  int length = 0;
  for (const Expr* at = &expr; at != nullptr; at = at->items.empty() ? nullptr : at->items[0].get()) {
    if (++length > 4 * max_nesting) fail("nested too deeply");
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr object) {
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

ExprPtr ExpressionParser::key() {
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

ExprPtr ExpressionParser::call(ExprPtr function) {
  ExprPtr result = make_of(Expr::call, now().line, "", std::move(function));
  arguments(*result);
  return result;
}

void ExpressionParser::arguments(Expr& call) {
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

std::string ExpressionParser::dotted_name() {
  std::string name = expect_name().text;
  while (take_sign(".")) name += "." + expect_name().text;
  return name;
}

ExprPtr ExpressionParser::filters(ExprPtr value, bool first_without_bar) {
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

ExprPtr ExpressionParser::test(ExprPtr value) {
  const int line = take().line;
  const bool negated = take_word("not");
  const size_t at = at_;
  ExprPtr result = make_of(Expr::test, line, dotted_name(), std::move(value));
  if (!is_test(result->text)) unknown(at, line, fmt::format("No test named '{}'.", result->text));
  if (is_sign("(")) arguments(*result);
  else if (starts_argument()) result->items.push_back(postfix(primary()));
  return negated ? make_of(Expr::not_, line, "", std::move(result)) : std::move(result);
}

bool ExpressionParser::starts_argument() {
  if (is_word("is")) fail("You cannot chain multiple tests with is");
  if (is_word("else") || is_word("or") || is_word("and")) return false;
  return now().type == Token::name || now().type == Token::string || now().type == Token::integer ||
         now().type == Token::real || is_sign("[") || is_sign("{");
}

void ExpressionParser::unknown(size_t at, int line, std::string message) {
  if (!soft_) unknown_.push_back({at, line, std::move(message)});
}

void ExpressionParser::check_names(size_t begin) {
  std::erase_if(unknown_, [&](const Unknown& u) { return u.at >= begin; });
}

}  // namespace sluice::jinja
