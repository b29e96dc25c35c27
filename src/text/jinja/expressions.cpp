// The expressions of a program.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/loop_context.h"
#include "text/jinja/python_text.h"

namespace sluice::jinja {
namespace {

// object.name of a method, as a value that can be called later.
class BoundMethod final : public Callable {
 public:
  BoundMethod(Value object, std::string name) : object_(std::move(object)), name_(std::move(name)) {
    if (object_.object() != nullptr) depth = depth_of({object_});
  }
  std::string describe() const override {
    return fmt::format("<built-in method {} of {} object>", name_, type_name(object_));
  }
  Value call(Interpreter& interpreter, Arguments& arguments) const override {
    return call_method(interpreter, object_, name_, arguments);
  }

 private:
  Value object_;
  std::string name_;
};

// What object.name is by itself, before the items of a dict are looked at.
std::optional<Value> own_attribute(Interpreter& interpreter, const Value& object, const std::string& name) {
  if (is_unsafe_method(object, name) || (name.starts_with("__") && name.ends_with("__"))) {
    return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)),
                            "SecurityError");
  }
  if (is_method(object, name)) return Value::callable(std::make_shared<BoundMethod>(object, name));
  if (object.kind() == Kind::callable) return object.callable().attribute(interpreter, name);
  if (object.kind() == Kind::name_space) {
    const Value* found = static_cast<const Namespace&>(*object.object()).attributes.find(name);
    if (found != nullptr) return *found;
  }
  return std::nullopt;
}

Value no_attribute(const Value& object, const std::string& name) {
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", describe_type(object), name));
}

// object[index] for what counts its items; nothing past the ends.
std::optional<Value> indexed(const Value& object, int64_t index) {
  if (object.is_string()) {
    const int64_t length = character_count(object.chars());
    if (index < 0) index += length;
    if (index < 0 || index >= length) return std::nullopt;
    return Value::string(slice_text(object.text(), {.start = index, .stop = index + 1}));
  }
  if (!object.is_list() || (object.list().kind != ListKind::list && object.list().kind != ListKind::tuple &&
                            object.list().kind != ListKind::range))
    return std::nullopt;
  const std::vector<Value>& items = object.list().items;
  const auto length = static_cast<int64_t>(items.size());
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  return items[static_cast<size_t>(index)];
}

[[noreturn]] void unsupported(std::string_view sign, const Value& a, const Value& b) {
  type_error(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", sign, type_name(a), type_name(b)));
}

[[noreturn]] void too_large() { raise("OverflowError", "a whole number beyond 64 bits"); }

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) raise("ZeroDivisionError", "integer division or modulo by zero");
  if (b == -1) {
    int64_t result = 0;
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) too_large();
    return result;
  }
  const int64_t quotient = a / b;
  return quotient * b != a && ((a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

int64_t whole_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) too_large();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return result;
}

Value whole_arithmetic(char sign, bool twice, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (sign) {
    case '+': overflow = __builtin_add_overflow(a, b, &result); break;
    case '-': overflow = __builtin_sub_overflow(a, b, &result); break;
    case '*':
      if (twice && b < 0) return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
      if (twice) result = whole_power(a, b);
      else overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case '/':
      if (twice) return Value(floor_divide(a, b));
      if (b == 0) raise("ZeroDivisionError", "division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    default: return Value(b == -1 ? int64_t{0} : a - floor_divide(a, b) * b);
  }
  if (overflow) too_large();
  return Value(result);
}

Value real_arithmetic(char sign, bool twice, double a, double b) {
  switch (sign) {
    case '+': return Value(a + b);
    case '-': return Value(a - b);
    case '*': return Value(twice ? std::pow(a, b) : a * b);
    default: break;
  }
  if (b == 0) raise("ZeroDivisionError", sign == '%' ? "float modulo" : "float division by zero");
  if (sign == '/' && !twice) return Value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return sign == '%' ? Value(rest) : Value(std::floor((a - rest) / b + 0.5));
}

}  // namespace

