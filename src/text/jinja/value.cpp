#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

constexpr size_t indexed_from = 12;

int32_t depth_over(int32_t depth, const Value& value) {
  if (value.object() != nullptr) depth = std::max(depth, value.object()->depth + 1);
  if (depth > max_value_depth) raise("RecursionError", "values are nested too deeply");
  return depth;
}

Value make_list(ListKind kind, std::vector<Value> items) {
  auto list = std::make_shared<List>();
  list->kind = kind;
  list->depth = depth_of(items);
  list->items = std::move(items);
  return {Kind::list, std::move(list)};
}

// Equal keys have equal texts: 1, 1.0 and True are one key.
std::string key_text(const Value& key) {
  switch (key.kind()) {
    case Kind::none: return "N";
    case Kind::boolean:
    case Kind::integer: return "i" + std::to_string(key.integer());
    case Kind::real: {
      const double real = key.real();
      if (real == std::floor(real) && std::fabs(real) < 9e18) return "i" + std::to_string(static_cast<int64_t>(real));
      return "f" + repr_number(real);
    }
    case Kind::string: return "s" + key.chars();
    case Kind::list:
      if (key.list().kind == ListKind::tuple) {
        std::string text = "(";
        for (const Value& item : key.list().items) {
          const std::string part = key_text(item);
          text += std::to_string(part.size()) + ":" + part;
        }
        return text;
      }
      if (key.list().kind == ListKind::list) break;
      return fmt::format("p{}", static_cast<const void*>(key.object()));
    case Kind::dict: break;
    case Kind::undefined: return "U";
    default: return fmt::format("p{}", static_cast<const void*>(key.object()));
  }
  type_error(fmt::format("unhashable type: '{}'", type_name(key)));
}

bool equal_lists(const List& a, const List& b) {
  if (a.kind != b.kind || a.kind == ListKind::generator) return &a == &b;
  return std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [](const Value& x, const Value& y) { return equal(x, y); });
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  return std::all_of(a.entries.begin(), a.entries.end(), [&](const auto& entry) {
    const Value* other = b.find(entry.first);
    return other != nullptr && equal(entry.second, *other);
  });
}

void repr_items(MarkedText& out, const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    out.append(repr(items[i]));
  }
}

MarkedText repr_list(const List& list) {
  static constexpr const char* open[] = {"[", "(", "", "", "dict_keys([", "dict_values([", "dict_items(["};
  static constexpr const char* close[] = {"]", ")", "", "", "])", "])", "])"};
  MarkedText out;
  if (list.kind == ListKind::generator) {
    out.append("<generator object>");
    return out;
  }
  if (list.kind == ListKind::range) {
    const auto n = static_cast<int64_t>(list.items.size());
    const int64_t first = n > 0 ? list.items[0].integer() : 0;
    const int64_t step = n > 1 ? list.items[1].integer() - first : 1;
    out.append(fmt::format("range({}, {}{})", first, first + n * step, step != 1 ? fmt::format(", {}", step) : ""));
    return out;
  }
  const auto kind = static_cast<size_t>(list.kind);
  out.append(open[kind]);
  repr_items(out, list.items);
  if (list.kind == ListKind::tuple && list.items.size() == 1) out.append(",");
  out.append(close[kind]);
  return out;
}

MarkedText repr_dict(const Dict& dict) {
  MarkedText out("{");
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out.append(", ");
    out.append(repr(dict.entries[i].first));
    out.append(": ");
    out.append(repr(dict.entries[i].second));
  }
  out.append("}");
  return out;
}

}  // namespace

int32_t depth_of(const std::vector<Value>& items) {
  int32_t depth = 0;
  for (const Value& item : items) depth = depth_over(depth, item);
  return depth;
}

void raise(std::string type, std::string message) { throw Raised{std::move(type), std::move(message)}; }

Value Value::string(MarkedText text) {
  auto str = std::make_shared<Str>();
  str->text = std::move(text);
  return {Kind::string, std::move(str)};
}
Value Value::markup(MarkedText text) {
  auto str = std::make_shared<Str>();
  str->text = std::move(text);
  str->safe = true;
  return {Kind::string, std::move(str)};
}
Value Value::list(std::vector<Value> items) { return make_list(ListKind::list, std::move(items)); }
Value Value::tuple(std::vector<Value> items) { return make_list(ListKind::tuple, std::move(items)); }
Value Value::generator(std::vector<Value> items) { return make_list(ListKind::generator, std::move(items)); }
Value Value::dict(std::shared_ptr<const Dict> dict) { return {Kind::dict, std::move(dict)}; }
Value Value::undefined(std::string message, std::string type) {
  auto undefined = std::make_shared<Undefined>();
  undefined->message = std::move(message);
  undefined->type = std::move(type);
  return {Kind::undefined, std::move(undefined)};
}
Value Value::callable(std::shared_ptr<const Callable> callable) { return {Kind::callable, std::move(callable)}; }

const Str& Value::str() const { return static_cast<const Str&>(*object_); }
const MarkedText& Value::text() const { return str().text; }
const std::string& Value::chars() const { return str().text.text(); }
const List& Value::list() const { return static_cast<const List&>(*object_); }
const Dict& Value::dict() const { return static_cast<const Dict&>(*object_); }
const Callable& Value::callable() const { return static_cast<const Callable&>(*object_); }

