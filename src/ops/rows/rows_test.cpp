#include "ops/rows/rows.h"

#include "ops/rows/rows_ref.h"
#include "support/close.h"
#include "support/contexts.h"

namespace sluice {
namespace {

using namespace sluice::test;

Tensor view(std::vector<int32_t>& index) {
  return {.data = index.data(), .dtype = DType::i32, .shape = {static_cast<int64_t>(index.size())}};
}

std::vector<double> rounded(std::vector<double> values, DType dtype) {
  for (double& v : values) {
    v = dtype == DType::bf16 ? static_cast<double>(static_cast<float>(bf16(static_cast<float>(v))))
                             : static_cast<double>(static_cast<float>(v));
  }
  return values;
}

// The same loops in float, as plain values to measure against.
template <class T>
std::vector<double> ref_scatter(int64_t N, int64_t C, const std::vector<float>& x, const std::vector<float>& weight,
                                const std::vector<int32_t>& index) {
  const std::vector<T> xs(x.begin(), x.end()), ws(weight.begin(), weight.end());
  std::vector<T> y(static_cast<size_t>(N * C));
  ref::scatter_rows<T>(static_cast<int64_t>(index.size()), N, C, xs.data(), ws.data(), index.data(), y.data());
  return {y.begin(), y.end()};
}

TEST_CASE("gather_rows: the rows asked for, bit for bit, repeats allowed") {
  for (int64_t C : {1, 7, 64, 1000}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const std::vector<float> x = random_values(static_cast<size_t>(9 * C), 1);
      std::vector<int32_t> index = {8, 0, 3, 3, 5};
      std::vector<float> expected(static_cast<size_t>(5 * C));
      ref::gather_rows<float>(5, C, x.data(), index.data(), expected.data());
      for (Isa isa : built_isas()) {
        TestContext ctx(isa, 2, 1 << 16);
        Buffer xb(dtype, {9, C}, x), y(dtype, {5, C});
        fill(y, NAN);
        gather_rows(ctx, {.x = xb, .index = view(index), .y = y});
        CHECK(to_double(y.tensor) == to_double(expected));
      }
    }
  }
}

TEST_CASE("gather_columns: a run of columns of every row, bit for bit") {
  const int64_t N = 300, C = 101;
  const std::vector<float> x = random_values(static_cast<size_t>(N * C), 6);
  for (auto [begin, count] : {std::pair<int64_t, int64_t>{0, 101}, {0, 1}, {100, 1}, {17, 64}, {5, 0}}) {
    std::vector<float> expected(static_cast<size_t>(N * count));
    ref::gather_columns<float>(N, C, x.data(), begin, count, expected.data());
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (Isa isa : built_isas()) {
        TestContext ctx(isa, 2, 1 << 16);
        Buffer xb(dtype, {N, C}, x), y(dtype, {N, count});
        fill(y, NAN);
        gather_columns(ctx, {.x = xb, .begin = begin, .y = y});
        CHECK(to_double(y.tensor) == to_double(expected));
      }
    }
  }
}

TEST_CASE("scatter_rows: weighted rows land where they belong, repeats add up in order, all else is zero") {
  for (int64_t C : {1, 7, 64, 1000}) {
    CAPTURE(C);
    const int64_t N = 83;
    std::vector<int32_t> index = {0, 2, 2, 2, 17, 40, 40, 82};
    const std::vector<float> x = random_values(index.size() * static_cast<size_t>(C), 2),
                             weight = random_values(index.size(), 3);
    const auto exact = ref_scatter<double>(N, C, x, weight, index), plain = ref_scatter<float>(N, C, x, weight, index);
    for (DType x_dtype : {DType::f32, DType::bf16}) {
      for (DType y_dtype : {DType::f32, DType::bf16}) {
        std::vector<double> first;
        for (Isa isa : built_isas()) {
          for (int threads : {1, 2}) {
            TestContext ctx(isa, threads, 1 << 16);
            Buffer xb(x_dtype, {8, C}, x), wb(DType::f32, {8}, weight), y(y_dtype, {N, C});
            fill(y, NAN);
            scatter_rows(ctx, {.x = xb, .weight = wb, .index = view(index), .y = y});
            const std::vector<double> result = to_double(y.tensor);
            check_close(result, exact, rounded(plain, y_dtype), y_dtype);
            if (first.empty()) first = result;
            CHECK(result == first);
          }
        }
      }
    }
  }
}

