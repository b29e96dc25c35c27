// The methods of str, dict, list, tuple and float.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

// self.name(arguments)
struct Call {
  Interpreter& interpreter;
  const Value& self;
  std::string_view name;
  Arguments& arguments;

  Bound bind(std::initializer_list<std::string_view> parameters, size_t required) const {
    return {name, arguments, parameters, required};
  }
  const MarkedText& text() const { return self.text(); }
  Value give(MarkedText result) const { return interpreter.string(std::move(result)); }
  Value give(std::vector<MarkedText> parts) const {
    std::vector<Value> items;
    for (MarkedText& part : parts) items.push_back(interpreter.string(std::move(part)));
    interpreter.work(4 * static_cast<int64_t>(items.size()));
    return Value::list(std::move(items));
  }
};
using Method = Value (*)(const Call&);

template <MarkedText (*change)(const MarkedText&)>
Value changed(const Call& call) {
  call.bind({}, 0);
  return call.give(change(call.text()));
}

template <Side side>
Value stripped(const Call& call) {
  const Bound bound = call.bind({"chars"}, 0);
  if (!bound.has(0) || bound[0].is_none()) return call.give(strip(call.text(), side));
  return call.give(strip(call.text(), side, bound.text(0).text()));
}

template <bool from_right>
Value split_parts(const Call& call) {
  const Bound bound = call.bind({"sep", "maxsplit"}, 0);
  const int64_t most = bound.integer(1, -1);
  if (!bound.has(0) || bound[0].is_none()) return call.give(split_space(call.text(), most, from_right));
  const std::string& separator = bound.text(0).text();
  return call.give(from_right ? rsplit(call.text(), separator, most) : split(call.text(), separator, most));
}

// The part of the text that start and stop, arguments `at` and `at` + 1, leave; nothing where start lies past its end.
std::optional<std::pair<size_t, size_t>> bounds(const Call& call, const Bound& bound, size_t at) {
  const std::string& text = call.text().text();
  const bool from = bound.has(at) && !bound[at].is_none(), to = bound.has(at + 1) && !bound[at + 1].is_none();
  if (!from && !to) return std::pair<size_t, size_t>(0, text.size());
  const int64_t length = character_count(text);
  const auto place = [&](bool given, size_t i, int64_t otherwise) {
    if (!given) return otherwise;
    const int64_t index = bound.integer(i, 0);
    return std::max<int64_t>(0, index < 0 ? index + length : index);
  };
  const int64_t begin = place(from, at, 0), end = std::min(length, place(to, at + 1, length));
  if (begin > length || begin > end) return std::nullopt;
  return std::pair(byte_of_character(text, begin), byte_of_character(text, end));
}

template <bool at_start>
Value starts_or_ends(const Call& call) {
  const Bound bound = call.bind({"prefix", "start", "end"}, 1);
  const std::vector<Value> affixes = bound[0].is_list() && bound[0].list().kind == ListKind::tuple
                                         ? bound[0].list().items
                                         : std::vector<Value>{bound[0]};
  const auto part = bounds(call, bound, 1);
  for (const Value& affix : affixes) {
    need_defined(affix);
    if (!affix.is_string())
      type_error(fmt::format("{} first arg must be str or a tuple of str, not {}", call.name, type_name(affix)));
    if (!part) continue;
    const std::string_view text = std::string_view(call.text().text()).substr(part->first, part->second - part->first);
    if (at_start ? text.starts_with(affix.chars()) : text.ends_with(affix.chars())) return Value(true);
  }
  return Value(false);
}

template <bool from_right, bool must_be_there>
Value found(const Call& call) {
  const Bound bound = call.bind({"sub", "start", "end"}, 1);
  const std::string& part = bound.text(0).text();
  const auto range = bounds(call, bound, 1);
  const std::string_view text = call.text().text();
  size_t at = std::string_view::npos;
  if (range) {
    const std::string_view within = text.substr(0, range->second);
    at = from_right ? within.rfind(part) : within.find(part, range->first);
    if (at != std::string_view::npos && at < range->first) at = std::string_view::npos;
  }
  if (at != std::string_view::npos) return Value(character_count(text.substr(0, at)));
  if (must_be_there) raise("ValueError", "substring not found");
  return Value(int64_t{-1});
}

Value count_in_text(const Call& call) {
  const Bound bound = call.bind({"sub", "start", "end"}, 1);
  const std::string& part = bound.text(0).text();
  const auto range = bounds(call, bound, 1);
  if (!range) return Value(int64_t{0});
  const std::string_view text = std::string_view(call.text().text()).substr(range->first, range->second - range->first);
  if (part.empty()) return Value(character_count(text) + 1);
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return Value(count);
}