Value Interpreter::attribute(const Value& object, const std::string& name) {
  need_defined(object);
  if (std::optional<Value> own = own_attribute(*this, object, name)) return *own;
  if (object.is_dict()) {
    if (const Value* found = object.dict().find(name)) return *found;
  }
  return no_attribute(object, name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  need_defined(object);
  if (object.is_dict()) {
    const bool hashable = !key.is_dict() && !(key.is_list() && key.list().kind == ListKind::list);
    if (const Value* found = hashable ? object.dict().find(key) : nullptr) return *found;
  } else if (key.is_whole()) {
    if (std::optional<Value> found = indexed(object, key.integer())) return *found;
  }
  if (key.is_string()) {
    if (std::optional<Value> own = own_attribute(*this, object, key.chars())) return *own;
    return no_attribute(object, key.chars());
  }
  return Value::undefined(fmt::format("{} has no element {}", describe_type(object), repr(key).text()));
}

Value Interpreter::eval(const Expr& expr) {
  work(1);
  switch (expr.type) {
    case Expr::constant: return expr.value;
    case Expr::name: return eval_name(expr);
    case Expr::list: return Value::list(eval_all(expr, 0));
    case Expr::tuple: return Value::tuple(eval_all(expr, 0));
    case Expr::dict: return eval_dict(expr);
    case Expr::attribute: {
      const Value object = eval(*expr.items[0]);
      line_ = expr.line;
      return attribute(object, expr.text);
    }
    case Expr::item: return eval_item(expr);
    case Expr::call: return eval_call(expr);
    case Expr::filter: return eval_filter(expr, nullptr);
    case Expr::test: return Value(eval_test(expr));
    case Expr::negate:
    case Expr::plus: return eval_unary(expr);
    case Expr::not_: return Value(!truthy(eval(*expr.items[0])));
    case Expr::and_: {
      Value left = eval(*expr.items[0]);
      return truthy(left) ? eval(*expr.items[1]) : left;
    }
    case Expr::or_: {
      Value left = eval(*expr.items[0]);
      return truthy(left) ? left : eval(*expr.items[1]);
    }
    case Expr::condition:
      if (truthy(eval(*expr.items[0]))) return eval(*expr.items[1]);
      if (expr.items[2]) return eval(*expr.items[2]);
      return Value::undefined(fmt::format(
          "the inline if-expression on line {} evaluated to false and no else section was defined.", expr.line));
    case Expr::concat: return eval_concat(expr);
    case Expr::binary: {
      const Value left = eval(*expr.items[0]), right = eval(*expr.items[1]);
      line_ = expr.line;
      return binary(expr.text[0], expr.text.size() == 2, left, right);
    }
    case Expr::comparison: return eval_comparison(expr);
    case Expr::slice:
    case Expr::space_name: break;
  }
  type_error("a slice stands where a value is needed");
}

Value Interpreter::eval_name(const Expr& expr) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    if (const Value* found = scope->find(expr.id)) return *found;
  }
  const std::string& name = program_.names[static_cast<size_t>(expr.id)];
  if (std::optional<Value> function = find_function(name)) return *function;
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

std::vector<Value> Interpreter::eval_all(const Expr& expr, size_t from) {
  std::vector<Value> values;
  values.reserve(expr.items.size() - from);
  for (size_t i = from; i < expr.items.size(); ++i) values.push_back(eval(*expr.items[i]));
  work(4 * static_cast<int64_t>(values.size()));
  return values;
}

Value Interpreter::eval_dict(const Expr& expr) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i < expr.items.size(); i += 2) {
    Value key = eval(*expr.items[i]);
    dict->set(std::move(key), eval(*expr.items[i + 1]));
  }
  work(8 * static_cast<int64_t>(dict->entries.size()));
  return Value::dict(std::move(dict));
}

Value Interpreter::eval_item(const Expr& expr) {
  const Value object = eval(*expr.items[0]);
  if (expr.items[1]->type == Expr::slice) return eval_slice(object, *expr.items[1]);
  const Value key = eval(*expr.items[1]);
  line_ = expr.line;
  return item(object, key);
}

