// The outline of a Jinja template: the program it is, with the freedom of layout taken out, so that equal programs are equal
// strings. White-space control, trim_blocks and lstrip_blocks are applied as Hugging Face transformers sets them; comments go;
// x['y'] is x.y; literals that meet are joined.
//
//   {% for m in messages %}{{ '<' + m['role'] }}>{% endfor %}   is   {for m in messages}{'<'+m.role+'>'}{endfor}
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct JinjaNode {
  bool is_output = false;
  std::string text;  // a statement, or the expression that is written out
};

// Throws Error(bad_file) for a template that is not closed properly.
std::vector<JinjaNode> jinja_outline(std::string_view source);
std::string to_string(const std::vector<JinjaNode>& nodes);

// The outline for plain conversations: roles system, user and assistant, contents that are strings, no tools, no documents, no
// date given. Branches that such a conversation cannot take go.
std::vector<JinjaNode> prune_outline(const std::vector<JinjaNode>& nodes);

// The tokens of an expression or statement; literals in single quotes.
std::vector<std::string> jinja_tokens(std::string_view expression);
std::string join_jinja_tokens(std::span<const std::string> tokens);
// Adds an output; one that follows an output becomes part of it.
void append_output(std::vector<JinjaNode>& nodes, const std::string& expression);

// 'text' with backslash, quote, tab and newline escaped.
std::string jinja_literal(std::string_view text);
// The text of a literal; `literal` starts with a quote.
std::string jinja_unquote(std::string_view literal);

}  // namespace sluice
