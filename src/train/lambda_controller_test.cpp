#include "train/lambda_controller.h"

#include <doctest/doctest.h>

#include <vector>

#include "core/error.h"

namespace sluice {

namespace {

using Action = LambdaController::Action;

// Observes the log-probabilities one after another; lambda after each.
std::vector<double> lambdas(LambdaController& controller, const std::vector<double>& chosen) {
  std::vector<double> result;
  for (double value : chosen) {
    controller.observe(value);
    result.push_back(controller.state().lambda);
  }
  return result;
}

}  // namespace

TEST_CASE(
    "lambda controller: it rises while the chosen answers hold, up to its limit, and the first validation sets the "
    "mark") {
  LambdaController c({.start = 0.2, .max = 0.5, .patience = 2});
  CHECK(lambdas(c, {-2, -1.9, -1.9, -1.8, -1.7}) == std::vector<double>{0.2, 0.2 * 1.5, 0.2 * 1.5 * 1.5, 0.5, 0.5});
  CHECK(c.state().action == Action::raised);
}

TEST_CASE(
    "lambda controller: inside the band it holds, a single fall is watched, and as many as its patience lower it") {
  LambdaController c({.start = 0.2, .max = 1, .patience = 3});
  lambdas(c, {-1, -1.01});
  CHECK(c.state().action == Action::held);
  lambdas(c, {-1.1, -1.1});
  CHECK(c.state().action == Action::watched);
  CHECK(c.state().lambda == 0.2);
  lambdas(c, {-1.01, -1.1, -1.1});  // back in the band: counted anew
  CHECK(c.state().action == Action::watched);
  c.observe(-1.1);
  CHECK(c.state().action == Action::lowered);
  CHECK(c.state().lambda == 0.1);
  // For as many validations it is not raised again.
  CHECK(lambdas(c, {-0.9, -0.9, -0.9}) == std::vector<double>{0.1, 0.1, 0.1});
  c.observe(-0.9);
  CHECK(c.state().lambda == 0.1 * 1.5);
}

TEST_CASE("lambda controller: it is never lowered below a tenth of its start") {
  LambdaController c({.start = 0.4, .max = 1, .patience = 1});
  c.observe(-1);
  for (int i = 0; i < 10; ++i) c.observe(-2);
  CHECK(c.state().lambda == 0.4 * 0.1);
}

TEST_CASE(
    "FieldC1_lambda: a restored controller goes on as the one that was not stopped, and a damaged state is refused") {
  const std::vector<double> seen = {-1, -0.99, -1.1, -1.2, -0.9, -0.8, -0.7, -0.95};
  LambdaController whole({.start = 0.1, .max = 1, .patience = 2}), part = whole;
  lambdas(whole, seen);
  lambdas(part, {seen.begin(), seen.begin() + 3});
  LambdaController resumed({.start = 0.1, .max = 1, .patience = 2});
  resumed.restore(Json::parse(part.json().dump()));
  lambdas(resumed, {seen.begin() + 3, seen.end()});
  CHECK(resumed.json() == whole.json());
  CHECK_THROWS_AS(resumed.restore(Json()), Error);
  Json other = whole.json();
  other["action"] = "danced";
  CHECK_THROWS_AS(resumed.restore(other), Error);
}

}  // namespace sluice
