// What a program may call by its bare name.
#include <fmt/format.h>

#include <array>
#include <ctime>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"

namespace sluice::jinja {
namespace {

constexpr int64_t max_range = 100'000;  // jinja2.sandbox.MAX_RANGE

class Function final : public Callable {
 public:
  using Call = Value (*)(Interpreter&, Arguments&);
  Function(std::string_view name, Call call) : name_(name), call_(call) {}
  std::string describe() const override { return fmt::format("<function {}>", name_); }
  Value call(Interpreter& interpreter, Arguments& arguments) const override { return call_(interpreter, arguments); }

 private:
  std::string_view name_;
  Call call_;
};

Value range(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound("range", arguments, {"start", "stop", "step"}, 1);
  const bool one = !bound.has(1);
  const int64_t start = one ? 0 : bound.integer(0, 0), stop = one ? bound.integer(0, 0) : bound.integer(1, 0);
  const int64_t step = bound.integer(2, 1);
  if (step == 0) raise("ValueError", "range() arg 3 must not be zero");
  auto list = std::make_shared<List>();
  list->kind = ListKind::range;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    list->items.emplace_back(i);
    if (static_cast<int64_t>(list->items.size()) > max_range) {
      raise("OverflowError",
            fmt::format("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", max_range));
    }
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  interpreter.work(4 * static_cast<int64_t>(list->items.size()));
  return {Kind::list, std::move(list)};
}

Dict dict_of(std::string_view function, Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1)
    type_error(fmt::format("{} expected at most 1 argument, got {}", function, arguments.positional.size()));
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_dict()) {
      for (const auto& [key, value] : from.dict().entries) dict.set(key, value);
    } else {
      for (const Value& pair : iterate(from)) {
        const std::vector<Value> parts = iterate(pair);
        if (parts.size() != 2)
          raise("ValueError",
                fmt::format("dictionary update sequence element #0 has length {}; 2 is required", parts.size()));
        dict.set(parts[0], parts[1]);
      }
    }
  }
  for (auto& [name, value] : arguments.named) dict.set(Value::string(name), value);
  return dict;
}

Value dict(Interpreter& interpreter, Arguments& arguments) {
  auto result = std::make_shared<Dict>(dict_of("dict", arguments));
  interpreter.work(8 * static_cast<int64_t>(result->entries.size()));
  return Value::dict(std::move(result));
}

Value name_space(Interpreter& interpreter, Arguments& arguments) {
  Dict attributes = dict_of("namespace", arguments);
  for (const auto& entry : attributes.entries) {
    if (entry.first.is_string() && entry.first.chars().starts_with("_")) {
      raise("SecurityError",
            fmt::format("Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{}'. "
                        "Please rename the attribute.",
                        entry.first.chars()));
    }
  }
  return interpreter.new_namespace(std::move(attributes));
}

Value raise_exception(Interpreter&, Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"}, 1);
  raise("TemplateError", to_text(bound[0]).text());
}

// strftime of the moment that the run stands for, in the C locale as Python starts with.
Value strftime_now(Interpreter& interpreter, Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"}, 1);
  const std::string format = bound.text(0).text();
  std::tm moment{};
  std::sscanf(interpreter.now().c_str(), "%d-%d-%d %d:%d:%d", &moment.tm_year, &moment.tm_mon, &moment.tm_mday,
              &moment.tm_hour, &moment.tm_min, &moment.tm_sec);
  moment.tm_year -= 1900;
  moment.tm_mon -= 1;
  moment.tm_isdst = 0;
  timegm(&moment);  // fills the days of week and year
  if (format.empty()) return Value::string("");
  std::array<char, 1024> buffer;
  const size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &moment);
  if (size == 0) raise("ValueError", "strftime_now: the format gives no text or more than 1023 bytes");
  return Value::string(std::string(buffer.data(), size));
}

// joiner(", "): nothing the first time, the separator afterwards.
class Joiner final : public Callable {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) { depth = depth_of({separator_}); }
  std::string describe() const override { return "<jinja2.utils.Joiner object>"; }
  Value call(Interpreter&, Arguments&) const override {
    return std::exchange(used_, true) ? separator_ : Value::string("");
  }

 private:
  Value separator_;
  mutable bool used_ = false;
};

// cycler("a", "b"): next() and current walk round.
class Cycler final : public Callable, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) { depth = depth_of(items_); }
  std::string describe() const override { return "<jinja2.utils.Cycler object>"; }
  Value call(Interpreter&, Arguments&) const override { type_error("'Cycler' object is not callable"); }
  std::optional<Value> attribute(Interpreter&, std::string_view name) const override;
  Value step() const {
    const Value value = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return value;
  }
  void restart() const { at_ = 0; }

 private:
  std::vector<Value> items_;
  mutable size_t at_ = 0;
};

class CyclerMethod final : public Callable {
 public:
  CyclerMethod(std::shared_ptr<const Cycler> cycler, bool next) : cycler_(std::move(cycler)), next_(next) {
    depth = cycler_->depth + 1;
  }
  std::string describe() const override { return "<bound method Cycler>"; }
  Value call(Interpreter&, Arguments&) const override {
    if (next_) return cycler_->step();
    cycler_->restart();
    return {};
  }

 private:
  std::shared_ptr<const Cycler> cycler_;
  bool next_;
};

std::optional<Value> Cycler::attribute(Interpreter&, std::string_view name) const {
  if (name == "current") return items_[at_];
  if (name != "next" && name != "reset") return std::nullopt;
  // A method of this very cycler: it shares its place in the round.
  return Value::callable(std::make_shared<CyclerMethod>(shared_from_this(), name == "next"));
}

Value cycler(Interpreter&, Arguments& arguments) {
  if (arguments.positional.empty()) raise("RuntimeError", "at least one item has to be provided");
  return Value::callable(std::make_shared<Cycler>(std::move(arguments.positional)));
}

Value joiner(Interpreter&, Arguments& arguments) {
  const Bound bound("joiner", arguments, {"sep"}, 0);
  return Value::callable(std::make_shared<Joiner>(bound.value_or(0, Value::string(", "))));
}

}  // namespace

std::optional<Value> find_function(std::string_view name) {
  static const std::pair<std::string_view, Function::Call> functions[] = {
      {"raise_exception", raise_exception}, {"namespace", name_space}, {"range", range},  {"dict", dict},
      {"strftime_now", strftime_now},       {"cycler", cycler},        {"joiner", joiner}};
  for (const auto& [known, call] : functions) {
    if (known == name) return Value::callable(std::make_shared<Function>(known, call));
  }
  return std::nullopt;
}

}  // namespace sluice::jinja
