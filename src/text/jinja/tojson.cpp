// The filter tojson, as transformers overrides it: json.dumps(value, ensure_ascii=False, …).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void put(const Value& value, int level) {
    switch (value.kind()) {
      case Kind::none: return out.append("null");
      case Kind::boolean: return out.append(value.integer() != 0 ? "true" : "false");
      case Kind::integer: return out.append(std::to_string(value.integer()));
      case Kind::real: return out.append(real(value.real()));
      case Kind::string: return quoted(value.text());
      case Kind::dict: return object(value.dict(), level);
      case Kind::list:
        if (value.list().kind <= ListKind::tuple) return array(value.list().items, level);
        break;
      default: break;
    }
    type_error(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
  }

  MarkedText out;

 private:
  static std::string real(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_number(value);
  }

  void new_line(int level) {
    if (!style_.indent) return;
    std::string text = "\n";
    for (int i = 0; i < level; ++i) text += *style_.indent;
    out.append(text);
  }

  void array(const std::vector<Value>& items, int level) {
    if (items.empty()) return out.append("[]");
    out.append("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.append(style_.item_separator);
      new_line(level + 1);
      put(items[i], level + 1);
    }
    new_line(level);
    out.append("]");
  }

  // A key as json.dumps writes it: numbers and null become text.
  static MarkedText key_text(const Value& key) {
    if (key.is_string()) return key.text();
    if (key.is_none()) return MarkedText("null");
    if (key.is_boolean()) return MarkedText(key.integer() != 0 ? "true" : "false");
    if (key.is_integer()) return MarkedText(std::to_string(key.integer()));
    if (key.is_real()) return MarkedText(real(key.real()));
    type_error(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
  }

  void object(const Dict& dict, int level) {
    if (dict.entries.empty()) return out.append("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return compare(a->first, b->first, "<") < 0; });
    }
    out.append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out.append(style_.item_separator);
      new_line(level + 1);
      quoted(key_text(entries[i]->first));
      out.append(style_.key_separator);
      put(entries[i]->second, level + 1);
    }
    new_line(level);
    out.append("}");
  }

  void quoted(const MarkedText& text) {
    out.append("\"");
    const std::string& view = text.text();
    size_t plain = 0;  // from here on nothing is to be escaped yet
    const auto escape = [&](size_t begin, size_t end, std::string_view with) {
      out.append(text, plain, begin);
      out.append(with, text.stretches().empty() ? Origin{} : text.origin_at(begin));
      plain = end;
    };
    for (size_t at = 0; at < view.size(); ++at) {
      const auto byte = static_cast<uint8_t>(view[at]);
      if (byte == '"' || byte == '\\') {
        escape(at, at + 1, byte == '"' ? "\\\"" : "\\\\");
      } else if (byte < 0x20) {
        constexpr std::string_view letters = "btn fr";  // of \b \t \n, none for \v, \f \r
        const bool named = byte >= 8 && byte <= 13 && byte != 11;
        escape(at, at + 1, named ? std::string{'\\', letters[byte - 8U]} : fmt::format("\\u{:04x}", byte));
      } else if (style_.ensure_ascii && byte >= 0x7F) {
        const size_t length = std::max<size_t>(1, utf8_length(view, at));
        escape(at, at + length, ascii(utf8_length(view, at) == 0 ? 0xFFFD : utf8_decode(view, at)));
        at += length - 1;
      }
    }
    out.append(text, plain, view.size());
    out.append("\"");
  }

  static std::string ascii(uint32_t code) {
    if (code < 0x10000) return fmt::format("\\u{:04x}", code);
    return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
  }

  const JsonStyle& style_;
};

// Whether the arguments of a tool call are in it as text, which would be quoted a second time.
bool holds_call_text(const Value& value) {
  if (value.is_string()) return value.str().call_arguments;
  if (value.is_dict()) {
    const auto& entries = value.dict().entries;
    return std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return holds_call_text(entry.second); });
  }
  if (!value.is_list()) return false;
  return std::any_of(value.list().items.begin(), value.list().items.end(), holds_call_text);
}

}  // namespace

MarkedText to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.put(value, 0);
  return std::move(writer.out);
}

Value filter_tojson(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound("tojson", arguments, {"x", "ensure_ascii", "indent", "separators", "sort_keys"}, 1);
  JsonStyle style{.ensure_ascii = bound.flag(1, false), .sort_keys = bound.flag(4, false)};
  if (bound.has(2) && !bound[2].is_none()) {
    if (bound[2].is_string()) style.indent = bound[2].chars();
    else style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(bound.integer(2, 0), 0, 1000)), ' ');
    style.item_separator = ",";
  }
  if (bound.has(3) && !bound[3].is_none()) {
    const std::vector<Value> separators = iterate(bound[3]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      raise("ValueError", "separators must be two strings");
    style.item_separator = separators[0].chars();
    style.key_separator = separators[1].chars();
  }
  if (holds_call_text(bound[0])) interpreter.misused_call_arguments = true;
  return interpreter.string(to_json(bound[0], style));
}

}  // namespace sluice::jinja
