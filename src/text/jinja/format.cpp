// Python's two ways of formatting: "…%s…" % values and "…{}…".format(values).
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

constexpr int64_t max_width = 1 << 20;

// [[fill]align][sign][#][0][width][,][.precision][type]: the fields that both ways have.
struct Spec {
  std::string fill = " ";
  char align = '\0', sign = '-', type = '\0', group = '\0';
  bool alternate = false, zero = false;
  int64_t width = 0, precision = -1;
};

// C's printf for one double: Python prints e, f and g the same way.
std::string print_real(const Spec& spec, double value, char type) {
  const std::string format = fmt::format("%{}.*{}", spec.alternate ? "#" : "", type);
  const int precision = static_cast<int>(std::min<int64_t>(spec.precision < 0 ? 6 : spec.precision, 1000));
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, format.c_str(), precision, value)), '\0');
  std::snprintf(text.data(), text.size() + 1, format.c_str(), precision, value);
  return text;
}

std::string grouped(std::string digits, char separator) {
  const size_t point = std::min(digits.find_first_of(".e"), digits.size());
  const size_t first = digits.starts_with('-') ? 1 : 0;
  for (size_t at = point; at > first + 3; at -= 3) digits.insert(at - 3, 1, separator);
  return digits;
}

std::string print_whole(const Spec& spec, int64_t value, char type) {
  const uint64_t size = value < 0 ? ~static_cast<uint64_t>(value) + 1 : static_cast<uint64_t>(value);
  const std::string minus = value < 0 ? "-" : "";
  switch (type) {
    case 'x': return minus + (spec.alternate ? "0x" : "") + fmt::format("{:x}", size);
    case 'X': return minus + (spec.alternate ? "0X" : "") + fmt::format("{:X}", size);
    case 'o': return minus + (spec.alternate ? "0o" : "") + fmt::format("{:o}", size);
    case 'b': return minus + (spec.alternate ? "0b" : "") + fmt::format("{:b}", size);
    default: return minus + fmt::format("{}", size);
  }
}

MarkedText padded(const Spec& spec, MarkedText text, bool number) {
  const int64_t missing = spec.width - character_count(text.text());
  if (missing <= 0) return text;
  if (spec.width > max_width)
    raise("LimitError", fmt::format("a width of {} in a format, the limit is {}", spec.width, max_width));
  const char align = spec.align != '\0' ? spec.align : number ? '>' : '<';
  const int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  std::string left, right;
  for (int64_t i = 0; i < missing; ++i) (i < before ? left : right) += spec.fill;
  MarkedText out;
  if (align == '=') {  // after the sign
    const bool sign = text.text().starts_with('-') || text.text().starts_with('+') || text.text().starts_with(' ');
    out.append(text, 0, sign ? 1 : 0);
    out.append(right);
    out.append(text, sign ? 1 : 0, text.size());
    return out;
  }
  out.append(left);
  out.append(text);
  out.append(right);
  return out;
}

MarkedText number(const Spec& spec, std::string text) {
  if (spec.group != '\0') text = grouped(std::move(text), spec.group);
  if ((spec.sign == '+' || spec.sign == ' ') && !text.starts_with('-')) text.insert(0, 1, spec.sign);
  return padded(spec, MarkedText(std::move(text)), true);
}

MarkedText cut(const Spec& spec, const MarkedText& text) {
  return spec.precision < 0 ? text : text.slice(0, byte_of_character(text.text(), spec.precision));
}

// ---- %

class Percent {
 public:
  Percent(Interpreter& interpreter, const MarkedText& format, const Value& values)
      : interpreter_(interpreter), format_(format), text_(format.text()), values_(values) {
    if (values.is_list() && values.list().kind == ListKind::tuple) items_ = values.list().items;
    else items_ = {values};
  }

  MarkedText run() {
    MarkedText out;
    for (size_t at = text_.find('%'); at != std::string_view::npos; at = text_.find('%', at_)) {
      out.append(format_, at_, at);
      at_ = at + 1;
      out.append(conversion());
    }
    out.append(format_, at_, text_.size());
    if (used_ < items_.size() && !values_.is_dict() && !named_)
      type_error("not all arguments converted during string formatting");
    return out;
  }

 private:
  char peek() const {
    if (at_ >= text_.size()) raise("ValueError", "incomplete format");
    return text_[at_];
  }

  Value next() {
    if (used_ >= items_.size()) type_error("not enough arguments for format string");
    return items_[used_++];
  }

