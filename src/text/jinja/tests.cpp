// What stands after `is`.
#include <fmt/format.h>

#include <cmath>
#include <unordered_map>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

using Test = bool (*)(Arguments&);

const Value& only(std::string_view name, Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    type_error(
        fmt::format("test_{}() takes 1 positional argument but {} were given", name, arguments.positional.size()));
  return arguments.positional[0];
}

const Value& other(std::string_view name, Arguments& arguments) {
  if (arguments.positional.size() + arguments.named.size() != 2)
    type_error(
        fmt::format("test_{}() takes 2 positional arguments but {} were given", name, arguments.positional.size()));
  return arguments.positional.size() == 2 ? arguments.positional[1] : arguments.named[0].second;
}

// value % number == rest, as Python computes it.
bool leaves(const Value& value, const Value& number, int64_t rest) {
  need_defined(value), need_defined(number);
  if (!value.is_number() || !number.is_number()) {
    if (value.is_string()) type_error("not all arguments converted during string formatting");
    type_error(fmt::format("unsupported operand type(s) for %: '{}' and '{}'", type_name(value), type_name(number)));
  }
  if (number.real() == 0) raise("ZeroDivisionError", "integer modulo by zero");
  if (value.is_whole() && number.is_whole()) {
    if (number.integer() == -1) return rest == 0;
    const int64_t remainder = value.integer() % number.integer();
    return (remainder != 0 && (remainder < 0) != (number.integer() < 0) ? remainder + number.integer() : remainder) ==
           rest;
  }
  double remainder = std::fmod(value.real(), number.real());
  if (remainder != 0 && (remainder < 0) != (number.real() < 0)) remainder += number.real();
  return remainder == static_cast<double>(rest);
}

template <int wanted, bool or_equal>
bool ordered(Arguments& arguments) {
  const int order = compare(arguments.positional.at(0), other("compare", arguments), wanted < 0 ? "<" : ">");
  return order == wanted || (or_equal && order == 0);
}
bool equals(Arguments& a) { return equal(a.positional[0], other("eq", a)); }
bool differs(Arguments& a) { return !equal(a.positional[0], other("ne", a)); }
bool is_none(Arguments& a) { return only("none", a).is_none(); }

const std::unordered_map<std::string_view, Test>& tests() {
  static const std::unordered_map<std::string_view, Test> table = {
      {"odd", [](Arguments& a) { return leaves(only("odd", a), Value(int64_t{2}), 1); }},
      {"even", [](Arguments& a) { return leaves(only("even", a), Value(int64_t{2}), 0); }},
      {"divisibleby", [](Arguments& a) { return leaves(a.positional[0], other("divisibleby", a), 0); }},
      {"defined", [](Arguments& a) { return !only("defined", a).is_undefined(); }},
      {"undefined", [](Arguments& a) { return only("undefined", a).is_undefined(); }},
      {"filter", [](Arguments& a) { return only("filter", a).is_string() && is_filter(a.positional[0].chars()); }},
      {"test", [](Arguments& a) { return only("test", a).is_string() && is_test(a.positional[0].chars()); }},
      {"none", is_none},
      {"boolean", [](Arguments& a) { return only("boolean", a).is_boolean(); }},
      {"false", [](Arguments& a) { return only("false", a).is_boolean() && !truthy(a.positional[0]); }},
      {"true", [](Arguments& a) { return only("true", a).is_boolean() && truthy(a.positional[0]); }},
      {"integer", [](Arguments& a) { return only("integer", a).is_integer(); }},
      {"float", [](Arguments& a) { return only("float", a).is_real(); }},
      {"lower", [](Arguments& a) { return *text_is("islower", to_text(only("lower", a)).text()); }},
      {"upper", [](Arguments& a) { return *text_is("isupper", to_text(only("upper", a)).text()); }},
      {"string", [](Arguments& a) { return only("string", a).is_string(); }},
      {"mapping", [](Arguments& a) { return only("mapping", a).is_dict(); }},
      {"number", [](Arguments& a) { return only("number", a).is_number(); }},
      {"sequence",
       [](Arguments& a) {
         const Value& value = only("sequence", a);
         return value.is_string() || value.is_dict() || value.is_undefined() ||
                (value.is_list() && (value.list().kind <= ListKind::tuple || value.list().kind == ListKind::range));
       }},
      {"iterable",
       [](Arguments& a) {
         const Kind kind = only("iterable", a).kind();
         return kind == Kind::string || kind == Kind::list || kind == Kind::dict || kind == Kind::undefined;
       }},
      {"callable",
       [](Arguments& a) { return only("callable", a).kind() == Kind::callable || a.positional[0].is_undefined(); }},
      {"sameas", [](Arguments& a) { return identical(a.positional[0], other("sameas", a)); }},
      {"escaped", [](Arguments& a) { return only("escaped", a).is_string() && a.positional[0].str().safe; }},
      {"in", [](Arguments& a) { return contains(other("in", a), a.positional[0]); }},
      {"==", equals},
      {"eq", equals},
      {"equalto", equals},
      {"!=", differs},
      {"ne", differs},
      {">", ordered<1, false>},
      {"gt", ordered<1, false>},
      {"greaterthan", ordered<1, false>},
      {">=", ordered<1, true>},
      {"ge", ordered<1, true>},
      {"<", ordered<-1, false>},
      {"lt", ordered<-1, false>},
      {"lessthan", ordered<-1, false>},
      {"<=", ordered<-1, true>},
      {"le", ordered<-1, true>},
  };
  return table;
}

}  // namespace

bool is_test(std::string_view name) { return tests().contains(name); }

bool call_test(Interpreter&, std::string_view name, Arguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) raise("TemplateRuntimeError", fmt::format("No test named '{}'.", name));
  return found->second(arguments);
}

}  // namespace sluice::jinja
