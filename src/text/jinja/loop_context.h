// The variable `loop` of a for loop.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/interpreter.h"

namespace sluice::jinja {

class LoopContext final : public Callable {
 public:
  LoopContext(const Statement& loop, std::vector<Value> items, int depth, ScopePtr scope)
      : loop_(loop), items_(std::move(items)), depth_(depth), scope_(std::move(scope)) {
    this->Object::depth = depth_of(items_);
  }

  size_t index() const { return index_; }
  size_t size() const { return items_.size(); }
  const Value& current() const { return items_[index_]; }
  void advance() { ++index_; }
  void forget() { last_changed_.reset(); }  // it may hold this very object

  std::string describe() const override;
  Value call(Interpreter& interpreter, Arguments& arguments) const override;  // loop(items) of a recursive loop
  std::optional<Value> attribute(Interpreter& interpreter, std::string_view name) const override;
  Value cycle(const Arguments& arguments) const;
  Value changed(const Arguments& arguments) const;

 private:
  const Statement& loop_;
  std::vector<Value> items_;
  int depth_;
  ScopePtr scope_;
  size_t index_ = 0;
  mutable std::optional<std::vector<Value>> last_changed_;
};

}  // namespace sluice::jinja