  int64_t count() {
    if (peek() == '*') {
      ++at_;
      const Value value = next();
      if (!value.is_whole()) type_error("* wants int");
      return value.integer();
    }
    int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) value = std::min<int64_t>(value * 10 + (peek() - '0'), max_width + 1);
    return value;
  }

  MarkedText conversion() {
    Spec spec;
    std::optional<Value> value;
    if (peek() == '(') {
      const size_t end = text_.find(')', at_);
      if (end == std::string_view::npos) raise("ValueError", "incomplete format key");
      if (!values_.is_dict()) type_error("format requires a mapping");
      const std::string key(text_.substr(at_ + 1, end - at_ - 1));
      const Value* found = values_.dict().find(key);
      if (found == nullptr) raise("KeyError", "'" + key + "'");
      value = *found;
      named_ = true;
      at_ = end + 1;
    }
    for (bool flags = true; flags;) {
      switch (peek()) {
        case '-': spec.align = '<'; break;
        case '+': spec.sign = '+'; break;
        case ' ': spec.sign = spec.sign == '+' ? '+' : ' '; break;
        case '#': spec.alternate = true; break;
        case '0': spec.zero = true; break;
        default: flags = false;
      }
      if (flags) ++at_;
    }
    spec.width = count();
    if (spec.width < 0) spec.align = '<', spec.width = -spec.width;
    if (peek() == '.') ++at_, spec.precision = count();
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    const char type = peek();
    ++at_;
    if (type == '%') return MarkedText("%");
    if (!value) value = next();
    return one(spec, type, *value);
  }

  MarkedText one(Spec spec, char type, const Value& value) {
    interpreter_.work(spec.width);
    switch (type) {
      case 's': interpreter_.note_printed(value); return padded(with_right(spec), cut(spec, to_text(value)), false);
      case 'r':
      case 'a': return padded(with_right(spec), cut(spec, repr(value)), false);
      case 'c':
        if (value.is_string() && character_count(value.chars()) == 1)
          return padded(with_right(spec), value.text(), false);
        type_error("%c requires int or char");
      default: break;
    }
    need_defined(value);
    if (spec.zero && spec.align == '\0') spec.fill = "0", spec.align = '=';
    const bool whole = std::string_view("diuxXo").find(type) != std::string_view::npos;
    if (!whole && std::string_view("eEfFgG").find(type) == std::string_view::npos)
      raise("ValueError", fmt::format("unsupported format character '{}' (0x{:x}) at index {}", type,
                                      static_cast<int>(type), at_ - 1));
    if (!value.is_number()) {
      if (!whole) type_error(fmt::format("must be real number, not {}", type_name(value)));
      type_error(fmt::format("%{} format: {} is required, not {}", type,
                             type == 'd' || type == 'i' || type == 'u' ? "a real number" : "an integer",
                             type_name(value)));
    }
    if (!whole) return number(spec, print_real(spec, value.real(), type));
    if (value.is_real() && (type == 'x' || type == 'X' || type == 'o'))
      type_error(fmt::format("%{} format: an integer is required, not float", type));
    std::string digits =
        print_whole(spec, value.is_real() ? static_cast<int64_t>(value.real()) : value.integer(), type);
    const size_t sign = digits.starts_with('-') ? 1 : 0;
    while (static_cast<int64_t>(digits.size() - sign) < std::min(spec.precision, max_width))
      digits.insert(sign, 1, '0');
    return number(spec, std::move(digits));
  }

  static Spec with_right(Spec spec) {
    if (spec.align == '\0') spec.align = '>';
    return spec;
  }

  Interpreter& interpreter_;
  const MarkedText& format_;
  std::string_view text_;
  const Value& values_;
  std::vector<Value> items_;
  size_t at_ = 0, used_ = 0;
  bool named_ = false;
};

// ---- {}

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const size_t fill = text.empty() ? 0 : std::max<size_t>(1, utf8_length(text, 0));
  if (fill < text.size() && is_align(text[fill]))
    spec.fill = text.substr(0, fill), spec.align = text[fill], at = fill + 1;
  else if (!text.empty() && is_align(text[0])) spec.align = text[0], at = 1;
  const auto peek = [&] { return at < text.size() ? text[at] : '\0'; };
  const auto digits = [&] {
    int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at) value = std::min<int64_t>(value * 10 + (peek() - '0'), max_width + 1);
    return value;
  };
  if (peek() == '+' || peek() == '-' || peek() == ' ') spec.sign = text[at++];
  if (peek() == '#') spec.alternate = true, ++at;
  if (peek() == '0') spec.zero = true, ++at;
  spec.width = digits();
  if (peek() == ',' || peek() == '_') spec.group = text[at++];
  if (peek() == '.') ++at, spec.precision = digits();
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) raise("ValueError", fmt::format("Invalid format specifier '{}'", text));
  return spec;
}