Value replaced(const Call& call) {
  const Bound bound = call.bind({"old", "new", "count"}, 2);
  const auto pieces = static_cast<int64_t>(call.text().size() + 1);
  call.interpreter.work(pieces / 8);
  return call.give(replace(call.text(), bound.text(0).text(), bound.text(1), bound.integer(2, -1)));
}

Value joined(const Call& call) {
  const Bound bound = call.bind({"iterable"}, 1);
  MarkedText out;
  const std::vector<Value> parts = iterate(bound[0]);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_string())
      type_error(fmt::format("sequence item {}: expected str instance, {} found", i, type_name(parts[i])));
    if (i > 0) out.append(call.text());
    out.append(parts[i].text());
    call.interpreter.work(static_cast<int64_t>(parts[i].text().size() + call.text().size()) / 8);
  }
  return call.give(std::move(out));
}

enum class Align : uint8_t { left, right, center };
template <Align align>
Value padded(const Call& call) {
  const Bound bound = call.bind({"width", "fillchar"}, 1);
  const MarkedText fill = bound.has(1) ? bound.text(1) : MarkedText(" ");
  if (character_count(fill.text()) != 1) type_error("The fill character must be exactly one character long");
  const int64_t width = bound.integer(0, 0),
                missing = std::max<int64_t>(0, width - character_count(call.text().text()));
  call.interpreter.work(missing);
  // str.center puts the odd one to the left where both the margin and the width are odd
  const int64_t before = align == Align::left    ? 0
                         : align == Align::right ? missing
                                                 : missing / 2 + (missing & width & 1);
  MarkedText out;
  for (int64_t i = 0; i < before; ++i) out.append(fill);
  out.append(call.text());
  for (int64_t i = before; i < missing; ++i) out.append(fill);
  return call.give(std::move(out));
}

Value zero_filled(const Call& call) {
  const Bound bound = call.bind({"width"}, 1);
  const int64_t missing = std::max<int64_t>(0, bound.integer(0, 0) - character_count(call.text().text()));
  call.interpreter.work(missing);
  const bool sign = call.text().text().starts_with('-') || call.text().text().starts_with('+');
  MarkedText out = call.text().slice(0, sign ? 1 : 0);
  out.append(std::string(static_cast<size_t>(missing), '0'));
  out.append(call.text(), sign ? 1 : 0, call.text().size());
  return call.give(std::move(out));
}

template <bool from_right>
Value partitioned(const Call& call) {
  const Bound bound = call.bind({"sep"}, 1);
  const MarkedText& text = call.text();
  const std::string& separator = bound.text(0).text();
  if (separator.empty()) raise("ValueError", "empty separator");
  const size_t at = from_right ? text.text().rfind(separator) : text.text().find(separator);
  const Value nothing = Value::string("");
  if (at == std::string::npos) {
    if (from_right) return Value::tuple({nothing, nothing, call.self});
    return Value::tuple({call.self, nothing, nothing});
  }
  return Value::tuple(
      {call.give(text.slice(0, at)), bound[0], call.give(text.slice(at + separator.size(), text.size()))});
}

template <bool prefix>
Value removed(const Call& call) {
  const Bound bound = call.bind({"affix"}, 1);
  const MarkedText& text = call.text();
  const std::string& affix = bound.text(0).text();
  if (affix.empty() || !(prefix ? text.text().starts_with(affix) : text.text().ends_with(affix))) return call.self;
  return call.give(prefix ? text.slice(affix.size(), text.size()) : text.slice(0, text.size() - affix.size()));
}

Value lines(const Call& call) {
  const Bound bound = call.bind({"keepends"}, 0);
  return call.give(splitlines(call.text(), bound.flag(0, false)));
}

