// Filters on single values: text, numbers, defaults. Those on sequences are in sequence_filters.cpp.
#include "text/jinja/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

// str(value) as the text filters take it.
MarkedText soft(Interpreter& interpreter, const Value& value) {
  interpreter.note_printed(value);
  return to_text(value);
}

template <MarkedText (*change)(const MarkedText&)>
Value changed(Interpreter& i, Arguments& a) {
  const Bound bound("filter", a, {"s"}, 1);
  return i.string(change(soft(i, bound[0])));
}

Value trim(Interpreter& i, Arguments& a) {
  const Bound bound("do_trim", a, {"value", "chars"}, 1);
  const MarkedText text = soft(i, bound[0]);
  if (!bound.has(1) || bound[1].is_none()) return i.string(strip(text, Side::both));
  return i.string(strip(text, Side::both, bound.text(1).text()));
}

// Words begin after - ( { [ < and white space.
Value title_words(Interpreter& i, Arguments& a) {
  const Bound bound("do_title", a, {"s"}, 1);
  const MarkedText text = soft(i, bound[0]);
  MarkedText out;
  size_t word = 0;
  bool was_break = true;
  const auto put = [&](size_t end) {
    const MarkedText whole = text.slice(word, end);
    const size_t first = byte_of_character(whole.text(), 1);
    out.append(upper(whole.slice(0, first)));
    out.append(lower(whole.slice(first, whole.size())));
    word = end;
  };
  for_each_character(text.text(), [&](size_t begin, size_t) {
    const std::string& view = text.text();
    const bool is_break = std::string_view("-({[<").find(view[begin]) != std::string_view::npos ||
                          (utf8_length(view, begin) > 0 && is_python_space(utf8_decode(view, begin)));
    if (begin > 0 && is_break != was_break) put(begin);
    was_break = is_break;
  });
  put(text.size());
  return i.string(std::move(out));
}

Value replace_filter(Interpreter& i, Arguments& a) {
  const Bound bound("do_replace", a, {"s", "old", "new", "count"}, 3);
  const int64_t count = bound.has(3) && !bound[3].is_none() ? bound.integer(3, -1) : -1;
  return i.string(replace(soft(i, bound[0]), soft(i, bound[1]).text(), soft(i, bound[2]), count));
}

Value default_value(Interpreter&, Arguments& a) {
  const Bound bound("do_default", a, {"value", "default_value", "boolean"}, 1);
  const bool missing = bound[0].is_undefined() || (bound.flag(2, false) && !truthy(bound[0]));
  return missing ? bound.value_or(1, Value::string("")) : bound[0];
}

std::optional<int64_t> parse_whole(std::string text, int base) {
  text = strip(MarkedText(text), Side::both).text();
  bool negative = false;
  if (text.starts_with('+') || text.starts_with('-')) negative = text[0] == '-', text.erase(0, 1);
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == prefix[1]) text.erase(0, 2);
  for (size_t at = text.find('_'); at != std::string::npos; at = text.find('_', at)) {
    if (at == 0 || at + 1 == text.size() || text[at + 1] == '_') return std::nullopt;
    text.erase(at, 1);
  }
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || text[0] == '-' || result.ptr != text.data() + text.size()) return std::nullopt;
  if (result.ec != std::errc()) raise("OverflowError", "a whole number beyond 64 bits");
  return negative ? -value : value;
}

std::optional<double> parse_real(std::string text) {
  text = strip(MarkedText(text), Side::both).text();
  std::erase(text, '_');
  std::string_view rest = text;
  if (rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.empty() || rest.starts_with('+') || rest.starts_with("0x") || rest.starts_with("-0x")) return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (result.ptr != rest.data() + rest.size()) return std::nullopt;
  return value;
}

Value whole(double value) {
  if (std::isnan(value) || std::fabs(value) >= 9.2e18) raise("OverflowError", "a whole number beyond 64 bits");
  return Value(static_cast<int64_t>(value));
}

Value to_int(Interpreter&, Arguments& a) {
  const Bound bound("do_int", a, {"value", "default", "base"}, 1);
  need_defined(bound[0]);
  const Value otherwise = bound.value_or(1, Value(int64_t{0}));
  if (bound[0].is_whole()) return Value(bound[0].integer());
  if (bound[0].is_real()) return std::isfinite(bound[0].real()) ? whole(bound[0].real()) : otherwise;
  if (!bound[0].is_string()) return otherwise;
  const std::string& text = bound[0].chars();
  if (const auto value = parse_whole(text, static_cast<int>(std::clamp<int64_t>(bound.integer(2, 10), 2, 36))))
    return Value(*value);
  const auto real = parse_real(text);
  return real && std::isfinite(*real) ? whole(*real) : otherwise;
}

