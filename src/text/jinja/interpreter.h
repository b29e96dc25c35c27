// Runs a template's program.
//
//   const Program program = parse(source);                       // once
//   Interpreter run(program, {{"messages", messages}, …}, limits);
//   MarkedText text = run.render();                              // throws Failure: line, type and words
//
// The program is not changed and may be run by several threads at once, each with its own Interpreter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/syntax.h"
#include "text/jinja/value.h"

namespace sluice::jinja {

// What one run may use. A unit of work is one node of the program, or eight bytes of a new string.
struct Limits {
  int64_t work = 100'000'000;
  int64_t text_bytes = int64_t{256} << 20;  // of one string, and of the output
  int calls = 100;                          // macros and recursive loops in one another
};

struct Failure {
  int line;
  std::string type, message;
};

// Names and their values in one block; names are numbers (Program::names).
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> values;
  Value* find(int id) {
    for (auto& [name, value] : values) {
      if (name == id) return &value;
    }
    return nullptr;
  }
  void set(int id, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  using Context = std::vector<std::pair<std::string, Value>>;
  Interpreter(const Program& program, const Context& context, const Limits& limits, std::string now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;

  MarkedText render();

  // Arguments of a tool call were used in the other shape's way: text through tojson, or an object printed as Python prints it.
  bool misused_call_arguments = false;

  // ---- for the builtins

  void work(int64_t units) {
    if ((work_ += units) > limits_.work) fail_work();
  }
  Value string(MarkedText text);  // a new string, counted
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  const std::string& now() const { return now_; }  // what strftime_now formats: YYYY-MM-DD HH:MM:SS
  Value add(const Value& a, const Value& b) { return binary('+', false, a, b); }
  Value new_namespace(Dict attributes);
  void note_printed(const Value& value);  // str() of a value

  // ---- for macros and loops

  Value call_macro(const Statement& macro, const ScopePtr& closure, Arguments& arguments);
  Value loop_again(const Statement& loop, const ScopePtr& scope, const Value& items, int depth);

 private:
  enum class Flow : uint8_t { on, break_, continue_ };
  struct Output;

  [[noreturn]] void fail_work() const;

  Flow run(const Body& body);
  Flow run(const Statement& statement);
  void write(const Value& value);
  MarkedText captured(const Body& body);
  void run_for(const Statement& loop);
  void walk(const Statement& loop, const Value& items, int depth);
  std::vector<Value> filtered(const Statement& loop, std::vector<Value> items);
  void assign(const Expr& target, const Value& value);
  void run_macro(const Statement& macro);
  void run_call_block(const Statement& block);
  void run_with(const Statement& with);
  Value through_filters(const Expr* filters, Value value);

  Value eval(const Expr& expr);
  Value eval_name(const Expr& expr);
  Value eval_item(const Expr& expr);
  Value eval_slice(const Value& object, const Expr& slice);
  Value eval_call(const Expr& expr);
  Value eval_filter(const Expr& expr, const Value* piped);
  Value eval_comparison(const Expr& expr);
  Value eval_concat(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_unary(const Expr& expr);
  std::vector<Value> eval_all(const Expr& expr, size_t from);
  void eval_arguments(const Expr& expr, Arguments& arguments);
  bool eval_test(const Expr& expr);
  Value binary(char sign, bool twice, const Value& a, const Value& b);
  std::optional<Value> joined(const Value& a, const Value& b);
  Value repeated(const Value& value, int64_t count);

  const Program& program_;
  Limits limits_;
  std::string now_;
  int64_t work_ = 0;
  int line_ = 1, calls_ = 0;
  int32_t turn_ = -1, generation_ = -1, generations_ = 0;
  ScopePtr root_, scope_;
  MarkedText* output_ = nullptr;
  int loop_id_, caller_id_, varargs_id_, kwargs_id_;
  // What may refer to itself: emptied at the end.
  std::vector<ScopePtr> closures_;
  std::vector<std::shared_ptr<const Namespace>> namespaces_;
  friend class LoopContext;
};

}  // namespace sluice::jinja