TEST_CASE("scatter_rows: without rows everything is zero") {
  TestContext ctx(Isa::avx2, 1, 1 << 16);
  std::vector<int32_t> none;
  Buffer x(DType::f32, {0, 5}), weight(DType::f32, {0}), y(DType::f32, {3, 5});
  fill(y, NAN);
  scatter_rows(ctx, {.x = x, .weight = weight, .index = view(none), .y = y});
  CHECK(to_double(y.tensor) == std::vector<double>(15));
}

TEST_CASE("scale_into: every pair of dtypes, set and add, in place too") {
  for (int64_t count : {1, 15, 16, 1003, 40001}) {
    const std::vector<float> x = random_values(static_cast<size_t>(count), 4),
                             y0 = random_values(static_cast<size_t>(count), 5);
    for (Write write : {Write::set, Write::add}) {
      std::vector<double> exact(y0.begin(), y0.end()), xs(x.begin(), x.end());
      std::vector<float> plain = y0;
      ref::scale_into<double>(count, xs.data(), double(-0.37F), write == Write::add, exact.data());
      ref::scale_into<float>(count, x.data(), -0.37F, write == Write::add, plain.data());
      for (DType x_dtype : {DType::f32, DType::bf16}) {
        for (DType y_dtype : {DType::f32, DType::bf16}) {
          for (Isa isa : built_isas()) {
            TestContext ctx(isa, 2, 1 << 16);
            Buffer xb(x_dtype, {count}, x), y(y_dtype, {count}, y0);
            if (write == Write::set) fill(y, NAN);
            scale_into(ctx, {.x = xb, .y = y, .scale = -0.37F, .write = write});
            check_close(to_double(y.tensor), exact, rounded(to_double(plain), y_dtype), y_dtype);
          }
        }
      }
    }
    Buffer both(DType::f32, {count}, x);
    TestContext ctx(Isa::avx2, 2, 1 << 16);
    scale_into(ctx, {.x = both, .y = both, .scale = 2, .write = Write::add});
    std::vector<double> three(x.begin(), x.end());
    for (double& v : three) v *= 3;
    CHECK(to_double(both.tensor) == rounded(three, DType::f32));
  }
}

TEST_CASE("rows: what does not fit is our own mistake and caught") {
  TestContext ctx(Isa::avx2, 2, 1 << 16);
  Buffer x(DType::f32, {3, 4}), y(DType::f32, {3, 4}), weight(DType::f32, {3}), narrow(DType::f32, {3, 3});
  std::vector<int32_t> outside = {0, 1, 3}, unsorted = {0, 2, 1};
  CHECK_THROWS_AS(gather_rows(ctx, {.x = x, .index = view(outside), .y = y}), Error);
  CHECK_THROWS_AS(gather_rows(ctx, {.x = x, .index = view(unsorted), .y = narrow}), Error);
  CHECK_THROWS_AS(scatter_rows(ctx, {.x = x, .weight = weight, .index = view(outside), .y = y}), Error);
  CHECK_THROWS_AS(scatter_rows(ctx, {.x = x, .weight = weight, .index = view(unsorted), .y = y}), Error);
  CHECK_THROWS_AS(scale_into(ctx, {.x = x, .y = narrow}), Error);
  CHECK_THROWS_AS(gather_columns(ctx, {.x = x, .begin = 2, .y = narrow}), Error);
}

}  // namespace
}  // namespace sluice