Value to_float(Interpreter&, Arguments& a) {
  const Bound bound("do_float", a, {"value", "default"}, 1);
  need_defined(bound[0]);
  if (bound[0].is_number()) return Value(bound[0].real());
  if (const auto real = bound[0].is_string() ? parse_real(bound[0].chars()) : std::nullopt) return Value(*real);
  return bound.value_or(1, Value(0.0));
}

Value absolute(Interpreter&, Arguments& a) {
  const Bound bound("abs", a, {"x"}, 1);
  need_defined(bound[0]);
  if (bound[0].is_real()) return Value(std::fabs(bound[0].real()));
  if (!bound[0].is_whole()) type_error(fmt::format("bad operand type for abs(): '{}'", type_name(bound[0])));
  if (bound[0].integer() == INT64_MIN) raise("OverflowError", "a whole number beyond 64 bits");
  return Value(std::abs(bound[0].integer()));
}

// Python's round: to even, by the exact decimal value.
Value round_filter(Interpreter&, Arguments& a) {
  const Bound bound("do_round", a, {"value", "precision", "method"}, 1);
  const std::string method = bound.has(2) ? bound.text(2).text() : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    raise("FilterArgumentError", "method must be common, ceil or floor");
  need_defined(bound[0]);
  if (!bound[0].is_number()) type_error(fmt::format("type {} doesn't define __round__ method", type_name(bound[0])));
  const int64_t precision = std::clamp<int64_t>(bound.integer(1, 0), -300, 300);
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision)), value = bound[0].real() * scale;
    return Value((method == "ceil" ? std::ceil(value) : std::floor(value)) / scale);
  }
  if (bound[0].is_whole() && precision >= 0) return Value(bound[0].integer());
  const double scale = std::pow(10.0, static_cast<double>(-precision));
  if (precision < 0) {
    const double rounded = std::nearbyint(bound[0].real() / scale) * scale;
    return bound[0].is_whole() ? whole(rounded) : Value(rounded);
  }
  return Value(std::strtod(fmt::format("{:.{}f}", bound[0].real(), precision).c_str(), nullptr));
}

