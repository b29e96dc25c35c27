// The outline of a Jinja template: the program it is, with the freedom of layout taken out, so that equal programs are equal
// strings. White-space control, trim_blocks and lstrip_blocks are applied as Hugging Face transformers sets them; comments go;
// x['y'] is x.y; literals that meet are joined.
//
//   {% for m in messages %}{{ '<' + m['role'] }}>{% endfor %}   is   {for m in messages}{'<'+m.role+'>'}{endfor}
#pragma once

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

// 'text' with backslash, quote, tab and newline escaped.
std::string jinja_literal(std::string_view text);
// The text of a literal; `literal` starts with a quote.
std::string jinja_unquote(std::string_view literal);

}  // namespace sluice
