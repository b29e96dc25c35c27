#include "ops/rope/rope.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "ops/rope/rope_ref.h"
#include "support/close.h"
#include "support/complex_step.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

std::vector<double> frequencies_of(int64_t D, double theta = 10000) {
  std::vector<double> f;
  for (int64_t i = 0; i < D / 2; ++i)
    f.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(D)));
  return f;
}

struct Case {
  int64_t N, heads, D;
};
const Case cases[] = {{1, 1, 2}, {5, 3, 6}, {7, 2, 16}, {70, 9, 64}, {3, 1, 80}, {2, 2, 256}};

std::vector<float> table_of(const Case& c, double factor = 1) {
  std::vector<int32_t> positions;
  for (int64_t n = 0; n < c.N; ++n) positions.push_back(static_cast<int32_t>(n * 1013 + 5));
  std::vector<float> table(static_cast<size_t>(c.N * c.D));
  ref::rope_table(c.N, c.D, frequencies_of(c.D).data(), factor, positions.data(), table.data());
  return table;
}

template <class T>
std::vector<T> ref_rope(const Case& c, const std::vector<float>& values, const std::vector<float>& table,
                        bool inverse) {
  std::vector<T> x(values.begin(), values.end()), y(values.size());
  ref::rope(c.N, c.heads, c.D, x.data(), table.data(), inverse, y.data());
  return y;
}

}  // namespace

TEST_CASE("rope: the inverse is the gradient of the forward, by the complex step") {
  const Case c{3, 2, 6};
  const auto table = table_of(c, 1.25);
  const auto x = random_values(static_cast<size_t>(c.N * c.heads * c.D), 1), dy = random_values(x.size(), 2);
  const auto gradient =
      complex_step_gradient(std::vector<double>(x.begin(), x.end()), [&](const std::vector<Complex>& z) {
        std::vector<Complex> y(z.size());
        ref::rope(c.N, c.heads, c.D, z.data(), table.data(), false, y.data());
        Complex sum = 0;
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * static_cast<double>(dy[i]);
        return sum;
      });
  CHECK(max_difference(ref_rope<double>(c, dy, table, true), gradient) < 1e-13);
}

TEST_CASE("rope: each backend is as close to f64 as plain loops in its precision") {
  for (Isa isa : built_isas())
    for (const Case& c : cases)
      for (bool inverse : {false, true}) {
        for (DType x_dtype : {DType::f32, DType::bf16})
          for (DType y_dtype : {DType::f32, DType::bf16}) {
            CAPTURE(c.D);
            const auto values = random_values(static_cast<size_t>(c.N * c.heads * c.D), 3);
            const auto table_values = table_of(c);
            const Shape shape{c.N, c.heads * c.D};
            Buffer x(x_dtype, shape, values), y(y_dtype, shape), table(DType::f32, {c.N, c.D}, table_values);
            fill(y, NAN);
            TestContext ctx(isa, 2, 1 << 16);
            rope(ctx, {.x = x, .table = table, .y = y, .head_dim = c.D, .inverse = inverse});
            const auto exact = ref_rope<double>(c, values, table_values, inverse);
            Buffer plain(y_dtype, shape, ref_rope<float>(c, values, table_values, inverse));
            check_close(to_double(y), exact, to_double(plain), y_dtype);
          }
      }
}

TEST_CASE("rope: in place gives the bytes of out of place, with 1 and 2 threads") {
  const Case c{77, 5, 48};
  const auto values = random_values(static_cast<size_t>(c.N * c.heads * c.D), 3);
  const Shape shape{c.N, c.heads * c.D};
  for (Isa isa : built_isas())
    for (DType dtype : {DType::f32, DType::bf16}) {
      Buffer x(dtype, shape, values), y(dtype, shape), table(DType::f32, {c.N, c.D}, table_of(c));
      TestContext one(isa, 1, 1 << 16), two(isa, 2, 1 << 16);
      rope(one, {.x = x, .table = table, .y = y, .head_dim = c.D});
      rope(two, {.x = x, .table = table, .y = x, .head_dim = c.D});
      CHECK(std::memcmp(x.tensor.data, y.tensor.data, static_cast<size_t>(y.tensor.size_bytes())) == 0);
    }
}

TEST_CASE("rope_table: cosines and sines are those of float64 angles, far from the origin too") {
  const int64_t D = 64;
  const auto frequencies = frequencies_of(D, 1e5);
  std::vector<int32_t> positions = {0, 1, 77, 8191, 100003, 1000003};
  const int64_t N = static_cast<int64_t>(positions.size());
  Tensor p{.data = positions.data(), .dtype = DType::i32, .shape = {N}};
  std::vector<float> exact(static_cast<size_t>(N * D));
  ref::rope_table(N, D, frequencies.data(), 1.1386, positions.data(), exact.data());
  for (Isa isa : built_isas()) {
    TestContext ctx(isa, 2, 1 << 16);
    Buffer table(DType::f32, {N, D});
    fill(table, NAN);
    rope_table(ctx, {.frequencies = frequencies.data(), .factor = 1.1386, .positions = p, .table = table});
    CHECK(max_difference(to_double(table), to_double(exact)) <= 1e-7);
    // Independent of the reference: long double angle, reduced by its own remainder.
    const long double angle =
        std::remainder(1000003.0L * static_cast<long double>(frequencies[3]), 2 * 3.141592653589793238462643L);
    CHECK(table.tensor.as<float>()[5 * D + 3] ==
          doctest::Approx(1.1386 * static_cast<double>(std::cos(angle))).epsilon(1e-6));
    CHECK(table.tensor.as<float>()[0] == doctest::Approx(1.1386));
  }
}

TEST_CASE("rope: a zero frequency leaves its pair as it is") {
  const std::vector<double> frequencies = {1.0, 0.0};
  std::vector<int32_t> positions = {9};
  TestContext ctx(Isa::avx2, 2, 1 << 16);
  Buffer table(DType::f32, {1, 4}), x(DType::f32, {1, 4}, {1, 2, 3, 4});
  rope_table(ctx,
             {.frequencies = frequencies.data(), .positions = {positions.data(), DType::i32, {1}}, .table = table});
  rope(ctx, {.x = x, .table = table, .y = x, .head_dim = 4});
  CHECK(x.tensor.as<float>()[1] == 2);
  CHECK(x.tensor.as<float>()[3] == 4);
  CHECK(x.tensor.as<float>()[0] == doctest::Approx(std::cos(9.0) - 3 * std::sin(9.0)));
}

TEST_CASE("rope: shapes and dtypes that do not fit are refused") {
  TestContext ctx(Isa::avx2, 2, 1 << 16);
  Buffer x(DType::f32, {2, 12}), table(DType::f32, {2, 6}), small(DType::f32, {1, 6});
  CHECK_THROWS_AS(rope(ctx, {.x = x, .table = table, .y = x, .head_dim = 5}), Error);
  CHECK_THROWS_AS(rope(ctx, {.x = x, .table = small, .y = x, .head_dim = 6}), Error);
}
