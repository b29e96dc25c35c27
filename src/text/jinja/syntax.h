// The program of a template: statements and expressions, as the parser gives them and the interpreter walks them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace sluice::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum Type : uint8_t {
    constant,    // value
    name,        // id, text
    list,        // items
    tuple,       // items
    dict,        // items: key, value, key, value …
    attribute,   // items[0] . text
    item,        // items[0] [ items[1] ]
    slice,       // items: start, stop, step; null where left out
    call,        // items[0] ( items[1 …], named )
    filter,      // items[0] | text ( items[1 …], named ); items[0] is null in {% filter %} and {% set x | f %}
    test,        // items[0] is text ( items[1 …], named )
    negate,      // - items[0]
    plus,        // + items[0]
    not_,        // not items[0]
    and_,        // items[0] and items[1]
    or_,         // items[0] or items[1]
    condition,   // items[1] if items[0] else items[2], which may be null
    concat,      // items[0] ~ items[1] ~ …
    binary,      // items[0] text items[1]
    comparison,  // items[0] signs[0] items[1] signs[1] items[2] …
    space_name,  // a target only: the attribute `text` of the namespace `id`
  };
  Type type;
  int line;
  Value value;
  std::string text;
  int id = -1;  // of a name; the interpreter's scopes know names by number
  std::vector<ExprPtr> items;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr more_positional, more_named;  // * and ** of a call
  std::vector<std::string> signs;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Parameter {
  int id;
  std::string name;
  ExprPtr otherwise;  // null: none
};

// What macros, call blocks and the bodies that they wrap have.
struct Signature {
  std::string name;
  std::vector<Parameter> parameters;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Statement {
  enum Type : uint8_t {
    output,        // exprs, one after another
    set,           // target = expr
    set_block,     // target = the text of body, through the filters of expr
    for_,          // for target in expr if test: body; otherwise
    if_,           // if expr: body; otherwise
    macro,         // id, signature, body
    call_block,    // expr is the call, signature and body are its caller
    filter_block,  // body through the filters of expr
    with,          // targets = exprs, for body
    block,         // body, which sees the outermost names only
    generation,    // body is what the model is to write
    break_,
    continue_,
  };
  Type type;
  int line;
  ExprPtr target, expr, test;
  std::vector<ExprPtr> targets, exprs;
  Body body, otherwise;
  Signature signature;
  int id = -1;
  bool recursive = false;
};

struct Program {
  Body body;
  std::vector<std::string> names;  // by id
  bool has_generation = false;
  int id_of(std::string_view name) const;  // -1: the program does not use the name
};

// Throws SyntaxFault for what Jinja refuses, and for {% extends %}, {% include %}, {% import %} and {% autoescape %}.
Program parse(std::string_view source);

}  // namespace sluice::jinja
