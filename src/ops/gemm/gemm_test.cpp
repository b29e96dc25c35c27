#include "ops/gemm/gemm.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "ops/gemm/gemm_ref.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

// op(A) [m, k] and op(B) [k, n] as they lie in memory, with `gap` unused elements between rows.
struct Case {
  int64_t m, n, k;
  DType dtype, c_dtype;
  bool transpose_a, transpose_b;
  Write write;
  int64_t gap = 0, longest_sum = 0;  // 0: what the CPU needs

  int64_t lda() const { return (transpose_a ? m : k) + gap; }
  int64_t ldb() const { return (transpose_b ? k : n) + gap; }
  int64_t ldc() const { return n + gap; }
  int64_t a_rows() const { return transpose_a ? k : m; }
  int64_t b_rows() const { return transpose_b ? n : k; }
};

void run(Context& ctx, const Case& c, const Tensor& a, const Tensor& b, const Tensor& out) {
  const Gemm args{.m = c.m,
                  .n = c.n,
                  .k = c.k,
                  .dtype = c.dtype,
                  .a = a.data,
                  .lda = c.lda(),
                  .transpose_a = c.transpose_a,
                  .b = b.data,
                  .ldb = c.ldb(),
                  .transpose_b = c.transpose_b,
                  .c_dtype = c.c_dtype,
                  .c = out.data,
                  .ldc = c.ldc(),
                  .write = c.write};
  ArenaScope scratch(ctx.arena);
  if (c.longest_sum == 0) {
    gemm_on_this_thread(ctx, args, scratch.array<std::byte>(gemm_scratch_bytes(ctx, args)));
  } else {
    const int64_t bytes = gemm_by_pieces_scratch_bytes(ctx, args, c.longest_sum);
    gemm_by_pieces(ctx, args, c.longest_sum, scratch.array<std::byte>(bytes));
  }
}

// The result of `c` with elements taken from one endless matrix, so that a smaller case is a corner of a larger one.
std::vector<float> corner(Context& ctx, const Case& c) {
  const auto element = [](uint32_t seed, int64_t row, int64_t col) {
    uint64_t h = (static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(col)) * 0x9E3779B97F4A7C15ULL + seed;
    h = (h ^ (h >> 31)) * 0xBF58476D1CE4E5B9ULL;
    return static_cast<float>(static_cast<int64_t>(h >> 40)) * 0x1p-23F - 1;
  };
  Buffer a(c.dtype, {c.a_rows() * c.lda()}), b(c.dtype, {c.b_rows() * c.ldb()}), out(c.c_dtype, {c.m * c.ldc()});
  const auto put = [&](const Buffer& t, int64_t i, float value) {
    if (c.dtype == DType::bf16) t.tensor.as<bf16>()[i] = bf16(value);
    else t.tensor.as<float>()[i] = value;
  };
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t p = 0; p < c.k; ++p) put(a, c.transpose_a ? p * c.lda() + i : i * c.lda() + p, element(1, i, p));
  }
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t p = 0; p < c.k; ++p) put(b, c.transpose_b ? j * c.ldb() + p : p * c.ldb() + j, element(2, p, j));
  }
  fill(out, 0.5F);
  run(ctx, c, a, b, out);
  std::vector<float> values(static_cast<size_t>(c.m * c.n));
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      const int64_t at = i * c.ldc() + j;
      values[static_cast<size_t>(i * c.n + j)] =
          c.c_dtype == DType::bf16 ? static_cast<float>(out.tensor.as<bf16>()[at]) : out.tensor.as<float>()[at];
    }
  }
  return values;
}

std::string name(const Case& c) {
  return std::to_string(c.m) + "x" + std::to_string(c.n) + "x" + std::to_string(c.k) + " " +
         std::string(to_string(c.dtype)) + (c.transpose_a ? " A^T" : "") + (c.transpose_b ? " B^T" : "") + " gap " +
         std::to_string(c.gap);
}

// The result of `part` is the corner of that of `whole`, in every bit.
void check_corner(Context& ctx, const Case& part, const Case& whole, const std::vector<float>& expected) {
  const auto values = corner(ctx, part);
  for (int64_t i = 0; i < part.m; ++i) {
    if (std::memcmp(&values[static_cast<size_t>(i * part.n)], &expected[static_cast<size_t>(i * whole.n)],
                    static_cast<size_t>(part.n) * sizeof(float)) != 0) {
      FAIL("row " << i << " of " << name(part) << " differs from that of " << name(whole));
    }
  }
}

