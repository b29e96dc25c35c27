#include "ops/activation/activation.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "ops/activation/activation_ref.h"
#include "support/close.h"
#include "support/complex_step.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr Activation activations[] = {Activation::silu, Activation::gelu_tanh};

struct Values {
  std::vector<float> a, b, dy;
  explicit Values(int64_t count)
      : a(random_values(static_cast<size_t>(count), 1, 4)),
        b(random_values(a.size(), 2)),
        dy(random_values(a.size(), 3)) {}
};

template <class T>
struct Result {
  std::vector<T> y, da, db;
};
template <class T>
Result<T> reference(Activation activation, const Values& v) {
  const std::vector<T> a(v.a.begin(), v.a.end()), b(v.b.begin(), v.b.end()), dy(v.dy.begin(), v.dy.end());
  Result<T> r{std::vector<T>(a.size()), std::vector<T>(a.size()), std::vector<T>(a.size())};
  const int64_t count = static_cast<int64_t>(a.size());
  ref::gated_forward(activation, count, a.data(), b.data(), r.y.data());
  ref::gated_backward(activation, count, a.data(), b.data(), dy.data(), r.da.data(), r.db.data());
  return r;
}

}  // namespace

TEST_CASE("gated_backward: the reference agrees with the complex step") {
  const int64_t count = 15;
  const Values v(count);
  for (Activation activation : activations) {
    const Result<double> r = reference<double>(activation, v);
    std::vector<double> inputs(v.a.begin(), v.a.end());
    inputs.insert(inputs.end(), v.b.begin(), v.b.end());
    const auto gradient = complex_step_gradient(inputs, [&](const std::vector<Complex>& z) {
      std::vector<Complex> y(static_cast<size_t>(count));
      ref::gated_forward(activation, count, z.data(), z.data() + count, y.data());
      Complex sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(v.dy[i]);
      return sum;
    });
    std::vector<double> both = r.da;
    both.insert(both.end(), r.db.begin(), r.db.end());
    CHECK(max_difference(both, gradient) < 1e-13);
  }
}

TEST_CASE("gated: each backend is as close to f64 as plain loops in its precision") {
  for (Isa isa : built_isas())
    for (Activation activation : activations)
      for (DType dtype : {DType::f32, DType::bf16}) {
        for (int64_t F : {1, 7, 64, 1001}) {
          CAPTURE(F);
          const Shape shape{19, F};
          const Values v(shape.numel());
          Buffer a(dtype, shape, v.a), b(dtype, shape, v.b), dy(dtype, shape, v.dy);
          Buffer y(dtype, shape), da(dtype, shape), db(dtype, shape);
          for (const Buffer* out : {&y, &da, &db}) fill(*out, NAN);
          TestContext ctx(isa, 2, 1 << 16);
          gated_forward(ctx, {.activation = activation, .a = a, .b = b, .y = y});
          gated_backward(ctx, {.activation = activation, .a = a, .b = b, .dy = dy, .da = da, .db = db});
          const auto exact = reference<double>(activation, v);
          const auto plain = reference<float>(activation, v);
          check_close(to_double(y), exact.y, to_double(Buffer(dtype, shape, plain.y)), dtype);
          check_close(to_double(da), exact.da, to_double(Buffer(dtype, shape, plain.da)), dtype);
          check_close(to_double(db), exact.db, to_double(Buffer(dtype, shape, plain.db)), dtype);
        }
      }
}

TEST_CASE("gated: in place gives the bytes of out of place, with 1 and 2 threads") {
  const Shape shape{50, 333};
  const Values v(shape.numel());
  const auto bytes = [](const Buffer& b) {
    const auto* p = static_cast<const std::byte*>(b.tensor.data);
    return std::vector<std::byte>(p, p + b.tensor.size_bytes());
  };
  for (Isa isa : built_isas())
    for (Activation activation : activations)
      for (DType dtype : {DType::f32, DType::bf16}) {
        Buffer a(dtype, shape, v.a), b(dtype, shape, v.b), dy(dtype, shape, v.dy);
        Buffer y(dtype, shape), da(dtype, shape), db(dtype, shape);
        TestContext one(isa, 1, 1 << 16), two(isa, 2, 1 << 16);
        gated_forward(one, {.activation = activation, .a = a, .b = b, .y = y});
        gated_backward(one, {.activation = activation, .a = a, .b = b, .dy = dy, .da = da, .db = db});
        {
          Buffer a2(dtype, shape, v.a), b2(dtype, shape, v.b);
          gated_forward(two, {.activation = activation, .a = a2, .b = b, .y = a2});
          gated_forward(two, {.activation = activation, .a = a, .b = b2, .y = b2});
          CHECK(bytes(a2) == bytes(y));
          CHECK(bytes(b2) == bytes(y));
        }
        {
          Buffer a2(dtype, shape, v.a), b2(dtype, shape, v.b), dy2(dtype, shape, v.dy);
          gated_backward(two, {.activation = activation, .a = a2, .b = b2, .dy = dy2, .da = a2, .db = b2});
          CHECK(bytes(a2) == bytes(da));
          CHECK(bytes(b2) == bytes(db));
          gated_backward(two, {.activation = activation, .a = a, .b = b, .dy = dy2, .da = dy2, .db = {}});
          CHECK(bytes(dy2) == bytes(da));
        }
        {
          Buffer dy2(dtype, shape, v.dy), da2(dtype, shape);
          gated_backward(two, {.activation = activation, .a = a, .b = b, .dy = dy2, .da = da2, .db = dy2});
          CHECK(bytes(dy2) == bytes(db));
          CHECK(bytes(da2) == bytes(da));
        }
      }
}

TEST_CASE("gated: large inputs give the limits, not NaN") {
  const std::vector<float> a = {-1e30F, -1e4F, -88, 0, 88, 1e4F, 1e30F}, ones(7, 1.0F);
  for (Isa isa : built_isas())
    for (Activation activation : activations) {
      TestContext ctx(isa, 2, 1 << 16);
      Buffer at(DType::f32, {1, 7}, a), one(DType::f32, {1, 7}, ones), y(DType::f32, {1, 7}), da(DType::f32, {1, 7});
      gated_forward(ctx, {.activation = activation, .a = at, .b = one, .y = y});
      gated_backward(ctx, {.activation = activation, .a = at, .b = one, .dy = one, .da = da, .db = {}});
      for (size_t i = 0; i < a.size(); ++i) {
        CAPTURE(a[i]);
        CHECK(y.tensor.as<float>()[i] == doctest::Approx(std::max(a[i], 0.0F)));
        CHECK(da.tensor.as<float>()[i] == doctest::Approx(a[i] > 0 ? 1.0 : a[i] < 0 ? 0.0 : 0.5));
      }
    }
}

TEST_CASE("gated: shapes, dtypes and aliases that do not fit are refused") {
  TestContext ctx(Isa::avx2, 2, 1 << 16);
  Buffer a(DType::f32, {2, 8}), half(DType::bf16, {2, 8}), wide(DType::f32, {2, 9});
  CHECK_THROWS_AS(gated_forward(ctx, {.a = a, .b = half, .y = a}), Error);
  CHECK_THROWS_AS(gated_forward(ctx, {.a = a, .b = a, .y = wide}), Error);
  CHECK_THROWS_AS(gated_backward(ctx, {.a = a, .b = a, .dy = a, .da = a, .db = a}), Error);
}
