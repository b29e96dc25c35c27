// Many rows, long repetitions and gaps: searches of several steps and every width of a block.
#include "ops/rows/rows.h"

#include <doctest/doctest.h>

#include "ops/rows/rows_ref.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

TEST_CASE("scatter_rows on CUDA: long repetitions, long gaps, rows of every width") {
  if (!on_cuda()) return;
  std::vector<int32_t> index(70, 3);  // more than a block of y has rows
  for (int32_t n = 900; n < 2500; n += n % 5 == 0 ? 1 : 2) index.push_back(n);
  for (int i = 0; i < 300; ++i) index.push_back(2999);
  const auto M = static_cast<int64_t>(index.size()), N = int64_t{3000};
  for (int64_t C : {3, 24, 1032, 4608}) {
    CAPTURE(C);
    const int64_t m_count = C > 2000 ? 400 : M;  // the first rows of a wide one
    const std::vector<float> x = random_values(static_cast<size_t>(m_count * C), 2),
                             weight = random_values(static_cast<size_t>(m_count), 3);
    Tensor positions{.data = index.data(), .dtype = DType::i32, .shape = {m_count}};
    const std::vector<double> xs(x.begin(), x.end()), ws(weight.begin(), weight.end());
    std::vector<double> exact(static_cast<size_t>(N * C));
    std::vector<float> plain(exact.size());
    ref::scatter_rows<double>(m_count, N, C, xs.data(), ws.data(), index.data(), exact.data());
    ref::scatter_rows<float>(m_count, N, C, x.data(), weight.data(), index.data(), plain.data());
    for (DType dtype : {DType::f32, DType::bf16}) {
      TestContext ctx(Isa::avx2);
      Buffer xb(dtype, {m_count, C}, x), wb(DType::f32, {m_count}, weight), y(dtype, {N, C});
      fill(y, NAN);
      scatter_rows(ctx, {.x = xb, .weight = wb, .index = positions, .y = y});
      check_close(to_double(y.tensor), exact, to_double(Buffer(dtype, {N, C}, plain).tensor), dtype);
    }
  }
}

TEST_CASE("scatter_rows on CUDA: a run of neighbours, with and without a repetition or a gap in it") {
  if (!on_cuda()) return;
  const int64_t N = 100, C = 64;
  for (int32_t first : {0, 1, 37}) {
    for (int32_t odd : {-1, 0, 20, 59}) {  // the index that is said twice, and the one left out after it
      std::vector<int32_t> index;
      for (int32_t i = 0; i < 60; ++i) index.push_back(first + i);
      if (odd >= 0) index.insert(index.begin() + odd, first + odd);
      if (odd == 20) index.erase(index.begin() + 40);
      const auto M = static_cast<int64_t>(index.size());
      const std::vector<float> x = random_values(static_cast<size_t>(M * C), 2),
                               weight = random_values(static_cast<size_t>(M), 3);
      std::vector<double> exact(static_cast<size_t>(N * C));
      std::vector<float> plain(exact.size());
      const std::vector<double> xs(x.begin(), x.end()), ws(weight.begin(), weight.end());
      ref::scatter_rows<double>(M, N, C, xs.data(), ws.data(), index.data(), exact.data());
      ref::scatter_rows<float>(M, N, C, x.data(), weight.data(), index.data(), plain.data());
      TestContext ctx(Isa::avx2);
      Buffer xb(DType::bf16, {M, C}, x), wb(DType::f32, {M}, weight), y(DType::f32, {N, C});
      fill(y, NAN);
      scatter_rows(ctx, {.x = xb, .weight = wb, .index = {index.data(), DType::i32, {M}}, .y = y});
      check_close(to_double(y.tensor), exact, to_double(plain), DType::f32);
    }
  }
}

TEST_CASE("gather_rows on CUDA: rows of every width") {
  if (!on_cuda()) return;
  for (int64_t C : {2, 24, 1032, 4608}) {
    const std::vector<float> x = random_values(static_cast<size_t>(50 * C), 1);
    std::vector<int32_t> index;
    for (int32_t i = 0; i < 300; ++i) index.push_back(i * 7 % 50);
    std::vector<float> expected(static_cast<size_t>(300 * C));
    ref::gather_rows<float>(300, C, x.data(), index.data(), expected.data());
    for (DType dtype : {DType::f32, DType::bf16}) {
      TestContext ctx(Isa::avx2);
      Buffer xb(dtype, {50, C}, x), y(dtype, {300, C});
      fill(y, NAN);
      gather_rows(ctx, {.x = xb, .index = {index.data(), DType::i32, {300}}, .y = y});
      CHECK(to_double(y.tensor) == to_double(expected));
    }
  }
}
