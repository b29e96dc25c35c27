// Filters on lists, dicts and what else can be walked.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "text/jinja/filters.h"
#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

// What the argument `attribute` names in an item: "a.b.0".
class AttributePath {
 public:
  AttributePath(Interpreter& interpreter, const Value& attribute) : interpreter_(interpreter) {
    if (attribute.is_none()) return;
    if (!attribute.is_string()) {
      parts_.push_back(attribute);
      return;
    }
    for (const MarkedText& part : split(attribute.text(), ".", -1)) {
      int64_t index = 0;
      const bool number = *text_is("isdigit", part.text());
      for (char c : part.text()) index = number ? std::min<int64_t>(index * 10 + (c - '0'), 1 << 30) : 0;
      parts_.push_back(number ? Value(index) : Value::string(part.text()));
    }
  }

  Value of(Value item, const Value* otherwise = nullptr) const {
    for (const Value& part : parts_) {
      item = interpreter_.item(item, part);
      if (otherwise != nullptr && item.is_undefined()) item = *otherwise;
    }
    return item;
  }

 private:
  Interpreter& interpreter_;
  std::vector<Value> parts_;
};

Value without_case(const Value& value) { return value.is_string() ? Value::string(lower(value.text())) : value; }

// Iterates, and counts the items as work.
std::vector<Value> items_of(Interpreter& i, const Value& value) {
  std::vector<Value> items = iterate(value);
  i.work(2 * static_cast<int64_t>(items.size()));
  return items;
}

bool less(const Value& a, const Value& b) { return compare(a, b, "<") < 0; }

// Stable, by keys; descending keeps the order of equals too.
std::vector<Value> sorted(const std::vector<Value>& items, const std::vector<Value>& keys, bool descending) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return descending ? less(keys[b], keys[a]) : less(keys[a], keys[b]); });
  std::vector<Value> result;
  for (size_t at : order) result.push_back(items[at]);
  return result;
}

Value sort(Interpreter& i, Arguments& a) {
  const Bound bound("do_sort", a, {"value", "reverse", "case_sensitive", "attribute"}, 1);
  std::vector<AttributePath> paths;
  const Value attribute = bound.value_or(3, {});
  if (attribute.is_string()) {
    for (const MarkedText& path : split(attribute.text(), ",", -1)) paths.emplace_back(i, Value::string(path));
  } else {
    paths.emplace_back(i, attribute);
  }
  const std::vector<Value> items = items_of(i, bound[0]);
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const AttributePath& path : paths)
      key.push_back(bound.flag(2, false) ? path.of(item) : without_case(path.of(item)));
    keys.push_back(Value::list(std::move(key)));
  }
  i.work(20 * static_cast<int64_t>(items.size()));
  return Value::list(sorted(items, keys, bound.flag(1, false)));
}

Value dictsort(Interpreter& i, Arguments& a) {
  const Bound bound("do_dictsort", a, {"value", "case_sensitive", "by", "reverse"}, 1);
  const std::string by = bound.has(2) ? bound.text(2).text() : "key";
  if (by != "key" && by != "value") raise("FilterArgumentError", "You can only sort by either \"key\" or \"value\"");
  need_defined(bound[0]);
  if (!bound[0].is_dict())
    raise("AttributeError", fmt::format("'{}' object has no attribute 'items'", type_name(bound[0])));
  std::vector<Value> pairs, keys;
  for (const auto& [key, value] : bound[0].dict().entries) {
    const Value& part = by == "key" ? key : value;
    keys.push_back(bound.flag(1, false) ? part : without_case(part));
    pairs.push_back(Value::tuple({key, value}));
  }
  i.work(20 * static_cast<int64_t>(pairs.size()));
  return Value::list(sorted(pairs, keys, bound.flag(3, false)));
}

Value unique(Interpreter& i, Arguments& a) {
  const Bound bound("do_unique", a, {"value", "case_sensitive", "attribute"}, 1);
  const AttributePath path(i, bound.value_or(2, {}));
  Dict seen;
  std::vector<Value> kept;
  for (const Value& item : items_of(i, bound[0])) {
    const Value key = bound.flag(1, false) ? path.of(item) : without_case(path.of(item));
    if (seen.find(key) != nullptr) continue;
    seen.set(key, Value());
    kept.push_back(item);
  }
  return Value::generator(std::move(kept));
}

template <bool largest>
Value extreme(Interpreter& i, Arguments& a) {
  const Bound bound("do_minmax", a, {"value", "case_sensitive", "attribute"}, 1);
  const AttributePath path(i, bound.value_or(2, {}));
  const std::vector<Value> items = items_of(i, bound[0]);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& item) {
    return bound.flag(1, false) ? path.of(item) : without_case(path.of(item));
  };
  Value best = items[0], best_key = key(items[0]);
  for (size_t at = 1; at < items.size(); ++at) {
    const Value now = key(items[at]);
    if (largest ? less(best_key, now) : less(now, best_key)) best = items[at], best_key = now;
  }
  return best;
}

