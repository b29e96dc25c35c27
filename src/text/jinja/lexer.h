// A template's text to tokens, as Jinja2 3.1 cuts it with trim_blocks and lstrip_blocks on (transformers' setting).
//
// White space is settled here: `-` and `+` at tags, the line end after a block, the indent before one, \r\n to \n, the last line
// end of the file, {% raw %} and comments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::jinja {

// A template that cannot be read.
struct SyntaxFault {
  int line;
  std::string message;
};

struct Token {
  enum Type : uint8_t {
    data,
    block_begin,
    block_end,
    variable_begin,
    variable_end,
    name,
    string,
    integer,
    real,
    sign,
    end
  };
  Type type = end;
  int line = 1;
  std::string text;  // of data, names, signs; the value of a string
  int64_t integer_value = 0;
  double real_value = 0;

  bool is(Type t, std::string_view value) const { return type == t && text == value; }
};

// How Jinja names a token in its messages.
std::string describe(const Token& token);

// Ends with a token of type `end`. Throws SyntaxFault.
std::vector<Token> tokenize(std::string_view source);

}  // namespace sluice::jinja