Value Interpreter::eval_slice(const Value& object, const Expr& expr) {
  Slice slice;
  const auto bound = [&](const ExprPtr& part, const auto& use) {
    const Value value = part ? eval(*part) : Value();
    if (value.is_whole()) use(value.integer());
    else if (!value.is_none()) type_error("slice indices must be integers or None or have an __index__ method");
  };
  const auto bounded = [](int64_t index) { return std::clamp<int64_t>(index, -(int64_t{1} << 40), int64_t{1} << 40); };
  bound(expr.items[0], [&](int64_t i) { slice.start = bounded(i); });
  bound(expr.items[1], [&](int64_t i) { slice.stop = bounded(i); });
  bound(expr.items[2], [&](int64_t i) { slice.step = bounded(i); });
  line_ = expr.line;
  need_defined(object);
  if (slice.step == 0) raise("ValueError", "slice step cannot be zero");
  if (object.is_string()) return string(slice_text(object.text(), slice));
  if (!object.is_list() || object.list().kind > ListKind::range || object.list().kind == ListKind::generator)
    return Value::undefined(fmt::format("{} has no element slice", describe_type(object)));
  const List& list = object.list();
  std::vector<Value> items;
  for (int64_t i : slice_indices(slice, static_cast<int64_t>(list.items.size())))
    items.push_back(list.items[static_cast<size_t>(i)]);
  work(4 * static_cast<int64_t>(items.size()));
  if (list.kind == ListKind::list) return Value::list(std::move(items));
  if (list.kind == ListKind::tuple) return Value::tuple(std::move(items));
  auto range = std::make_shared<List>();
  range->kind = ListKind::range;
  range->items = std::move(items);
  return {Kind::list, std::move(range)};
}

void Interpreter::eval_arguments(const Expr& expr, Arguments& arguments) {
  for (size_t i = 1; i < expr.items.size(); ++i) arguments.positional.push_back(eval(*expr.items[i]));
  if (expr.more_positional) {
    for (Value& value : iterate(eval(*expr.more_positional))) arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, value] : expr.named) {
    for (const auto& given : arguments.named) {
      if (given.first == name) raise("SyntaxError", fmt::format("keyword argument repeated: {}", name));
    }
    arguments.named.emplace_back(name, eval(*value));
  }
  if (!expr.more_named) return;
  const Value more = eval(*expr.more_named);
  need_defined(more);
  if (!more.is_dict()) type_error(fmt::format("argument after ** must be a mapping, not {}", type_name(more)));
  for (const auto& [name, value] : more.dict().entries) {
    if (!name.is_string()) type_error("keywords must be strings");
    for (const auto& given : arguments.named) {
      if (given.first == name.chars())
        type_error(fmt::format("got multiple values for keyword argument '{}'", name.chars()));
    }
    arguments.named.emplace_back(name.chars(), value);
  }
}

Value Interpreter::eval_call(const Expr& expr) {
  const Expr& callee = *expr.items[0];
  Arguments arguments;
  // A method is called on the spot.
  if (callee.type == Expr::attribute) {
    const Value object = eval(*callee.items[0]);
    line_ = callee.line;
    need_defined(object);
    if (is_method(object, callee.text)) {
      eval_arguments(expr, arguments);
      line_ = expr.line;
      return call_method(*this, object, callee.text, arguments);
    }
    if (object.kind() == Kind::callable && (callee.text == "cycle" || callee.text == "changed")) {
      if (const auto* loop = dynamic_cast<const LoopContext*>(object.object())) {
        eval_arguments(expr, arguments);
        return callee.text == "cycle" ? loop->cycle(arguments) : loop->changed(arguments);
      }
    }
    const Value function = attribute(object, callee.text);
    eval_arguments(expr, arguments);
    line_ = expr.line;
    need_defined(function);
    if (function.kind() != Kind::callable) type_error(fmt::format("'{}' object is not callable", type_name(function)));
    return function.callable().call(*this, arguments);
  }
  const Value function = eval(callee);
  eval_arguments(expr, arguments);
  line_ = expr.line;
  need_defined(function);
  if (function.kind() != Kind::callable) type_error(fmt::format("'{}' object is not callable", type_name(function)));
  return function.callable().call(*this, arguments);
}

Value Interpreter::eval_filter(const Expr& expr, const Value* piped) {
  Arguments arguments;
  const Expr* before = expr.items[0].get();
  if (before == nullptr) arguments.positional.push_back(*piped);
  else if (before->type == Expr::filter && piped != nullptr)
    arguments.positional.push_back(eval_filter(*before, piped));
  else arguments.positional.push_back(eval(*before));
  eval_arguments(expr, arguments);
  line_ = expr.line;
  return call_filter(*this, expr.text, arguments);
}

bool Interpreter::eval_test(const Expr& expr) {
  Arguments arguments;
  arguments.positional.push_back(eval(*expr.items[0]));
  eval_arguments(expr, arguments);
  line_ = expr.line;
  return call_test(*this, expr.text, arguments);
}