const Value* Dict::find(std::string_view key) const {
  if (entries.size() >= indexed_from) {
    const auto found = index_.find("s" + std::string(key));
    return found == index_.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (name.is_string() && name.chars() == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.chars()));
  const std::string text = key_text(key);
  if (entries.size() >= indexed_from) {
    const auto found = index_.find(text);
    return found == index_.end() ? nullptr : &entries[found->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (!name.is_string() && key_text(name) == text) return &value;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  depth = depth_over(depth, value);
  if (const Value* found = find(key)) {
    const_cast<Value&>(*found) = std::move(value);
    return;
  }
  if (entries.size() + 1 == indexed_from) {
    for (size_t i = 0; i < entries.size(); ++i) index_[key_text(entries[i].first)] = i;
  }
  if (entries.size() + 1 >= indexed_from) index_[key_text(key)] = entries.size();
  entries.emplace_back(std::move(key), std::move(value));
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean:
    case Kind::integer: return value.integer() != 0;
    case Kind::real: return value.real() != 0;
    case Kind::string: return value.text().size() > 0;
    case Kind::list: return value.list().kind == ListKind::generator || !value.list().items.empty();
    case Kind::dict: return !value.dict().entries.empty();
    default: return true;
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return a.integer() == b.integer();
    return a.real() == b.real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::string: return a.chars() == b.chars();
    case Kind::list: return equal_lists(a.list(), b.list());
    case Kind::dict: return equal_dicts(a.dict(), b.dict());
    case Kind::none:
    case Kind::undefined: return true;
    default: return a.object() == b.object();
  }
}

bool identical(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_number() || a.is_none()) return equal(a, b);
  if (a.is_string()) return a.chars() == b.chars();  // CPython shares most short strings
  return a.object() == b.object();
}

int compare(const Value& a, const Value& b, const char* sign) {
  need_defined(a), need_defined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
    const double x = a.real(), y = b.real();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  if (a.is_string() && b.is_string()) {
    const int order = a.chars().compare(b.chars());  // UTF-8 sorts as its code points do
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is_list() && b.is_list() && a.list().kind == b.list().kind && a.list().kind <= ListKind::tuple) {
    const std::vector<Value>&x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equal(x[i], y[i])) return compare(x[i], y[i], sign);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  type_error(fmt::format("'{}' not supported between instances of '{}' and '{}'", sign, type_name(a), type_name(b)));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string())
      type_error(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    return container.chars().find(item.chars()) != std::string::npos;
  }
  if (container.is_dict()) return container.dict().find(item) != nullptr;
  if (!container.is_list() && !container.is_undefined())
    type_error(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  const std::vector<Value> items = iterate(container);
  return std::any_of(items.begin(), items.end(), [&](const Value& value) { return equal(value, item); });
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "NoneType";
    case Kind::boolean: return "bool";
    case Kind::integer: return "int";
    case Kind::real: return "float";
    case Kind::string: return value.str().safe ? "Markup" : "str";
    case Kind::dict: return "dict";
    case Kind::name_space: return "TemplateNamespace";
    case Kind::callable: return "function";
    case Kind::list: break;
  }
  static constexpr std::string_view names[] = {"list",      "tuple",       "generator", "range",
                                               "dict_keys", "dict_values", "dict_items"};
  return names[static_cast<size_t>(value.list().kind)];
}

std::string describe_type(const Value& value) {
  if (value.is_none()) return "None";
  if (value.kind() == Kind::name_space)
    return "transformers.utils.chat_template_utils._cached_compile_jinja_template.<locals>.TemplateNamespace object";
  return std::string(type_name(value)) + " object";
}

std::string repr_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const bool negative = text.front() == '-';
  if (negative) text.remove_prefix(1);
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  std::string out = negative ? "-" : "";
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (exponent + 1 >= count) return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return out + digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<size_t>(exponent + 1));
}

MarkedText repr(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined: return MarkedText("Undefined");
    case Kind::none: return MarkedText("None");
    case Kind::boolean: return MarkedText(value.integer() != 0 ? "True" : "False");
    case Kind::integer: return MarkedText(std::to_string(value.integer()));
    case Kind::real: return MarkedText(repr_number(value.real()));
    case Kind::string: {
      if (!value.str().safe) return repr_text(value.text());
      MarkedText out("Markup(");
      out.append(repr_text(value.text()));
      out.append(")");
      return out;
    }
    case Kind::list: return repr_list(value.list());
    case Kind::dict: return repr_dict(value.dict());
    case Kind::name_space: return MarkedText("<Namespace>");
    case Kind::callable: return MarkedText(value.callable().describe());
  }
  return {};
}

MarkedText to_text(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return {};
  return repr(value);
}

std::vector<Value> iterate(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_list()) {
    const List& list = value.list();
    if (list.kind == ListKind::generator && std::exchange(list.spent, true)) return {};
    return list.items;
  }
  std::vector<Value> items;
  if (value.is_dict()) {
    for (const auto& entry : value.dict().entries) items.push_back(entry.first);
    return items;
  }
  if (value.is_string()) {
    for_each_character(value.chars(), [&](size_t begin, size_t end) {
      items.push_back(Value::string(value.text().slice(begin, end)));
    });
    return items;
  }
  type_error(fmt::format("'{}' object is not iterable", type_name(value)));
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return character_count(value.chars());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries.size());
  if (value.is_list() && value.list().kind != ListKind::generator)
    return static_cast<int64_t>(value.list().items.size());
  type_error(fmt::format("object of type '{}' has no len()", type_name(value)));
}

void fail_undefined(const Value& value) {
  const auto& undefined = static_cast<const Undefined&>(*value.object());
  raise(undefined.type, undefined.message);
}

}  // namespace sluice::jinja
