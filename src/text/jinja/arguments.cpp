#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"

namespace sluice::jinja {

Bound::Bound(std::string_view function, Arguments& arguments, std::initializer_list<std::string_view> parameters,
             size_t required)
    : values_(parameters.size()) {
  if (arguments.positional.size() > parameters.size()) {
    type_error(fmt::format("{}() takes at most {} arguments ({} given)", function, parameters.size(),
                           arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = std::move(arguments.positional[i]);
  for (auto& [name, value] : arguments.named) {
    const auto* found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end())
      type_error(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    std::optional<Value>& place = values_[static_cast<size_t>(found - parameters.begin())];
    if (place) type_error(fmt::format("{}() got multiple values for argument '{}'", function, name));
    place = std::move(value);
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i])
      type_error(fmt::format("{}() missing 1 required positional argument: '{}'", function, *(parameters.begin() + i)));
  }
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  need_defined(*values_[i]);
  if (!values_[i]->is_whole())
    type_error(fmt::format("'{}' object cannot be interpreted as an integer", type_name(*values_[i])));
  return values_[i]->integer();
}

const MarkedText& Bound::text(size_t i) const {
  if (values_[i] && values_[i]->is_string()) return values_[i]->text();
  type_error(fmt::format("expected str, got {}", values_[i] ? type_name(*values_[i]) : "nothing"));
}

}  // namespace sluice::jinja
