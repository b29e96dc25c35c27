#include "text/jinja/loop_context.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::jinja {

std::string LoopContext::describe() const { return fmt::format("<LoopContext {}/{}>", index_ + 1, items_.size()); }

Value LoopContext::call(Interpreter& interpreter, Arguments& arguments) const {
  if (arguments.positional.size() != 1 || !arguments.named.empty())
    type_error("LoopContext.__call__() takes one argument");
  if (!loop_.recursive) type_error("The loop must have the 'recursive' marker to be called recursively.");
  return interpreter.loop_again(loop_, scope_, arguments.positional[0], depth_ + 1);
}

std::optional<Value> LoopContext::attribute(Interpreter&, std::string_view name) const {
  const auto index = static_cast<int64_t>(index_), size = static_cast<int64_t>(items_.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == size);
  if (name == "length") return Value(size);
  if (name == "revindex") return Value(size - index);
  if (name == "revindex0") return Value(size - index - 1);
  if (name == "depth") return Value(static_cast<int64_t>(depth_ + 1));
  if (name == "depth0") return Value(static_cast<int64_t>(depth_));
  if (name == "previtem") return index == 0 ? Value::undefined("there is no previous item") : items_[index_ - 1];
  if (name == "nextitem") return index + 1 == size ? Value::undefined("there is no next item") : items_[index_ + 1];
  return std::nullopt;
}

Value LoopContext::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) type_error("no items for cycling given");
  return arguments.positional[index_ % arguments.positional.size()];
}

Value LoopContext::changed(const Arguments& arguments) const {
  const std::vector<Value>& values = arguments.positional;
  const bool same =
      last_changed_ && std::equal(values.begin(), values.end(), last_changed_->begin(), last_changed_->end(), equal);
  last_changed_ = values;
  return Value(!same);
}

}  // namespace sluice::jinja