Value group_by(Interpreter& i, Arguments& a) {
  const Bound bound("do_groupby", a, {"value", "attribute", "default", "case_sensitive"}, 2);
  const AttributePath path(i, bound[1]);
  const Value otherwise = bound.value_or(2, {});
  const Value* fallback = otherwise.is_none() ? nullptr : &otherwise;
  const std::vector<Value> items = items_of(i, bound[0]);
  std::vector<Value> keys, groups, group;
  const auto key_of = [&](const Value& item) {
    const Value key = path.of(item, fallback);
    return bound.flag(3, false) ? key : without_case(key);
  };
  for (const Value& item : items) keys.push_back(key_of(item));
  const std::vector<Value> ordered = sorted(items, keys, false);
  for (size_t at = 0; at < ordered.size(); ++at) {
    group.push_back(ordered[at]);
    if (at + 1 < ordered.size() && equal(key_of(ordered[at]), key_of(ordered[at + 1]))) continue;
    const Value name = path.of(group[0], fallback);
    groups.push_back(Value::tuple({name, Value::list(std::exchange(group, {}))}));
  }
  return Value::list(std::move(groups));
}

Value join(Interpreter& i, Arguments& a) {
  const Bound bound("do_join", a, {"value", "d", "attribute"}, 1);
  const MarkedText separator = bound.has(1) ? to_text(bound[1]) : MarkedText();
  const AttributePath path(i, bound.value_or(2, {}));
  MarkedText out;
  bool first = true;
  for (const Value& item : items_of(i, bound[0])) {
    if (!std::exchange(first, false)) out.append(separator);
    const Value value = path.of(item);
    i.note_printed(value);
    const size_t before = out.size();
    out.append(to_text(value));
    i.work(static_cast<int64_t>(out.size() - before + separator.size()) / 8);
  }
  return i.string(std::move(out));
}

