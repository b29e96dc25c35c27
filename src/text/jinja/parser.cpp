#include <fmt/format.h>

#include "text/jinja/expression_parser.h"

namespace sluice::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  Program run() {
    program_.body = body({});
    if (!unknown_.empty()) fail(unknown_.front().message, unknown_.front().line);
    return std::move(program_);
  }

 private:
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
};

}  // namespace

int Program::id_of(std::string_view name) const {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

Program parse(std::string_view source) { return Parser(source).run(); }

}  // namespace sluice::jinja
