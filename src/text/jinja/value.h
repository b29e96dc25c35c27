// The values of a template program: Python's None, bool, int, float, str, list, tuple, dict, and Jinja's Undefined.
//
//   Value v = Value::string("a");  v.is_string();  to_text(v).text() == "a";  repr(v) == "'a'"
//   equal(Value(1), Value(1.0));   truthy(Value::list({}))  == false
//
// A Value is a handle to immutable data (only a Namespace changes), so copies are cheap. Dicts keep the order of insertion. What
// Python would raise is thrown as a Raised: its type and its words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/marked_text.h"

namespace sluice::jinja {

// What stops a program: the type and the words of Python's or Jinja's exception.
struct Raised {
  std::string type, message;
};
[[noreturn]] void raise(std::string type, std::string message);
[[noreturn]] inline void type_error(std::string message) { raise("TypeError", std::move(message)); }

enum class Kind : uint8_t { undefined, none, boolean, integer, real, string, list, dict, name_space, callable };

// Everything that lies behind a handle. `depth` bounds how deep values nest, so that walking and freeing them needs a bounded stack.
struct Object {
  virtual ~Object() = default;
  int32_t depth = 0;
};
inline constexpr int32_t max_value_depth = 500;
int32_t depth_of(const std::vector<class Value>& items);  // of what holds these. RecursionError past the limit

struct Str;
struct List;
struct Dict;
struct Namespace;
class Callable;

class Value {
 public:
  Value() : kind_(Kind::none) {}
  Value(bool value) : kind_(Kind::boolean) { number_.integer = value ? 1 : 0; }
  Value(int64_t value) : kind_(Kind::integer) { number_.integer = value; }
  Value(double value) : kind_(Kind::real) { number_.real = value; }
  Value(Kind kind, std::shared_ptr<const Object> object) : kind_(kind), object_(std::move(object)) {}
  Value(const char*) = delete;  // would become a bool

  static Value string(MarkedText text);
  static Value string(std::string text) { return string(MarkedText(std::move(text))); }
  static Value markup(MarkedText text);  // marked safe: `+` escapes what it is joined with
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value generator(std::vector<Value> items);  // what map, select, items … give: always true, read once
  static Value dict(std::shared_ptr<const Dict> dict);
  static Value undefined(std::string message, std::string type = "UndefinedError");
  static Value callable(std::shared_ptr<const Callable> callable);

  Kind kind() const { return kind_; }
  bool is_undefined() const { return kind_ == Kind::undefined; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_boolean() const { return kind_ == Kind::boolean; }
  bool is_integer() const { return kind_ == Kind::integer; }  // not a bool
  bool is_whole() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }
  bool is_real() const { return kind_ == Kind::real; }
  bool is_number() const { return is_whole() || is_real(); }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_list() const { return kind_ == Kind::list; }
  bool is_dict() const { return kind_ == Kind::dict; }

  int64_t integer() const { return number_.integer; }  // of an int or a bool
  double real() const { return kind_ == Kind::real ? number_.real : static_cast<double>(number_.integer); }
  const Str& str() const;
  const MarkedText& text() const;    // of a string
  const std::string& chars() const;  // of a string
  const List& list() const;
  const Dict& dict() const;
  const Callable& callable() const;
  const Object* object() const { return object_.get(); }
  const std::shared_ptr<const Object>& handle() const { return object_; }

 private:
  Kind kind_;
  union {
    int64_t integer;
    double real;
  } number_ = {0};
  std::shared_ptr<const Object> object_;
};

struct Str final : Object {
  MarkedText text;
  bool safe = false;  // Markup
  bool call_arguments =
      false;  // the arguments of a tool call, which some templates want as text and others as an object
};

enum class ListKind : uint8_t { list, tuple, generator, range, keys, values, items };

struct List final : Object {
  ListKind kind = ListKind::list;
  std::vector<Value> items;
  mutable bool spent = false;  // of a generator: read once
};

struct Dict final : Object {
  std::vector<std::pair<Value, Value>> entries;
  int32_t message = -1;         // the index of the message this is
  bool call_arguments = false;  // as in Str

  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;  // TypeError for a key that cannot be hashed
  void set(Value key, Value value);

 private:
  std::unordered_map<std::string, size_t> index_;  // once there are many
};

struct Namespace final : Object {
  mutable Dict attributes;
};

struct Undefined final : Object {
  std::string message, type;
};

class Interpreter;
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Callable : public Object {
 public:
  virtual std::string describe() const = 0;  // as Python prints it
  virtual Value call(Interpreter& interpreter, Arguments& arguments) const = 0;
  virtual std::optional<Value> attribute(Interpreter&, std::string_view) const { return std::nullopt; }
};

bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
bool identical(const Value& a, const Value& b);
int compare(const Value& a, const Value& b, const char* sign);  // <0, 0, >0; 2: unordered (NaN). TypeError across types
bool contains(const Value& container, const Value& item);       // item in container
std::string_view type_name(const Value& value);                 // str, int, NoneType …
std::string describe_type(const Value& value);                  // as Jinja's messages name it: None, "dict object"
std::string repr_number(double value);                          // Python's repr of a float
MarkedText repr(const Value& value);
MarkedText to_text(const Value& value);        // Python's str()
MarkedText repr_text(const MarkedText& text);  // a string with quotes and escapes

// The items that a for loop walks: of lists, keys of a dict, characters of a string. TypeError for what cannot be walked.
std::vector<Value> iterate(const Value& value);
int64_t length_of(const Value& value);
[[noreturn]] void fail_undefined(const Value& value);
inline void need_defined(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
}

}  // namespace sluice::jinja
