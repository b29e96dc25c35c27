#include "ops/adamw/adamw.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <vector>

#include "ops/adamw/adamw_ref.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

struct State {
  Buffer p, m, v, g;
  explicit State(int64_t n)
      : p(DType::f32, {n}, random_values(static_cast<size_t>(n), 1)),
        m(DType::f32, {n}),
        v(DType::f32, {n}),
        g(DType::f32, {n}, random_values(static_cast<size_t>(n), 2, 0.01F)) {
    fill(m, 0);
    fill(v, 0);
  }
};

// The schedule of the golden data (tests/golden): two steps of warm-up from zero, then half a cosine to step 5.
double golden_lr(int step) {
  return step < 2 ? 1e-3 * step / 2 : 1e-3 * 0.5 * (1 + std::cos(std::numbers::pi * (step - 2) / 3));
}

std::vector<float> copy(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.numel()}; }

}  // namespace

TEST_CASE("adamw: with a constant gradient the trajectory is the closed form, and a step of rate zero moves nothing") {
  // m / (1 - b1^t) = g and v / (1 - b2^t) = g^2 at every t, so p_t = p_{t-1} (1 - lr wd) - lr g / (|g| + eps).
  for (Isa isa : built_isas()) {
    TestContext t(isa, 2);
    const int64_t n = 37;
    State s(n);
    const std::vector<float> g = copy(s.g);
    std::vector<double> expected = to_double(s.p.tensor);
    for (int step = 0; step < 5; ++step) {
      const double lr = golden_lr(step);
      const std::vector<float> before = copy(s.p);
      adamw(
          t,
          {.p = s.p, .m = s.m, .v = s.v, .g = s.g, .lr = static_cast<float>(lr), .weight_decay = 0.01F, .t = step + 1});
      if (step == 0) CHECK(copy(s.p) == before);
      for (size_t i = 0; i < expected.size(); ++i) {
        const double gi = g[i];
        expected[i] = expected[i] * (1 - lr * 0.01) - lr * gi / (std::abs(gi) + 1e-8);
      }
    }
    CHECK(max_difference(to_double(s.p.tensor), expected) < 2e-6);
  }
}

TEST_CASE("adamw: each backend is as close to f64 as plain loops") {
  for (Isa isa : built_isas()) {
    for (int threads : {1, 2}) {
      TestContext t(isa, threads);
      for (int64_t n : {1, 7, 16, 1000, 40001}) {
        State s(n);
        std::vector<double> p = to_double(s.p.tensor), m(p.size(), 0), v(p.size(), 0);
        std::vector<float> pf = copy(s.p), mf(pf.size(), 0), vf(pf.size(), 0);
        const AdamW args{.p = s.p,
                         .m = s.m,
                         .v = s.v,
                         .g = s.g,
                         .grad_scale = 0.3F,
                         .lr = 3e-3F,
                         .beta1 = 0.8F,
                         .beta2 = 0.95F,
                         .eps = 1e-6F,
                         .weight_decay = 0.1F};
        for (int64_t step = 1; step <= 4; ++step) {
          for (int64_t i = 0; i < n; ++i)
            s.g.tensor.as<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i + 3 * step)));
          const std::vector<double> g = to_double(s.g.tensor);
          AdamW now = args;
          now.t = step;
          adamw(t, now);
          ref::adamw<double>(n, p.data(), m.data(), v.data(), g.data(), 0.3F, 3e-3F, 0.8F, 0.95F, 1e-6F, 0.1F, step);
          ref::adamw<float>(n, pf.data(), mf.data(), vf.data(), s.g.tensor.as<float>(), 0.3F, 3e-3F, 0.8F, 0.95F, 1e-6F,
                            0.1F, step);
        }
        check_close(to_double(s.p.tensor), p, to_double(pf), DType::f32);
        check_close(to_double(s.m.tensor), m, to_double(mf), DType::f32);
        check_close(to_double(s.v.tensor), v, to_double(vf), DType::f32);
      }
    }
  }
}

TEST_CASE("sum_of_squares: float64, added to, the same bytes for any number of threads") {
  for (Isa isa : built_isas()) {
    for (int64_t n : {1, 15, 16384, 100003}) {
      const std::vector<float> values = random_values(static_cast<size_t>(n), 3, 1e3F);
      Buffer g(DType::f32, {n}, values);
      long double exact = 0;
      for (float x : values) exact += static_cast<long double>(x) * static_cast<long double>(x);
      double first[2] = {};
      for (int threads : {1, 2, 5}) {
        TestContext t(isa, threads);
        double result[2] = {0, 0};
        sum_of_squares(t, {.g = g, .result = result});
        CHECK(std::abs(result[0] - static_cast<double>(exact)) <= 1e-12 * static_cast<double>(exact));
        CHECK(result[1] == 0);
        if (threads == 1) std::memcpy(first, result, sizeof first);
        CHECK(std::memcmp(first, result, sizeof first) == 0);
        sum_of_squares(t, {.g = g, .result = result});
        CHECK(result[0] == 2 * first[0]);
      }
    }
  }
}

TEST_CASE("sum_of_squares: counts what is not finite") {
  for (Isa isa : built_isas()) {
    TestContext t(isa, 2);
    Buffer g(DType::f32, {20001});
    fill(g, 1);
    g.tensor.as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
    g.tensor.as<float>()[17000] = -std::numeric_limits<float>::infinity();
    g.tensor.as<float>()[20000] = std::numeric_limits<float>::infinity();
    double result[2] = {0, 0};
    sum_of_squares(t, {.g = g, .result = result});
    CHECK(result[1] == 3);
  }
}

TEST_CASE("adamw: misuse is our own mistake") {
  TestContext t(built_isas()[0], 1, 1 << 20);
  State s(4), other(5);
  CHECK_THROWS_AS(adamw(t, {.p = s.p, .m = s.m, .v = s.v, .g = other.g}), Error);
  CHECK_THROWS_AS(adamw(t, {.p = s.p, .m = s.m, .v = s.v, .g = s.g, .t = 0}), Error);
}
