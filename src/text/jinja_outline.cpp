#include "text/jinja_outline.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace sluice {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_literal(const std::string& token) { return token[0] == '\''; }

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::bad_file, "chat template: found " + what + "; the template is damaged");
}

// The end of a quoted string that starts at `at`: one past the quote.
size_t string_end(std::string_view text, size_t at) {
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') ++i;
    else if (text[i] == quote) return i + 1;
  }
  refuse("a string without an end");
}

std::vector<std::string> tokens_of(std::string_view expression) {
  std::vector<std::string> tokens;
  for (size_t at = 0; at < expression.size();) {
    const char c = expression[at];
    if (is_space(c)) {
      ++at;
    } else if (c == '\'' || c == '"') {
      const size_t end = string_end(expression, at);
      tokens.push_back(jinja_literal(jinja_unquote(expression.substr(at, end - at))));
      at = end;
    } else if (is_name(c)) {
      size_t end = at;
      while (end < expression.size() && is_name(expression[end])) ++end;
      tokens.emplace_back(expression.substr(at, end - at));
      at = end;
    } else {
      const std::string_view two = expression.substr(at, 2);
      const bool double_sign = two == "==" || two == "!=" || two == "<=" || two == ">=" || two == "//" || two == "**";
      tokens.emplace_back(double_sign ? two : two.substr(0, 1));
      at += tokens.back().size();
    }
  }
  return tokens;
}

// x['y'] -> x.y, ~ -> + (what is joined here is text), and 'a' + 'b' -> 'ab' where nothing binds tighter.
std::vector<std::string> simplify(std::vector<std::string> tokens) {
  std::replace(tokens.begin(), tokens.end(), std::string("~"), std::string("+"));
  std::vector<std::string> out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool subscript = i + 2 < tokens.size() && tokens[i] == "[" && is_literal(tokens[i + 1]) &&
                           tokens[i + 2] == "]" && !out.empty() &&
                           (is_name(out.back().back()) || out.back() == "]" || out.back() == ")");
    if (subscript) {
      out.emplace_back(".");
      out.push_back(jinja_unquote(tokens[i + 1]));
      i += 2;
      continue;
    }
    const bool joins = out.size() >= 2 && is_literal(tokens[i]) && out.back() == "+" &&
                       is_literal(out[out.size() - 2]) && (out.size() == 2 || out[out.size() - 3] == "+") &&
                       (i + 1 == tokens.size() || tokens[i + 1] == "+");
    if (joins) {
      out.pop_back();
      out.back() = jinja_literal(jinja_unquote(out.back()) + jinja_unquote(tokens[i]));
      continue;
    }
    out.push_back(tokens[i]);
  }
  return out;
}

std::string canonical(std::string_view expression) { return join_jinja_tokens(jinja_tokens(expression)); }

// The tag that starts at `at`: one past its closing }} or %} or #}.
size_t tag_end(std::string_view source, size_t at) {
  const char kind = source[at + 1];
  if (kind == '#') {
    const size_t end = source.find("#}", at + 2);
    if (end == std::string_view::npos) refuse("a comment without an end");
    return end + 2;
  }
  const char close = kind == '{' ? '}' : '%';
  for (size_t i = at + 2; i + 1 < source.size(); ++i) {
    if (source[i] == '\'' || source[i] == '"') i = string_end(source, i) - 1;
    else if (source[i] == close && source[i + 1] == '}') return i + 2;
  }
  refuse("a tag without an end");
}

size_t next_tag(std::string_view source, size_t from) {
  for (size_t at = source.find('{', from); at != std::string_view::npos; at = source.find('{', at + 1)) {
    if (at + 1 < source.size() && (source[at + 1] == '{' || source[at + 1] == '%' || source[at + 1] == '#')) return at;
  }
  return source.size();
}

