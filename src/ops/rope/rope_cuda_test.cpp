// Heads wider and more numerous than one block of the CUDA kernel takes at once, and more frequencies than one launch carries.
#include "ops/rope/rope.h"

#include <doctest/doctest.h>

#include <cmath>

#include "ops/rope/rope_ref.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

TEST_CASE("rope on CUDA: few and many heads, narrow and wide") {
  if (!on_cuda()) return;
  struct Case {
    int64_t N, heads, D;
  };
  for (const Case& c : {Case{300, 1, 64}, {37, 2, 128}, {130, 32, 128}, {19, 8, 256}, {5, 70, 512}, {3, 2, 1040}}) {
    CAPTURE(c.D);
    std::vector<double> frequencies;
    for (int64_t i = 0; i < c.D / 2; ++i)
      frequencies.push_back(std::pow(1e4, -2.0 * static_cast<double>(i) / static_cast<double>(c.D)));
    std::vector<int32_t> positions;
    for (int64_t n = 0; n < c.N; ++n) positions.push_back(static_cast<int32_t>(n * 1013 + 5));
    TestContext ctx(Isa::avx2);
    Buffer table(DType::f32, {c.N, c.D});
    fill(table, NAN);
    rope_table(ctx, {.frequencies = frequencies.data(),
                     .factor = 0.9,
                     .positions = {positions.data(), DType::i32, {c.N}},
                     .table = table});
    std::vector<float> expected(static_cast<size_t>(c.N * c.D));
    ref::rope_table(c.N, c.D, frequencies.data(), 0.9, positions.data(), expected.data());
    CHECK(max_difference(to_double(table.tensor), to_double(expected)) <= 1e-7);

    const Shape shape{c.N, c.heads * c.D};
    const std::vector<float> values = random_values(static_cast<size_t>(shape.numel()), 3);
    const std::vector<double> xs(values.begin(), values.end());
    const float* angles = table.tensor.as<float>();
    for (bool inverse : {false, true}) {
      std::vector<double> exact(xs.size());
      std::vector<float> plain(xs.size());
      ref::rope(c.N, c.heads, c.D, xs.data(), angles, inverse, exact.data());
      ref::rope(c.N, c.heads, c.D, values.data(), angles, inverse, plain.data());
      for (DType x_dtype : {DType::f32, DType::bf16})
        for (DType y_dtype : {DType::f32, DType::bf16}) {
          Buffer x(x_dtype, shape, values), y(y_dtype, shape);
          fill(y, NAN);
          rope(ctx, {.x = x, .table = table, .y = y, .head_dim = c.D, .inverse = inverse});
          check_close(to_double(y.tensor), exact, to_double(Buffer(y_dtype, shape, plain).tensor), y_dtype);
        }
    }
  }
}
