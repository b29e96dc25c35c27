#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/loop_context.h"

namespace sluice::jinja {
namespace {

// Sets a member for as long as this lives.
template <class T>
struct Keep {
  Keep(T& member, T value) : member(member), before(std::exchange(member, std::move(value))) {}
  ~Keep() { member = std::move(before); }
  T& member;
  T before;
};

ScopePtr inside(const ScopePtr& parent) {
  auto scope = std::make_shared<Scope>();
  scope->parent = parent;
  return scope;
}

class Macro final : public Callable {
 public:
  Macro(const Statement& statement, ScopePtr closure) : statement_(statement), closure_(std::move(closure)) {}
  std::string describe() const override { return fmt::format("<Macro '{}'>", statement_.signature.name); }
  Value call(Interpreter& interpreter, Arguments& arguments) const override {
    return interpreter.call_macro(statement_, closure_, arguments);
  }
  std::optional<Value> attribute(Interpreter&, std::string_view name) const override {
    const Signature& signature = statement_.signature;
    if (name == "name") return Value::string(signature.name);
    if (name == "catch_kwargs") return Value(signature.uses_kwargs);
    if (name == "catch_varargs") return Value(signature.uses_varargs);
    if (name == "caller") return Value(signature.uses_caller);
    if (name != "arguments") return std::nullopt;
    std::vector<Value> names;
    for (const Parameter& parameter : signature.parameters) names.push_back(Value::string(parameter.name));
    return Value::tuple(std::move(names));
  }

 private:
  const Statement& statement_;
  ScopePtr closure_;
};

}  // namespace

void Scope::set(int id, Value value) {
  if (Value* found = find(id)) *found = std::move(value);
  else values.emplace_back(id, std::move(value));
}

Interpreter::Interpreter(const Program& program, const Context& context, const Limits& limits, std::string now)
    : program_(program),
      limits_(limits),
      now_(std::move(now)),
      root_(std::make_shared<Scope>()),
      scope_(root_),
      loop_id_(program.id_of("loop")),
      caller_id_(program.id_of("caller")),
      varargs_id_(program.id_of("varargs")),
      kwargs_id_(program.id_of("kwargs")) {
  for (const auto& [name, value] : context) {
    if (const int id = program.id_of(name); id >= 0) root_->set(id, value);
  }
}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : closures_) scope->values.clear();
  for (const auto& space : namespaces_) space->attributes = {};
}

MarkedText Interpreter::render() {
  MarkedText text;
  output_ = &text;
  try {
    run(program_.body);
  } catch (Raised& raised) {
    throw Failure{line_, std::move(raised.type), std::move(raised.message)};
  }
  return text;
}

void Interpreter::fail_work() const {
  raise("LimitError", fmt::format("the template does not end: it was stopped after {} steps", limits_.work));
}

Value Interpreter::string(MarkedText text) {
  const auto size = static_cast<int64_t>(text.size());
  if (size > limits_.text_bytes)
    raise("LimitError", fmt::format("a text of {} bytes, the limit is {}", size, limits_.text_bytes));
  work(size / 8);
  return Value::string(std::move(text));
}

Value Interpreter::new_namespace(Dict attributes) {
  auto space = std::make_shared<Namespace>();
  space->attributes = std::move(attributes);
  namespaces_.push_back(space);
  return {Kind::name_space, std::move(space)};
}

