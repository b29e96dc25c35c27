// ORPO's weight of the odds ratio, steered by the chosen answers of the validation set: as strong as they bear.
//
//   LambdaController controller({.start = 0.1, .max = 1, .patience = 2});
//   controller.observe(metrics["eval_logps/chosen"]);   // after each validation; the first one sets the mark
//   objective.orpo_lambda = controller.state().lambda;
//
// The mark is the best mean log-probability per token of the chosen answers so far; what counts is how far a validation lies below it:
//
//   not below                       raised:  lambda * 1.5, at most `max`; not within `patience` validations after it was lowered
//   at most 2 % of the mark below   held
//   further below                   watched: held, until it happens `patience` times in a row; then
//                                   lowered: lambda / 2, at least a tenth of `start`
//
// A pure function of what it has observed, so a resumed run continues it (docs/math/orpo.md).
#pragma once

#include <string>

#include "core/json.h"

namespace sluice {

class LambdaController {
 public:
  struct Limits {
    double start = 0.1, max = 1;
    int64_t patience = 2;
  };
  enum class Action : uint8_t { started, raised, held, watched, lowered };
  struct State {
    double lambda = 0, mark = 0;
    int64_t below = 0;  // validations in a row that lay below the band
    int64_t quiet = 0;  // validations for which lambda is not raised
    Action action = Action::started;
    bool has_mark = false;
  };

  LambdaController() = default;
  explicit LambdaController(const Limits& limits) : limits_(limits) { state_.lambda = limits.start; }

  void observe(double chosen);
  const State& state() const { return state_; }

  Json json() const;  // the state, for checkpoints and metrics
  // Throws Error(bad_file) when it is no such state.
  void restore(const Json& state);

 private:
  Limits limits_;
  State state_;
};

std::string_view to_string(LambdaController::Action action);

}  // namespace sluice