Value Interpreter::eval_concat(const Expr& expr) {
  MarkedText text;
  for (const ExprPtr& part : expr.items) {
    const Value value = eval(*part);
    note_printed(value);
    text.append(to_text(value));
  }
  return string(std::move(text));
}

Value Interpreter::eval_comparison(const Expr& expr) {
  Value left = eval(*expr.items[0]);
  for (size_t i = 0; i < expr.signs.size(); ++i) {
    Value right = eval(*expr.items[i + 1]);
    const std::string& sign = expr.signs[i];
    line_ = expr.line;
    bool holds;
    if (sign == "==") holds = equal(left, right);
    else if (sign == "!=") holds = !equal(left, right);
    else if (sign == "in") holds = contains(right, left);
    else if (sign == "not in") holds = !contains(right, left);
    else {
      const int order = compare(left, right, sign.c_str());
      holds = order != 2 && (sign == "<"    ? order < 0
                             : sign == "<=" ? order <= 0
                             : sign == ">"  ? order > 0
                                            : order >= 0);
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::eval_unary(const Expr& expr) {
  const Value value = eval(*expr.items[0]);
  line_ = expr.line;
  need_defined(value);
  const bool minus = expr.type == Expr::negate;
  if (!value.is_number())
    type_error(fmt::format("bad operand type for unary {}: '{}'", minus ? '-' : '+', type_name(value)));
  if (value.is_real()) return Value(minus ? -value.real() : value.real());
  return minus ? whole_arithmetic('-', false, 0, value.integer()) : Value(value.integer());
}

namespace {

bool is_sequence(const Value& value) { return value.is_list() && value.list().kind <= ListKind::tuple; }

Value same_kind(const Value& as, std::vector<Value> items) {
  return as.list().kind == ListKind::list ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

}  // namespace

// a + b of two texts or two lists; nothing where it is neither.
std::optional<Value> Interpreter::joined(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    const bool safe = a.str().safe || b.str().safe;
    MarkedText text = safe && !a.str().safe ? escaped(a.text()) : a.text();
    text.append(safe && !b.str().safe ? escaped(b.text()) : b.text());
    const Value result = string(std::move(text));
    return safe ? Value::markup(result.text()) : result;
  }
  if (a.is_string()) type_error(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
  if (!is_sequence(a)) return std::nullopt;
  if (!b.is_list() || a.list().kind != b.list().kind)
    type_error(fmt::format("can only concatenate {0} (not \"{1}\") to {0}", type_name(a), type_name(b)));
  std::vector<Value> items = a.list().items;
  items.insert(items.end(), b.list().items.begin(), b.list().items.end());
  work(4 * static_cast<int64_t>(items.size()));
  return same_kind(a, std::move(items));
}

// `value`, a text or a list, `count` times.
Value Interpreter::repeated(const Value& value, int64_t count) {
  count = std::max<int64_t>(0, count);
  if (value.is_string()) {
    const auto size = static_cast<int64_t>(value.text().size());
    if (size > 0 && count > limits_.text_bytes / size)
      raise("LimitError", fmt::format("a text of more than {} bytes", limits_.text_bytes));
    MarkedText text;
    for (int64_t i = 0; i < count && size > 0; ++i) text.append(value.text());
    return string(std::move(text));
  }
  std::vector<Value> items;
  const auto size = static_cast<int64_t>(value.list().items.size());
  if (size > 0 && count > limits_.work / size) fail_work();
  work(4 * size * count);
  for (int64_t i = 0; i < count && size > 0; ++i)
    items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  return same_kind(value, std::move(items));
}

Value Interpreter::binary(char sign, bool twice, const Value& a, const Value& b) {
  if (sign == '%' && a.is_string()) return string(format_percent(*this, a.text(), b));
  need_defined(a), need_defined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_whole() && b.is_whole()) return whole_arithmetic(sign, twice, a.integer(), b.integer());
    return real_arithmetic(sign, twice, a.real(), b.real());
  }
  if (sign == '+') {
    if (std::optional<Value> both = joined(a, b)) return std::move(*both);
  }
  const Value& many = a.is_whole() ? b : a;
  const bool repeats = sign == '*' && !twice && (a.is_whole() || b.is_whole());
  if (repeats && (many.is_string() || is_sequence(many))) return repeated(many, (a.is_whole() ? a : b).integer());
  unsupported(twice && sign == '*' ? "** or pow()" : std::string(twice ? 2 : 1, sign), a, b);
}

}  // namespace sluice::jinja