Interpreter::Flow Interpreter::run(const Body& body) {
  for (const auto& statement : body) {
    const Flow flow = run(*statement);
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Interpreter::Flow Interpreter::run(const Statement& s) {
  work(1);
  line_ = s.line;
  switch (s.type) {
    case Statement::output:
      for (const ExprPtr& expr : s.exprs) write(eval(*expr));
      break;
    case Statement::set: assign(*s.target, eval(*s.expr)); break;
    case Statement::set_block: assign(*s.target, through_filters(s.expr.get(), string(captured(s.body)))); break;
    case Statement::for_: run_for(s); break;
    case Statement::if_: return run(truthy(eval(*s.expr)) ? s.body : s.otherwise);
    case Statement::macro: run_macro(s); break;
    case Statement::call_block: run_call_block(s); break;
    case Statement::filter_block: write(through_filters(s.expr.get(), string(captured(s.body)))); break;
    case Statement::with: run_with(s); break;
    case Statement::block: {
      const Keep<ScopePtr> scope(scope_, inside(root_));
      run(s.body);
      break;
    }
    case Statement::generation: {
      const Keep<ScopePtr> scope(scope_, inside(scope_));
      const Keep<int32_t> number(generation_, generation_ >= 0 ? generation_ : generations_++);
      run(s.body);
      break;
    }
    case Statement::break_: return Flow::break_;
    case Statement::continue_: return Flow::continue_;
  }
  return Flow::on;
}

void Interpreter::note_printed(const Value& value) {
  if (value.is_dict() && value.dict().call_arguments) misused_call_arguments = true;
}

void Interpreter::write(const Value& value) {
  note_printed(value);
  if (value.is_string()) {
    output_->append_in(value.text(), turn_, generation_);
  } else {
    output_->append_in(to_text(value), turn_, generation_);
  }
  if (static_cast<int64_t>(output_->size()) > limits_.text_bytes)
    raise("LimitError", fmt::format("more than {} bytes of output", limits_.text_bytes));
  work(1);
}

MarkedText Interpreter::captured(const Body& body) {
  MarkedText text;
  const Keep<MarkedText*> output(output_, &text);
  const Keep<ScopePtr> scope(scope_, inside(scope_));
  run(body);
  return text;
}

Value Interpreter::through_filters(const Expr* filters, Value value) {
  return filters == nullptr ? value : eval_filter(*filters, &value);
}

// ---- loops

void Interpreter::run_for(const Statement& loop) { walk(loop, eval(*loop.expr), 0); }

std::vector<Value> Interpreter::filtered(const Statement& loop, std::vector<Value> items) {
  const Keep<ScopePtr> scope(scope_, inside(scope_));
  std::vector<Value> kept;
  for (Value& item : items) {
    scope_->values.clear();
    assign(*loop.target, item);
    if (truthy(eval(*loop.test))) kept.push_back(std::move(item));
  }
  return kept;
}

void Interpreter::walk(const Statement& loop, const Value& iterable, int depth) {
  std::vector<Value> items = iterate(iterable);
  work(static_cast<int64_t>(items.size()));
  if (iterable.is_string() && iterable.str().call_arguments) misused_call_arguments = true;
  if (loop.test) items = filtered(loop, std::move(items));
  if (items.empty()) {
    const Keep<ScopePtr> scope(scope_, inside(scope_));
    run(loop.otherwise);
    return;
  }
  const ScopePtr outer = scope_;
  const Keep<ScopePtr> scope(scope_, nullptr);
  const Keep<int32_t> turn(turn_, turn_);
  const auto context = std::make_shared<LoopContext>(loop, std::move(items), depth, outer);
  struct Forget {
    ~Forget() { context.forget(); }
    LoopContext& context;
  } forget{*context};
  for (; context->index() < context->size(); context->advance()) {
    const Value& item = context->current();
    scope_ = inside(outer);
    if (loop_id_ >= 0) scope_->values.emplace_back(loop_id_, Value::callable(context));
    assign(*loop.target, item);
    if (item.is_dict() && item.dict().message >= 0) turn_ = item.dict().message;
    if (run(loop.body) == Flow::break_) return;
  }
}

Value Interpreter::loop_again(const Statement& loop, const ScopePtr& scope, const Value& items, int depth) {
  if (++calls_ > limits_.calls) raise("RecursionError", "maximum recursion depth exceeded");
  MarkedText text;
  {
    const Keep<MarkedText*> output(output_, &text);
    const Keep<ScopePtr> outer(scope_, scope);
    walk(loop, items, depth);
  }
  --calls_;
  return string(std::move(text));
}

// ---- names

void Interpreter::assign(const Expr& target, const Value& value) {
  if (target.type == Expr::name) return scope_->set(target.id, value);
  if (target.type == Expr::space_name) {
    const Value space = eval_name(target);
    if (space.kind() != Kind::name_space)
      raise("TemplateRuntimeError", "cannot assign attribute on non-namespace object");
    if (target.text.starts_with("_"))
      raise("SecurityError",
            fmt::format("Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{}'. "
                        "Please rename the attribute.",
                        target.text));
    static_cast<const Namespace&>(*space.object()).attributes.set(Value::string(target.text), value);
    return;
  }
  const std::vector<Value> parts = iterate(value);
  const size_t wanted = target.items.size();
  if (parts.size() > wanted) raise("ValueError", fmt::format("too many values to unpack (expected {})", wanted));
  if (parts.size() < wanted)
    raise("ValueError", fmt::format("not enough values to unpack (expected {}, got {})", wanted, parts.size()));
  for (size_t i = 0; i < wanted; ++i) assign(*target.items[i], parts[i]);
}

void Interpreter::run_with(const Statement& with) {
  const ScopePtr scope = inside(scope_);
  std::vector<Value> values;
  for (const ExprPtr& expr : with.exprs) values.push_back(eval(*expr));
  const Keep<ScopePtr> keep(scope_, scope);
  for (size_t i = 0; i < values.size(); ++i) assign(*with.targets[i], values[i]);
  run(with.body);
}

// ---- macros

void Interpreter::run_macro(const Statement& macro) {
  closures_.push_back(scope_);
  scope_->set(macro.id, Value::callable(std::make_shared<Macro>(macro, scope_)));
}

void Interpreter::run_call_block(const Statement& block) {
  closures_.push_back(scope_);
  const Expr& call = *block.expr;
  const Value function = eval(*call.items[0]);
  Arguments arguments;
  eval_arguments(call, arguments);
  arguments.named.emplace_back("caller", Value::callable(std::make_shared<Macro>(block, scope_)));
  line_ = call.line;
  need_defined(function);
  if (function.kind() != Kind::callable) type_error(fmt::format("'{}' object is not callable", type_name(function)));
  write(function.callable().call(*this, arguments));
}

namespace {

// Takes a keyword argument out of the list.
std::optional<Value> take_named(Arguments& arguments, std::string_view name) {
  for (size_t i = 0; i < arguments.named.size(); ++i) {
    if (arguments.named[i].first != name) continue;
    Value value = std::move(arguments.named[i].second);
    arguments.named.erase(arguments.named.begin() + static_cast<int64_t>(i));
    return value;
  }
  return std::nullopt;
}

}  // namespace

Value Interpreter::call_macro(const Statement& macro, const ScopePtr& closure, Arguments& arguments) {
  if (++calls_ > limits_.calls) raise("RecursionError", "maximum recursion depth exceeded");
  const Signature& signature = macro.signature;
  const ScopePtr scope = inside(closure);
  const size_t count = signature.parameters.size();
  std::vector<std::optional<Value>> given(count);
  bool explicit_caller = false;
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = signature.parameters[i];
    explicit_caller = explicit_caller || parameter.name == "caller";
    given[i] = i < arguments.positional.size() ? std::optional(arguments.positional[i])
                                               : take_named(arguments, parameter.name);
  }
  if (signature.uses_caller && !explicit_caller) {
    const std::optional<Value> caller = take_named(arguments, "caller");
    scope->set(caller_id_, caller ? *caller : Value::undefined("No caller defined"));
  }
  if (signature.uses_kwargs) {
    auto rest = std::make_shared<Dict>();
    for (auto& [name, value] : arguments.named) rest->set(Value::string(name), value);
    scope->set(kwargs_id_, Value::dict(std::move(rest)));
  } else if (!arguments.named.empty()) {
    type_error(fmt::format("macro '{}' takes no keyword argument '{}'", signature.name, arguments.named[0].first));
  }
  if (signature.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    scope->set(varargs_id_, Value::tuple(std::move(rest)));
  } else if (arguments.positional.size() > count) {
    type_error(fmt::format("macro '{}' takes not more than {} argument(s)", signature.name, count));
  }
  MarkedText text;
  {
    const Keep<ScopePtr> keep(scope_, scope);
    for (size_t i = 0; i < count; ++i) {
      const Parameter& parameter = signature.parameters[i];
      if (given[i]) scope->set(parameter.id, *given[i]);
      else if (parameter.otherwise) scope->set(parameter.id, eval(*parameter.otherwise));
      else scope->set(parameter.id, Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
    const Keep<MarkedText*> output(output_, &text);
    run(macro.body);
  }
  --calls_;
  return string(std::move(text));
}

}  // namespace sluice::jinja