Value indent(Interpreter& i, Arguments& a) {
  const Bound bound("do_indent", a, {"s", "width", "first", "blank"}, 1);
  need_defined(bound[0]);
  if (!bound[0].is_string())
    type_error(fmt::format("unsupported operand type(s) for +=: '{}' and 'str'", type_name(bound[0])));
  const bool by_text = bound.has(1) && bound[1].is_string();
  const int64_t width = by_text ? 0 : bound.integer(1, 4);
  i.work(std::max<int64_t>(width, 0) * 4);
  const MarkedText space =
      by_text ? bound.text(1) : MarkedText(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '));
  MarkedText text = bound.text(0), out;
  text.append("\n");
  const std::vector<MarkedText> lines = splitlines(text, false);
  if (bound.flag(2, false)) out.append(space);
  for (size_t line = 0; line < lines.size(); ++line) {
    if (line > 0) out.append("\n");
    if (line > 0 && (bound.flag(3, false) || lines[line].size() > 0)) out.append(space);
    out.append(lines[line]);
    i.work(static_cast<int64_t>(space.size()) / 8);
  }
  return i.string(std::move(out));
}

Value truncate(Interpreter& i, Arguments& a) {
  const Bound bound("do_truncate", a, {"s", "length", "killwords", "end", "leeway"}, 1);
  const MarkedText& text = bound.text(0);
  const MarkedText end = bound.has(3) ? bound.text(3) : MarkedText("...");
  const int64_t length = bound.integer(1, 255), end_length = character_count(end.text());
  const int64_t leeway = bound.has(4) && !bound[4].is_none() ? bound.integer(4, 5) : 5;
  if (length < end_length) raise("AssertionError", fmt::format("expected length >= {}, got {}", end_length, length));
  if (leeway < 0) raise("AssertionError", fmt::format("expected leeway >= 0, got {}", leeway));
  if (character_count(text.text()) <= length + leeway) return bound[0];
  MarkedText out = text.slice(0, byte_of_character(text.text(), length - end_length));
  if (!bound.flag(2, false)) out = rsplit(out, " ", 1)[0];
  out.append(end);
  return i.string(std::move(out));
}

Value center(Interpreter& i, Arguments& a) {
  const Bound bound("do_center", a, {"value", "width"}, 1);
  Arguments width{.positional = {Value(bound.integer(1, 80))}};
  return call_method(i, Value::string(soft(i, bound[0])), "center", width);
}

Value format_filter(Interpreter& i, Arguments& a) {
  if (a.positional.size() > 1 && !a.named.empty())
    raise("FilterArgumentError", "can't handle positional and keyword arguments at the same time");
  const MarkedText text = soft(i, a.positional[0]);
  if (a.named.empty())
    return i.string(format_percent(i, text, Value::tuple({a.positional.begin() + 1, a.positional.end()})));
  auto values = std::make_shared<Dict>();
  for (auto& [name, value] : a.named) values->set(Value::string(name), value);
  return i.string(format_percent(i, text, Value::dict(std::move(values))));
}

Value string_filter(Interpreter& i, Arguments& a) {
  const Bound bound("soft_str", a, {"s"}, 1);
  return bound[0].is_string() ? bound[0] : i.string(soft(i, bound[0]));
}

Value safe(Interpreter& i, Arguments& a) {
  const Bound bound("do_mark_safe", a, {"value"}, 1);
  return Value::markup(soft(i, bound[0]));
}

Value escape(Interpreter& i, Arguments& a) {
  const Bound bound("escape", a, {"s"}, 1);
  if (bound[0].is_string() && bound[0].str().safe) return bound[0];
  const Value text = i.string(escaped(soft(i, bound[0])));
  return Value::markup(text.text());
}

Value word_count(Interpreter& i, Arguments& a) {
  const Bound bound("do_wordcount", a, {"s"}, 1);
  int64_t words = 0;
  bool inside = false;
  const MarkedText text = soft(i, bound[0]);
  for_each_character(text.text(), [&](size_t begin, size_t end) {
    const std::string_view c = std::string_view(text.text()).substr(begin, end - begin);
    const bool word = c == "_" || *text_is("isalnum", c);
    if (word && !inside) ++words;
    inside = word;
  });
  return Value(words);
}

Value url_encode(Interpreter& i, Arguments& a) {
  const Bound bound("do_urlencode", a, {"value"}, 1);
  const auto quote = [&](const Value& value, bool query) {
    const MarkedText text = soft(i, value);
    MarkedText out;
    for (size_t at = 0; at < text.size(); ++at) {
      const char c = text.text()[at];
      const auto byte = static_cast<uint8_t>(c);
      const bool plain = (byte < 0x80 && *text_is("isalnum", std::string_view(&c, 1))) ||
                         std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !query);
      if (plain) out.append(text, at, at + 1);
      else out.append(query && c == ' ' ? "+" : fmt::format("%{:02X}", byte), text.origin_at(at));
    }
    return out;
  };
  if (bound[0].is_string() || !(bound[0].is_list() || bound[0].is_dict())) return i.string(quote(bound[0], false));
  MarkedText out;
  const auto put = [&](const Value& key, const Value& value) {
    if (out.size() > 0) out.append("&");
    out.append(quote(key, true));
    out.append("=");
    out.append(quote(value, true));
  };
  if (bound[0].is_dict()) {
    for (const auto& [key, value] : bound[0].dict().entries) put(key, value);
  } else {
    for (const Value& pair : iterate(bound[0])) {
      const std::vector<Value> parts = iterate(pair);
      if (parts.size() != 2) raise("ValueError", "urlencode needs pairs");
      put(parts[0], parts[1]);
    }
  }
  return i.string(std::move(out));
}

Value attr(Interpreter& i, Arguments& a) {
  const Bound bound("do_attr", a, {"obj", "name"}, 2);
  const Value value = i.attribute(bound[0], bound.text(1).text());
  const bool item = bound[0].is_dict() && !is_method(bound[0], bound.text(1).text());
  if (!item || value.is_undefined()) return value;
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", describe_type(bound[0]), bound.text(1).text()));
}

}  // namespace

MarkedText escaped(const MarkedText& text) {
  MarkedText out = text;
  for (const auto& [plain, entity] :
       {std::pair{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}})
    out = replace(out, plain, MarkedText(entity), -1);
  return out;
}

void add_value_filters(FilterTable& table) {
  const std::pair<std::string_view, Filter> filters[] = {{"abs", absolute},
                                                         {"attr", attr},
                                                         {"capitalize", changed<capitalize>},
                                                         {"center", center},
                                                         {"d", default_value},
                                                         {"default", default_value},
                                                         {"e", escape},
                                                         {"escape", escape},
                                                         {"float", to_float},
                                                         {"format", format_filter},
                                                         {"indent", indent},
                                                         {"int", to_int},
                                                         {"lower", changed<lower>},
                                                         {"replace", replace_filter},
                                                         {"round", round_filter},
                                                         {"safe", safe},
                                                         {"string", string_filter},
                                                         {"title", title_words},
                                                         {"tojson", filter_tojson},
                                                         {"trim", trim},
                                                         {"truncate", truncate},
                                                         {"upper", changed<upper>},
                                                         {"urlencode", url_encode},
                                                         {"wordcount", word_count}};
  table.insert(std::begin(filters), std::end(filters));
}

}  // namespace sluice::jinja
