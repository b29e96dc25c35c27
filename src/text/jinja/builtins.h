// The filters, tests, methods and functions that programs call by name.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/value.h"

namespace sluice::jinja {

class Interpreter;

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
// The first positional argument is the value before the bar or before `is`. RuntimeError for an unknown name.
Value call_filter(Interpreter& interpreter, std::string_view name, Arguments& arguments);
bool call_test(Interpreter& interpreter, std::string_view name, Arguments& arguments);

// object.name(arguments) for the methods of str, dict, list, tuple, int and float; nothing when there is no such method.
bool is_method(const Value& object, std::string_view name);
Value call_method(Interpreter& interpreter, const Value& object, std::string_view name, Arguments& arguments);
// Methods that Jinja's immutable sandbox refuses: append, pop, update …
bool is_unsafe_method(const Value& object, std::string_view name);

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now; nothing for another name.
std::optional<Value> find_function(std::string_view name);

// Python's `text % values` and text.format(…).
MarkedText format_percent(Interpreter& interpreter, const MarkedText& format, const Value& values);
MarkedText format_braces(Interpreter& interpreter, const MarkedText& format, const Arguments& arguments);

// json.dumps as transformers' filter calls it.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;  // what one level is indented by
  std::string item_separator = ", ", key_separator = ": ";
};
MarkedText to_json(const Value& value, const JsonStyle& style);
Value filter_tojson(Interpreter& interpreter, Arguments& arguments);

// Arguments sorted to parameters: Python's rules, and its words where they are broken.
class Bound {
 public:
  Bound(std::string_view function, Arguments& arguments, std::initializer_list<std::string_view> parameters,
        size_t required);
  bool has(size_t i) const { return values_[i].has_value(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  Value value_or(size_t i, Value otherwise) const { return has(i) ? *values_[i] : std::move(otherwise); }
  bool flag(size_t i, bool otherwise) const { return has(i) ? truthy(*values_[i]) : otherwise; }
  int64_t integer(size_t i, int64_t otherwise) const;
  const MarkedText& text(size_t i) const;  // TypeError for what is no string

 private:
  std::vector<std::optional<Value>> values_;
};

}  // namespace sluice::jinja