void check_against_reference(Context& ctx, const Case& c) {
  CAPTURE(name(c));
  const auto a = random_values(static_cast<size_t>(c.a_rows() * c.lda()), 1),
             b = random_values(static_cast<size_t>(c.b_rows() * c.ldb()), 2);
  const std::vector<float> before(static_cast<size_t>(c.m * c.ldc()), 0.25F);
  const auto reference = [&]<class T>(T) {
    const std::vector<T> ta(a.begin(), a.end()), tb(b.begin(), b.end());
    std::vector<T> out(before.begin(), before.end());
    ref::gemm(c.m, c.n, c.k, ta.data(), c.lda(), c.transpose_a, tb.data(), c.ldb(), c.transpose_b, out.data(), c.ldc(),
              c.write);
    return out;
  };
  Buffer ta(c.dtype, {static_cast<int64_t>(a.size())}, a), tb(c.dtype, {static_cast<int64_t>(b.size())}, b);
  Buffer out(c.c_dtype, {static_cast<int64_t>(before.size())}, before);
  run(ctx, c, ta, tb, out);
  check_close(to_double(out.tensor), reference(double{}), to_double(reference(float{})), c.c_dtype);
}

}  // namespace

TEST_CASE("gemm: each backend is as close to f64 as plain loops, for every transpose, dtype, write and stride") {
  for (Isa isa : built_isas()) {
    TestContext t(isa, 1);
    for (bool ta : {false, true}) {
      for (bool tb : {false, true}) {
        for (int64_t gap : {0, 3}) {
          for (auto [m, n, k] :
               {std::array<int64_t, 3>{1, 1, 1}, {5, 7, 3}, {33, 17, 100}, {64, 130, 65}, {257, 9, 40}}) {
            for (Write write : {Write::set, Write::add}) {
              check_against_reference(t, {m, n, k, DType::f32, DType::f32, ta, tb, write, gap});
              check_against_reference(t, {m, n, k, DType::bf16, DType::f32, ta, tb, write, gap});
            }
            check_against_reference(t, {m, n, k, DType::bf16, DType::bf16, ta, tb, Write::set, gap});
          }
        }
      }
    }
  }
}

