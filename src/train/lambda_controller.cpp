#include "train/lambda_controller.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"

namespace sluice {

namespace {

constexpr double band = 0.02, raise = 1.5, lower = 0.5, lowest = 0.1;
constexpr std::array<std::string_view, 5> names = {"started", "raised", "held", "watched", "lowered"};

}  // namespace

std::string_view to_string(LambdaController::Action action) { return names[static_cast<size_t>(action)]; }

void LambdaController::observe(double chosen) {
  State& s = state_;
  if (!s.has_mark) {
    s.mark = chosen;
    s.has_mark = true;
    return;
  }
  const double fall = s.mark - chosen;
  s.mark = std::max(s.mark, chosen);
  const bool may_raise = s.quiet == 0;
  s.quiet = std::max<int64_t>(s.quiet - 1, 0);
  s.action = Action::held;
  if (fall > band * std::abs(s.mark)) {
    s.action = Action::watched;
    if (++s.below < limits_.patience) return;
    s.lambda = std::max(s.lambda * lower, limits_.start * lowest);
    s.action = Action::lowered;
    s.quiet = limits_.patience;
  } else if (fall <= 0 && may_raise) {
    s.lambda = std::min(s.lambda * raise, limits_.max);
    s.action = Action::raised;
  }
  s.below = 0;
}

Json LambdaController::json() const {
  return {{"orpo_lambda", state_.lambda}, {"mark", state_.mark},   {"has_mark", state_.has_mark},
          {"below", state_.below},        {"quiet", state_.quiet}, {"action", to_string(state_.action)}};
}

void LambdaController::restore(const Json& j) {
  try {
    state_.lambda = j.at("orpo_lambda").get<double>();
    state_.mark = j.at("mark").get<double>();
    state_.has_mark = j.at("has_mark").get<bool>();
    state_.below = j.at("below").get<int64_t>();
    state_.quiet = j.at("quiet").get<int64_t>();
    const auto* name = std::find(names.begin(), names.end(), j.at("action").get<std::string>());
    check(name != names.end(), ErrorCode::bad_file, "the state of orpo_lambda in the checkpoint is damaged");
    state_.action = static_cast<Action>(name - names.begin());
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::bad_file, std::string("the state of orpo_lambda in the checkpoint is damaged: ") + e.what());
  }
}

}  // namespace sluice