// What `{%-` and lstrip_blocks take off the text in front of a tag.
std::string_view strip_before(std::string_view text, char mark, bool is_block, bool at_line_start) {
  size_t end = text.size();
  if (mark == '-') {
    while (end > 0 && is_space(text[end - 1])) --end;
  } else if (is_block && mark != '+') {
    while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == '\t')) --end;
    const bool whole_line = end > 0 ? text[end - 1] == '\n' : at_line_start;
    if (!whole_line) end = text.size();
  }
  return text.substr(0, end);
}

}  // namespace

std::vector<std::string> jinja_tokens(std::string_view expression) { return simplify(tokens_of(expression)); }

std::string join_jinja_tokens(std::span<const std::string> tokens) {
  const auto is_word = [](const std::string& token) { return is_name(token[0]) || is_literal(token); };
  const auto is_keyword = [](const std::string& token) {
    return token == "if" || token == "elif" || token == "and" || token == "or" || token == "not" || token == "in" ||
           token == "else";
  };
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool space =
        i > 0 && (is_word(tokens[i]) ? is_word(tokens[i - 1]) || (is_keyword(tokens[i]) && tokens[i - 1] == ")")
                                     : is_keyword(tokens[i - 1]) && tokens[i] == "(");
    text += (space ? " " : "") + tokens[i];
  }
  return text;
}

void append_output(std::vector<JinjaNode>& nodes, const std::string& expression) {
  if (expression.empty() || expression == "''") return;
  if (nodes.empty() || !nodes.back().is_output) nodes.push_back({true, expression});
  else nodes.back().text = canonical(nodes.back().text + "+" + expression);
}

std::string jinja_literal(std::string_view text) {
  std::string literal = "'";
  for (char c : text) {
    if (c == '\n') literal += "\\n";
    else if (c == '\t') literal += "\\t";
    else if (c == '\'' || c == '\\') literal += '\\', literal += c;
    else literal += c;
  }
  return literal + "'";
}

std::string jinja_unquote(std::string_view literal) {
  std::string text;
  for (size_t i = 1; i + 1 < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 2 >= literal.size()) {
      text += literal[i];
      continue;
    }
    const char c = literal[++i];
    if (c == 'n') text += '\n';
    else if (c == 't') text += '\t';
    else if (c == 'r') text += '\r';
    else if (c == '\'' || c == '"' || c == '\\') text += c;
    else text += '\\', text += c;
  }
  return text;
}

std::vector<JinjaNode> jinja_outline(std::string_view source) {
  std::vector<JinjaNode> nodes;
  if (source.ends_with('\n')) source.remove_suffix(1);
  size_t at = 0;
  bool at_line_start = true;
  while (at < source.size()) {
    const size_t tag = next_tag(source, at);
    const bool has_tag = tag < source.size();
    const char kind = has_tag ? source[tag + 1] : '\0', mark = tag + 2 < source.size() ? source[tag + 2] : '\0';
    std::string_view text = source.substr(at, tag - at);
    if (has_tag) text = strip_before(text, mark, kind != '{', at_line_start);
    append_output(nodes, text.empty() ? "" : jinja_literal(text));
    if (!has_tag) break;

    const size_t end = tag_end(source, tag);
    std::string_view body = source.substr(tag + 2, end - tag - 4);
    if (body.starts_with('-') || body.starts_with('+')) body.remove_prefix(1);
    const char last = body.empty() ? '\0' : body.back();
    if (last == '-' || last == '+') body.remove_suffix(1);
    if (kind == '{') append_output(nodes, canonical(body));
    else if (kind == '%') nodes.push_back({false, canonical(body)});

    at = end;
    at_line_start = false;
    if (last == '-') {
      while (at < source.size() && is_space(source[at])) ++at;
    } else if (kind != '{' && last != '+' && at < source.size() && source[at] == '\n') {
      ++at;
      at_line_start = true;
    }
  }
  return nodes;
}

std::string to_string(const std::vector<JinjaNode>& nodes) {
  std::string text;
  for (const JinjaNode& node : nodes) text += "{" + node.text + "}";
  return text;
}

}  // namespace sluice