TEST_CASE("gemm: the bits of an element do not depend on m, n or the strides") {
  for (Isa isa : built_isas()) {
    TestContext t(isa, 1);
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (bool ta : {false, true}) {
        for (bool tb : {false, true}) {
          for (Write write : {Write::set, Write::add}) {
            for (int64_t k : {1, 16, 100, 576, 1536}) {
              const Case whole{256, 576, k, dtype, DType::f32, ta, tb, write};
              const auto expected = corner(t, whole);
              const auto check_part = [&](int64_t m, int64_t n, int64_t gap) {
                check_corner(t, {m, n, k, dtype, DType::f32, ta, tb, write, gap}, whole, expected);
              };
              for (int64_t m : {1, 2, 13, 64, 255, 256}) check_part(m, 17, 0);
              for (int64_t n : {1, 8, 16, 100, 512}) check_part(3, n, 0);
              check_part(31, 33, 5);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("gemm: the bits of an element do not depend on m, for every m to 256" * doctest::test_suite("full")) {
  for (Isa isa : built_isas()) {
    TestContext t(isa, 1);
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (int64_t k : {16, 192, 576, 1536}) {
        for (auto [ta, tb] : {std::pair{false, true}, {false, false}, {true, false}}) {
          const auto expected = corner(t, {256, 40, k, dtype, DType::f32, ta, tb, Write::set});
          for (int64_t m = 1; m <= 256; ++m) {
            const auto values = corner(t, {m, 40, k, dtype, DType::f32, ta, tb, Write::set});
            if (std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)) != 0) {
              FAIL("m = " << m << ", k = " << k << ", transposes " << ta << tb << ", " << to_string(dtype));
            }
          }
        }
      }
    }
  }
}

// What CPUs with AMX do with a long k, wherever the test runs.
TEST_CASE("gemm: with k in pieces a result is as close to f64, and its bits depend on neither m, n nor the strides") {
  for (Isa isa : built_isas()) {
    TestContext t(isa, 1);
    for (auto [ta, tb] : {std::pair{false, true}, {false, false}, {true, false}}) {
      for (int64_t longest_sum : {32, 64, 100}) {
        for (Write write : {Write::set, Write::add}) {
          check_against_reference(t, {33, 50, 150, DType::f32, DType::f32, ta, tb, write, 3, longest_sum});
          const Case whole{129, 70, 150, DType::bf16, DType::f32, ta, tb, write, 0, longest_sum};
          check_against_reference(t, whole);
          const auto expected = corner(t, whole);
          for (auto [m, n] : {std::pair<int64_t, int64_t>{1, 17}, {40, 70}, {129, 1}})
            check_corner(t, {m, n, 150, DType::bf16, DType::f32, ta, tb, write, n % 4, longest_sum}, whole, expected);
        }
        check_against_reference(t, {33, 50, 150, DType::bf16, DType::bf16, ta, tb, Write::set, 3, longest_sum});
      }
    }
  }
}

TEST_CASE("gemm: the bits of an element do not depend on m or n where blocks of the operands outgrow the cache" *
          doctest::test_suite("full")) {
  TestContext t(detect_isa(), 1);
  for (auto [ta, tb] : {std::pair{false, true}, {false, false}, {true, false}}) {
    for (Write write : {Write::set, Write::add}) {
      for (int64_t k : {520, 768, 1100, 1820, 4096}) {
        const Case whole{513, 576, k, DType::bf16, DType::f32, ta, tb, write};
        const auto expected = corner(t, whole);
        for (auto [m, n] :
             {std::pair<int64_t, int64_t>{1, 448}, {16, 128}, {31, 1}, {63, 100}, {129, 512}, {256, 320}, {513, 33}})
          check_corner(t, {m, n, k, DType::bf16, DType::f32, ta, tb, write}, whole, expected);
      }
    }
  }
}

TEST_CASE("gemm: an empty sum is zero, and adds nothing") {
  TestContext t(Isa::avx2, 1, 1 << 20);
  std::vector<float> c(6, 7);
  Gemm args{.m = 2, .n = 2, .k = 0, .dtype = DType::f32, .ldb = 2, .c = c.data(), .ldc = 3, .write = Write::add};
  gemm_on_this_thread(t.ctx, args, nullptr);
  CHECK(c == std::vector<float>{7, 7, 7, 7, 7, 7});
  args.write = Write::set;
  gemm_on_this_thread(t.ctx, args, nullptr);
  CHECK(c == std::vector<float>{0, 0, 7, 0, 0, 7});
}

TEST_CASE("gemm: several threads at once give the bytes of one") {
  TestContext t(detect_isa(), 4);
  const Case c{65, 48, 100, DType::bf16, DType::f32, false, true, Write::set};
  TestContext alone(detect_isa(), 1);
  const auto expected = corner(alone, c);
  std::vector<int> equal(64, 0);
  t.pool.parallel_for(64, [&](int64_t item, int) {
    TestContext own(detect_isa(), 1, 1 << 20);
    equal[static_cast<size_t>(item)] = corner(own, c) == expected;
  });
  CHECK(equal == std::vector<int>(64, 1));
}

TEST_CASE("gemm: misuse is our own mistake") {
  TestContext t(Isa::avx2, 1, 1 << 20);
  float x[4] = {};
  CHECK_THROWS_AS(
      gemm_on_this_thread(
          t.ctx, {.m = 2, .n = 2, .k = 2, .dtype = DType::f32, .a = x, .lda = 1, .b = x, .ldb = 2, .c = x, .ldc = 2},
          nullptr),
      Error);
  CHECK_THROWS_AS(gemm_on_this_thread(t.ctx,
                                      {.m = 2,
                                       .n = 2,
                                       .k = 2,
                                       .dtype = DType::bf16,
                                       .a = x,
                                       .lda = 2,
                                       .b = x,
                                       .ldb = 2,
                                       .c_dtype = DType::bf16,
                                       .c = x,
                                       .ldc = 2,
                                       .write = Write::add},
                                      nullptr),
                  Error);
}

// The machine at hand has more than AVX2; oneDNN is told not to use it. Its choice is made once, so in a process of its own.
TEST_CASE("gemm: all of this holds on a CPU without AVX-512" * doctest::test_suite("full")) {
  if (std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr) return;
  CHECK(std::system("ONEDNN_MAX_CPU_ISA=AVX2 /proc/$PPID/exe -tc='gemm*' > /dev/null") == 0);
}