MarkedText by_spec(Interpreter& interpreter, const Value& value, std::string_view text) {
  if (text.empty()) {
    interpreter.note_printed(value);
    return to_text(value);
  }
  Spec spec = parse_spec(text);
  interpreter.work(spec.width);
  if (value.is_string()) {
    if (spec.type != '\0' && spec.type != 's')
      raise("ValueError", fmt::format("Unknown format code '{}' for object of type 'str'", spec.type));
    if (spec.zero) spec.fill = "0";
    return padded(spec, cut(spec, value.text()), false);
  }
  if (!value.is_number())
    type_error(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  if (spec.zero && spec.align == '\0') spec.fill = "0", spec.align = '=';
  const bool as_real = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos && spec.type != '\0';
  if (spec.type == '%') return number(spec, print_real(spec, value.real() * 100, 'f') + "%");
  if (as_real) return number(spec, print_real(spec, value.real(), spec.type));
  if (value.is_whole()) {
    if (std::string_view("dxXobn").find(spec.type) == std::string_view::npos && spec.type != '\0')
      raise("ValueError", fmt::format("Unknown format code '{}' for object of type 'int'", spec.type));
    return number(spec, print_whole(spec, value.integer(), spec.type));
  }
  if (spec.type != '\0')
    raise("ValueError", fmt::format("Unknown format code '{}' for object of type 'float'", spec.type));
  if (spec.precision < 0) return number(spec, repr_number(value.real()));
  return number(spec, print_real(spec, value.real(), 'g'));
}

class Braces {
 public:
  Braces(Interpreter& interpreter, const MarkedText& format, const Arguments& arguments)
      : interpreter_(interpreter), format_(format), text_(format.text()), arguments_(arguments) {}

  MarkedText run() {
    MarkedText out;
    while (at_ < text_.size()) {
      const size_t brace = std::min(text_.find_first_of("{}", at_), text_.size());
      out.append(format_, at_, brace);
      at_ = brace;
      if (at_ == text_.size()) break;
      const char c = text_[at_];
      if (at_ + 1 < text_.size() && text_[at_ + 1] == c) {
        out.append(std::string_view(&c, 1));
        at_ += 2;
      } else if (c == '}') {
        raise("ValueError", "Single '}' encountered in format string");
      } else {
        out.append(field());
      }
    }
    return out;
  }

 private:
  MarkedText field() {
    const size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) raise("ValueError", "expected '}' before end of string");
    std::string_view field = text_.substr(at_ + 1, end - at_ - 1), spec;
    at_ = end + 1;
    if (field.find('{') != std::string_view::npos)
      raise("UnsupportedError", "a format with a field inside a field is not supported");
    if (const size_t colon = field.find(':'); colon != std::string_view::npos)
      spec = field.substr(colon + 1), field = field.substr(0, colon);
    char conversion = '\0';
    if (field.size() >= 2 && field[field.size() - 2] == '!') conversion = field.back(), field.remove_suffix(2);
    Value value = look_up(field);
    if (conversion == 'r' || conversion == 'a') value = interpreter_.string(repr(value));
    if (conversion == 's') value = interpreter_.string(to_text(value));
    return by_spec(interpreter_, value, spec);
  }

  Value look_up(std::string_view field) {
    const size_t end = std::min(field.find_first_of(".["), field.size());
    Value value = first(field.substr(0, end));
    for (field.remove_prefix(end); !field.empty();) {
      const bool dot = field[0] == '.';
      const size_t stop = dot ? std::min(field.find_first_of(".[", 1), field.size()) : field.find(']');
      if (stop == std::string_view::npos) raise("ValueError", "Missing ']' in format string");
      const std::string name(field.substr(1, stop - 1));
      int64_t index = 0;
      const bool number = !name.empty() && std::from_chars(name.data(), name.data() + name.size(), index).ptr ==
                                               name.data() + name.size();
      if (dot) value = interpreter_.attribute(value, name);
      else value = interpreter_.item(value, number ? Value(index) : Value::string(name));
      field.remove_prefix(dot ? stop : stop + 1);
    }
    return value;
  }

  Value first(std::string_view name) {
    size_t index = 0;
    const auto end = std::from_chars(name.data(), name.data() + name.size(), index).ptr;
    if (name.empty()) index = next_++;
    else if (end != name.data() + name.size()) {
      for (const auto& [known, value] : arguments_.named) {
        if (known == name) return value;
      }
      raise("KeyError", fmt::format("'{}'", name));
    }
    if (index >= arguments_.positional.size())
      raise("IndexError", fmt::format("Replacement index {} out of range for positional args tuple", index));
    return arguments_.positional[index];
  }

  Interpreter& interpreter_;
  const MarkedText& format_;
  std::string_view text_;
  const Arguments& arguments_;
  size_t at_ = 0, next_ = 0;
};

}  // namespace

MarkedText format_percent(Interpreter& interpreter, const MarkedText& format, const Value& values) {
  return Percent(interpreter, format, values).run();
}

MarkedText format_braces(Interpreter& interpreter, const MarkedText& format, const Arguments& arguments) {
  return Braces(interpreter, format, arguments).run();
}

}  // namespace sluice::jinja