Value expanded_tabs(const Call& call) {
  const Bound bound = call.bind({"tabsize"}, 0);
  const int64_t size = bound.integer(0, 8);
  MarkedText out;
  int64_t column = 0;
  for_each_character(call.text().text(), [&](size_t begin, size_t end) {
    const char c = call.text().text()[begin];
    if (c == '\t') {
      const int64_t missing = size > 0 ? size - column % size : 0;
      call.interpreter.work(missing);
      out.append(std::string(static_cast<size_t>(missing), ' '), call.text().origin_at(begin));
      column += missing;
    } else {
      out.append(call.text(), begin, end);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  });
  return call.give(std::move(out));
}

Value formatted(const Call& call) { return call.give(format_braces(call.interpreter, call.text(), call.arguments)); }

const std::unordered_map<std::string_view, Method>& text_methods() {
  static const std::unordered_map<std::string_view, Method> table = {
      {"upper", changed<upper>},
      {"lower", changed<lower>},
      {"casefold", changed<lower>},
      {"capitalize", changed<capitalize>},
      {"title", changed<title>},
      {"swapcase", changed<swapcase>},
      {"strip", stripped<Side::both>},
      {"lstrip", stripped<Side::left>},
      {"rstrip", stripped<Side::right>},
      {"split", split_parts<false>},
      {"rsplit", split_parts<true>},
      {"splitlines", lines},
      {"startswith", starts_or_ends<true>},
      {"endswith", starts_or_ends<false>},
      {"find", found<false, false>},
      {"rfind", found<true, false>},
      {"index", found<false, true>},
      {"rindex", found<true, true>},
      {"count", count_in_text},
      {"replace", replaced},
      {"join", joined},
      {"ljust", padded<Align::left>},
      {"rjust", padded<Align::right>},
      {"center", padded<Align::center>},
      {"zfill", zero_filled},
      {"partition", partitioned<false>},
      {"rpartition", partitioned<true>},
      {"removeprefix", removed<true>},
      {"removesuffix", removed<false>},
      {"expandtabs", expanded_tabs},
      {"format", formatted},
  };
  return table;
}

Value view(const Call& call, ListKind kind) {
  call.bind({}, 0);
  auto list = std::make_shared<List>();
  list->kind = kind;
  for (const auto& [key, value] : call.self.dict().entries)
    list->items.push_back(kind == ListKind::keys ? key : kind == ListKind::values ? value : Value::tuple({key, value}));
  list->depth = depth_of(list->items);
  call.interpreter.work(8 * static_cast<int64_t>(list->items.size()));
  return {Kind::list, std::move(list)};
}

Value get(const Call& call) {
  const Bound bound = call.bind({"key", "default"}, 1);
  const Value* value = call.self.dict().find(bound[0]);
  return value != nullptr ? *value : bound.value_or(1, {});
}

Value copy(const Call& call) {
  call.bind({}, 0);
  return call.self;
}

const std::unordered_map<std::string_view, Method>& dict_methods() {
  static const std::unordered_map<std::string_view, Method> table = {
      {"items", [](const Call& call) { return view(call, ListKind::items); }},
      {"keys", [](const Call& call) { return view(call, ListKind::keys); }},
      {"values", [](const Call& call) { return view(call, ListKind::values); }},
      {"get", get},
      {"copy", copy},
  };
  return table;
}

Value count_items(const Call& call) {
  const Bound bound = call.bind({"value"}, 1);
  const std::vector<Value>& items = call.self.list().items;
  return Value(std::count_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, bound[0]); }));
}

Value index_of_item(const Call& call) {
  const Bound bound = call.bind({"value"}, 1);
  const std::vector<Value>& items = call.self.list().items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& item) { return equal(item, bound[0]); });
  if (found == items.end()) raise("ValueError", fmt::format("{} is not in list", repr(bound[0]).text()));
  return Value(static_cast<int64_t>(found - items.begin()));
}

const std::unordered_map<std::string_view, Method>& list_methods() {
  static const std::unordered_map<std::string_view, Method> table = {
      {"count", count_items}, {"index", index_of_item}, {"copy", copy}};
  return table;
}

Method find_method(const Value& object, std::string_view name) {
  const auto in = [&](const std::unordered_map<std::string_view, Method>& table) -> Method {
    const auto found = table.find(name);
    return found == table.end() ? nullptr : found->second;
  };
  if (object.is_dict()) return in(dict_methods());
  if (object.is_list() && object.list().kind <= ListKind::tuple)
    return name == "copy" && object.list().kind == ListKind::tuple ? nullptr : in(list_methods());
  if (object.is_real() && name == "is_integer")
    return [](const Call& call) { return Value(std::floor(call.self.real()) == call.self.real()); };
  if (!object.is_string()) return nullptr;
  if (const Method method = in(text_methods())) return method;
  if (!text_is(name, "")) return nullptr;
  return [](const Call& call) { return Value(*text_is(call.name, call.text().text())); };
}

}  // namespace

bool is_method(const Value& object, std::string_view name) { return find_method(object, name) != nullptr; }

bool is_unsafe_method(const Value& object, std::string_view name) {
  static const std::unordered_set<std::string_view> of_lists = {"append", "clear", "pop",    "reverse",
                                                                "insert", "sort",  "extend", "remove"};
  static const std::unordered_set<std::string_view> of_dicts = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.is_dict()) return of_dicts.contains(name);
  return object.is_list() && object.list().kind == ListKind::list && of_lists.contains(name);
}

Value call_method(Interpreter& interpreter, const Value& object, std::string_view name, Arguments& arguments) {
  const Method method = find_method(object, name);
  if (object.is_string() && object.str().safe && name != "strip" && name != "lstrip" && name != "rstrip") {
    raise("UnsupportedError",
          fmt::format("'{}' of a text marked safe is not supported; chat templates write plain text", name));
  }
  return method({interpreter, object, name, arguments});
}

}  // namespace sluice::jinja