Value first(Interpreter& i, Arguments& a) {
  const Bound bound("do_first", a, {"seq"}, 1);
  const std::vector<Value> items = items_of(i, bound[0]);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(Interpreter& i, Arguments& a) {
  const Bound bound("do_last", a, {"seq"}, 1);
  if (bound[0].is_list() && bound[0].list().kind == ListKind::generator)
    type_error("'generator' object is not reversible");
  const std::vector<Value> items = items_of(i, bound[0]);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value length(Interpreter&, Arguments& a) {
  const Bound bound("len", a, {"obj"}, 1);
  return Value(length_of(bound[0]));
}

Value list(Interpreter& i, Arguments& a) {
  const Bound bound("list", a, {"value"}, 1);
  return Value::list(items_of(i, bound[0]));
}

Value items(Interpreter& i, Arguments& a) {
  const Bound bound("do_items", a, {"value"}, 1);
  if (bound[0].is_undefined()) return Value::generator({});
  if (!bound[0].is_dict()) type_error("Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  for (const auto& [key, value] : bound[0].dict().entries) pairs.push_back(Value::tuple({key, value}));
  i.work(8 * static_cast<int64_t>(pairs.size()));
  return Value::generator(std::move(pairs));
}

Value reverse(Interpreter& i, Arguments& a) {
  const Bound bound("do_reverse", a, {"value"}, 1);
  if (bound[0].is_string()) return i.string(slice_text(bound[0].text(), {.step = -1}));
  if (!bound[0].is_list() && !bound[0].is_dict() && !bound[0].is_undefined())
    raise("FilterArgumentError", "argument must be iterable");
  std::vector<Value> reversed = items_of(i, bound[0]);
  std::reverse(reversed.begin(), reversed.end());
  return Value::generator(std::move(reversed));
}

// Python's a + b for sums: of numbers, and what the start is.
Value sum(Interpreter& i, Arguments& a) {
  const Bound bound("do_sum", a, {"iterable", "attribute", "start"}, 1);
  const AttributePath path(i, bound.value_or(1, {}));
  Value total = bound.value_or(2, Value(int64_t{0}));
  for (const Value& item : items_of(i, bound[0])) total = i.add(total, path.of(item));
  return total;
}

Value map(Interpreter& i, Arguments& a) {
  const Value value = std::move(a.positional[0]);
  std::vector<Value> results;
  if (a.positional.size() == 1 && !a.named.empty() &&
      std::any_of(a.named.begin(), a.named.end(), [](const auto& n) { return n.first == "attribute"; })) {
    Arguments named{.positional = {}, .named = std::move(a.named)};
    const Bound bound("map", named, {"attribute", "default"}, 1);
    const AttributePath path(i, bound[0]);
    const Value otherwise = bound.value_or(1, {});
    for (const Value& item : items_of(i, value))
      results.push_back(path.of(item, otherwise.is_none() ? nullptr : &otherwise));
    return Value::generator(std::move(results));
  }
  if (a.positional.size() < 2) raise("FilterArgumentError", "map requires a filter argument");
  need_defined(a.positional[1]);
  const std::string name = to_text(a.positional[1]).text();
  for (const Value& item : items_of(i, value)) {
    Arguments call{.positional = {item}, .named = a.named};
    call.positional.insert(call.positional.end(), a.positional.begin() + 2, a.positional.end());
    results.push_back(call_filter(i, name, call));
  }
  return Value::generator(std::move(results));
}

template <bool keep, bool by_attribute>
Value selected(Interpreter& i, Arguments& a) {
  const Value value = a.positional[0];
  size_t rest = 1;
  if (by_attribute && a.positional.size() < 2) raise("FilterArgumentError", "Missing parameter for attribute name");
  const AttributePath path(i, by_attribute ? a.positional[rest++] : Value());
  const bool tested = a.positional.size() > rest;
  const std::string name = tested ? to_text(a.positional[rest++]).text() : "";
  std::vector<Value> kept;
  if (!truthy(value)) return Value::generator({});
  for (const Value& item : items_of(i, value)) {
    const Value subject = path.of(item);
    bool holds = !tested && truthy(subject);
    if (tested) {
      Arguments call{.positional = {subject}, .named = a.named};
      call.positional.insert(call.positional.end(), a.positional.begin() + static_cast<int64_t>(rest),
                             a.positional.end());
      holds = call_test(i, name, call);
    }
    if (holds == keep) kept.push_back(item);
  }
  return Value::generator(std::move(kept));
}

Value batch(Interpreter& i, Arguments& a) {
  const Bound bound("do_batch", a, {"value", "linecount", "fill_with"}, 2);
  const int64_t count = bound.integer(1, 1);
  std::vector<Value> rows, row;
  for (const Value& item : items_of(i, bound[0])) {
    if (static_cast<int64_t>(row.size()) == count) rows.push_back(Value::list(std::exchange(row, {})));
    row.push_back(item);
  }
  const Value fill = bound.value_or(2, {});
  if (!row.empty() && !fill.is_none() && static_cast<int64_t>(row.size()) < count) {
    i.work(4 * count);
    row.resize(static_cast<size_t>(count), fill);
  }
  if (!row.empty()) rows.push_back(Value::list(std::move(row)));
  return Value::generator(std::move(rows));
}

Value slice(Interpreter& i, Arguments& a) {
  const Bound bound("do_slice", a, {"value", "slices", "fill_with"}, 2);
  const std::vector<Value> items = items_of(i, bound[0]);
  const int64_t slices = bound.integer(1, 1), length = static_cast<int64_t>(items.size());
  if (slices == 0) raise("ZeroDivisionError", "integer division or modulo by zero");
  const int64_t each = slices < 0 ? 0 : length / slices, longer = slices < 0 ? 0 : length % slices;
  const Value fill = bound.value_or(2, {});
  std::vector<Value> columns;
  int64_t offset = 0;
  for (int64_t column = 0; column < slices; ++column) {
    i.work(64);  // a list of its own, so that the limit of work holds memory too
    const int64_t start = offset + column * each;
    if (column < longer) ++offset;
    std::vector<Value> part(items.begin() + start, items.begin() + offset + (column + 1) * each);
    if (!fill.is_none() && column >= longer) part.push_back(fill);
    columns.push_back(Value::list(std::move(part)));
  }
  return Value::generator(std::move(columns));
}

const FilterTable& filters() {
  static const FilterTable table = [] {
    FilterTable all;
    add_value_filters(all);
    add_sequence_filters(all);
    return all;
  }();
  return table;
}

// Filters of Jinja that chat templates have no use for; asked for, they are refused by name.
constexpr std::string_view unsupported[] = {"filesizeformat", "forceescape", "pprint",   "random",
                                            "striptags",      "urlize",      "wordwrap", "xmlattr"};

}  // namespace

void add_sequence_filters(FilterTable& table) {
  const std::pair<std::string_view, Filter> filters[] = {{"batch", batch},
                                                         {"count", length},
                                                         {"dictsort", dictsort},
                                                         {"first", first},
                                                         {"groupby", group_by},
                                                         {"items", items},
                                                         {"join", join},
                                                         {"last", last},
                                                         {"length", length},
                                                         {"list", list},
                                                         {"map", map},
                                                         {"max", extreme<true>},
                                                         {"min", extreme<false>},
                                                         {"reject", selected<false, false>},
                                                         {"rejectattr", selected<false, true>},
                                                         {"reverse", reverse},
                                                         {"select", selected<true, false>},
                                                         {"selectattr", selected<true, true>},
                                                         {"slice", slice},
                                                         {"sort", sort},
                                                         {"sum", sum},
                                                         {"unique", unique}};
  table.insert(std::begin(filters), std::end(filters));
}

bool is_filter(std::string_view name) { return filters().contains(name); }

Value call_filter(Interpreter& interpreter, std::string_view name, Arguments& arguments) {
  const auto found = filters().find(name);
  if (found != filters().end()) return found->second(interpreter, arguments);
  if (std::find(std::begin(unsupported), std::end(unsupported), name) != std::end(unsupported))
    raise("UnsupportedError", fmt::format("the filter '{}' is not supported", name));
  raise("TemplateRuntimeError", fmt::format("No filter named '{}'.", name));
}

}  // namespace sluice::jinja
