#include "ops/linear_cross_entropy/linear_cross_entropy.h"

#include <doctest/doctest.h>

#include <map>
#include <memory>

#include "support/complex_step.h"
#include "support/head_case.h"

using namespace sluice;
using namespace sluice::test;

namespace {

struct Sizes {
  int64_t M, V, C;
};
// Tensor cores cut their float32 sums off, where plain loops round them, after each 16 of k: half a unit each time.
double of_tensor_cores(const HeadCase& c) {
  return on_cuda() && c.dtype == DType::bf16 ? static_cast<double>(c.C) / 16 * 0x1p-25 : 0;
}

const Sizes sizes[] = {{1, 5, 32}, {3, 320, 64}, {17, 257, 96}, {40, 1000, 32}, {2, 1100, 2080}};

template <class F>
void for_cases(F f) {
  for (const Sizes& s : sizes)
    for (DType dtype : {DType::f32, DType::bf16})
      for (float softcap : {0.0F, 5.0F}) {
        for (WeightFormat format : {WeightFormat::f32, WeightFormat::bf16, WeightFormat::q8_0}) {
          if (s.C > 1000 && format != WeightFormat::q8_0) continue;
          HeadCase c(s.M, s.V, s.C, dtype, format, softcap);
          CAPTURE(s.V);
          CAPTURE(softcap);
          CAPTURE(to_string(format));
          CAPTURE(to_string(dtype));
          f(c);
        }
      }
}

std::vector<double> rounded_to(DType dtype, const std::vector<float>& values) {
  std::vector<double> out(values.begin(), values.end());
  if (dtype == DType::bf16) {
    for (double& v : out) v = static_cast<double>(static_cast<float>(bf16(static_cast<float>(v))));
  }
  return out;
}

// Made once: to map and touch an arena takes longer than most cases here.
TestContext& context_of(Isa isa, int threads = 2) {
  static std::map<std::pair<Isa, int>, std::unique_ptr<TestContext>> contexts;
  auto& context = contexts[{isa, threads}];
  if (!context) context = std::make_unique<TestContext>(isa, threads, 16 << 20);
  return *context;
}

}  // namespace

TEST_CASE("linear_cross_entropy: the reference's gradient agrees with the complex step") {
  for (float softcap : {0.0F, 3.0F}) {
    const HeadCase c(3, 7, 32, DType::f32, WeightFormat::f32, softcap);
    const std::vector<float> g = {0.5F, -2, 0};
    const auto gradient = complex_step_gradient(
        std::vector<double>(c.h_values.begin(), c.h_values.end()), [&](const std::vector<Complex>& h) {
          std::vector<Complex> logp(3), lse(3);
          ref::linear_cross_entropy(c.M, c.V, c.C, h.data(), c.w_values.data(), c.target_values.data(),
                                    static_cast<double>(softcap), logp.data(), lse.data());
          return 0.5 * logp[0] - 2.0 * logp[1];
        });
    CHECK(max_difference(head_reference<double>(c, false, g).dh, gradient) < 1e-13);
  }
}

TEST_CASE("linear_cross_entropy_by_rows: each backend is as close to f64 as plain loops in its precision") {
  for_cases([](HeadCase& c) {
    const auto exact = head_reference<double>(c, false);
    const auto plain = head_reference<float>(c, c.dtype == DType::bf16);
    const Buffer h(c.dtype, {c.M, c.C}, c.h_values);
    for (Isa isa : built_isas())
      for (DType dh_dtype : {DType::f32, c.dtype}) {
        if (isa == Isa::avx512 && dh_dtype != c.dtype) continue;
        TestContext& ctx = context_of(isa, 1);  // threads: the next two tests
        const HeadOutputs out(c, dh_dtype);
        linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                           .h = h,
                                           .targets = c.targets(),
                                           .softcap = c.softcap,
                                           .rows_per_chunk = 16,
                                           .logp = out.logp,
                                           .lse = out.lse,
                                           .dh = out.dh});
        check_close(to_double(out.logp), exact.logp, to_double(plain.logp), DType::f32, of_tensor_cores(c));
        check_close(to_double(out.lse), exact.lse, to_double(plain.lse), DType::f32, of_tensor_cores(c));
        check_close(to_double(out.dh), exact.dh, rounded_to(dh_dtype, plain.dh), dh_dtype);
      }
  });
}

TEST_CASE(
    "linear_cross_entropy_by_blocks: forward and backward are as close to f64 as plain loops in their precision") {
  for_cases([](HeadCase& c) {
    auto g = random_values(static_cast<size_t>(c.M), 7);
    if (c.M > 2) g[1] = 0;
    const auto exact = head_reference<double>(c, false, g);
    const auto plain = head_reference<float>(c, c.dtype == DType::bf16, g);
    for (Isa isa : built_isas())
      for (DType dh_dtype : {DType::f32, c.dtype}) {
        if (isa == Isa::avx512 && dh_dtype != c.dtype) continue;
        TestContext& ctx = context_of(isa, 1);  // threads: the next two tests
        const Buffer h(c.dtype, {c.M, c.C}, c.h_values), upstream(DType::f32, {c.M}, g);
        const HeadOutputs out(c, dh_dtype);
        linear_cross_entropy_by_blocks(ctx, {.weight = c.weight,
                                             .h = h,
                                             .targets = c.targets(),
                                             .softcap = c.softcap,
                                             .logp = out.logp,
                                             .lse = out.lse});
        linear_cross_entropy_by_blocks_backward(ctx, {.weight = c.weight,
                                                      .h = h,
                                                      .targets = c.targets(),
                                                      .softcap = c.softcap,
                                                      .lse = out.lse,
                                                      .g = upstream,
                                                      .dh = out.dh});
        check_close(to_double(out.logp), exact.logp, to_double(plain.logp), DType::f32, of_tensor_cores(c));
        check_close(to_double(out.lse), exact.lse, to_double(plain.lse), DType::f32, of_tensor_cores(c));
        check_close(to_double(out.dh), exact.dh, rounded_to(dh_dtype, plain.dh), dh_dtype);
      }
  });
}

TEST_CASE(
    "linear_cross_entropy: a hit is a target that no token beats, in both schedules and in evaluation; a tie is one") {
  for_cases([](HeadCase& c) {
    aim_at_best(c);
    const auto exact = head_reference<double>(c, false);
    const Buffer h(c.dtype, {c.M, c.C}, c.h_values);
    for (Isa isa : built_isas()) {
      TestContext& ctx = context_of(isa);
      const HeadOutputs rows(c, DType::f32), evaluation(c, DType::f32), blocks(c, DType::f32);
      for (const HeadOutputs* out : {&rows, &evaluation}) {
        linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                           .h = h,
                                           .targets = c.targets(),
                                           .softcap = c.softcap,
                                           .rows_per_chunk = 16,
                                           .logp = out->logp,
                                           .lse = out->lse,
                                           .hit = out->hit,
                                           .dh = out == &rows ? out->dh.tensor : Tensor{}});
      }
      linear_cross_entropy_by_blocks(ctx, {.weight = c.weight,
                                           .h = h,
                                           .targets = c.targets(),
                                           .softcap = c.softcap,
                                           .logp = blocks.logp,
                                           .lse = blocks.lse,
                                           .hit = blocks.hit});
      for (const HeadOutputs* out : {&rows, &evaluation, &blocks}) CHECK(to_double(out->hit) == exact.hit);
    }
  });
  // Token 300 of another unit has the very logits of token 2.
  HeadCase c(5, 320, 32, DType::f32, WeightFormat::f32);
  auto* w = reinterpret_cast<float*>(c.bytes.data());
  std::copy_n(w + 2 * c.C, c.C, w + 300 * c.C);
  for (int64_t k = 0; k < c.C; ++k) c.h_values[static_cast<size_t>(k)] = 10 * w[2 * c.C + k];
  const Buffer h(DType::f32, {c.M, c.C}, c.h_values);
  const HeadOutputs out(c, DType::f32);
  for (int32_t target : {2, 300, 3}) {
    c.target_values[0] = target;
    linear_cross_entropy_by_blocks(
        context_of(Isa::avx2),
        {.weight = c.weight, .h = h, .targets = c.targets(), .logp = out.logp, .lse = out.lse, .hit = out.hit});
    CHECK(to_double(out.hit)[0] == (target == 3 ? 0 : 1));
  }
}

TEST_CASE("linear_cross_entropy_by_rows: neither the chunk nor the number of threads changes a byte") {
  for (Isa isa : built_isas())
    for (DType dtype : {DType::f32, DType::bf16})
      for (float softcap : {0.0F, 5.0F}) {
        for (WeightFormat format : {WeightFormat::bf16, WeightFormat::q8_0}) {
          if ((format == WeightFormat::bf16) != (dtype == DType::bf16 && softcap == 0)) continue;
          HeadCase c(40, 1100, 2080, dtype, format, softcap);  // five panels
          const Buffer h(dtype, {c.M, c.C}, c.h_values);
          std::vector<std::byte> logp, lse, dh;
          for (int threads : {1, 2, 3})
            for (int64_t rows : {40, 1, 7, 32, 128}) {
              if ((threads == 3 && rows != 32) || (threads == 2 && rows == 1)) continue;
              CAPTURE(rows);
              CAPTURE(threads);
              TestContext& ctx = context_of(isa, threads);
              const HeadOutputs out(c, DType::f32);
              linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                                 .h = h,
                                                 .targets = c.targets(),
                                                 .softcap = softcap,
                                                 .rows_per_chunk = rows,
                                                 .logp = out.logp,
                                                 .lse = out.lse,
                                                 .dh = out.dh});
              if (dh.empty()) logp = bytes_of(out.logp), lse = bytes_of(out.lse), dh = bytes_of(out.dh);
              CHECK(bytes_of(out.logp) == logp);
              CHECK(bytes_of(out.lse) == lse);
              CHECK(bytes_of(out.dh) == dh);
            }
          TestContext& ctx = context_of(isa, 2);  // evaluation gives the numbers of training, and so do blocks
          const HeadOutputs evaluation(c, DType::f32), blocks(c, DType::f32);
          linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                             .h = h,
                                             .targets = c.targets(),
                                             .softcap = softcap,
                                             .logp = evaluation.logp,
                                             .lse = evaluation.lse,
                                             .dh = {}});
          linear_cross_entropy_by_blocks(ctx, {.weight = c.weight,
                                               .h = h,
                                               .targets = c.targets(),
                                               .softcap = softcap,
                                               .logp = blocks.logp,
                                               .lse = blocks.lse});
          CHECK(bytes_of(evaluation.logp) == logp);
          CHECK(bytes_of(evaluation.lse) == lse);
          CHECK(bytes_of(blocks.logp) == logp);
        }
      }
}

TEST_CASE("linear_cross_entropy: a row depends on no other row, and not on the number of threads") {
  for (Isa isa : built_isas())
    for (DType dtype : {DType::f32, DType::bf16}) {
      HeadCase c(530, 1300, 160, dtype, WeightFormat::q8_0, 5);
      const Buffer h(dtype, {c.M, c.C}, c.h_values), g(DType::f32, {c.M}, random_values(static_cast<size_t>(c.M), 5));
      TestContext &two = context_of(isa, 2), &one = context_of(isa, 1);
      const auto run = [&](Context& ctx, int64_t begin, int64_t count, const HeadOutputs& out, float skip_below) {
        Buffer dropped(DType::f32, {1});
        const auto rows = [&](const Tensor& t) { return t.rows(begin, count); };
        linear_cross_entropy_by_blocks(ctx, {.weight = c.weight,
                                             .h = rows(h),
                                             .targets = rows(c.targets()),
                                             .softcap = 5,
                                             .logp = rows(out.logp),
                                             .lse = rows(out.lse)});
        linear_cross_entropy_by_blocks_backward(ctx, {.weight = c.weight,
                                                      .h = rows(h),
                                                      .targets = rows(c.targets()),
                                                      .softcap = 5,
                                                      .lse = rows(out.lse),
                                                      .g = rows(g),
                                                      .skip_below = skip_below,
                                                      .dropped = skip_below > 0 ? dropped.tensor : Tensor{},
                                                      .dh = rows(out.dh)});
      };
      for (float skip_below : {0.0F, 0.02F}) {
        const HeadOutputs whole(c, DType::f32), pieces(c, DType::f32);
        run(two, 0, c.M, whole, skip_below);
        for (int64_t begin = 0, count = 1; begin < c.M;
             begin += count, count = std::min<int64_t>(2 * count + 1, c.M - begin))
          run(one, begin, count, pieces, skip_below);
        CHECK(bytes_of(pieces.logp) == bytes_of(whole.logp));
        CHECK(bytes_of(pieces.dh) == bytes_of(whole.dh));
      }
    }
}

TEST_CASE("linear_cross_entropy_by_rows: dh may be h") {
  for (Isa isa : built_isas())
    for (DType dtype : {DType::f32, DType::bf16}) {
      HeadCase c(37, 700, 64, dtype, WeightFormat::bf16);
      const Buffer h(dtype, {c.M, c.C}, c.h_values), both(dtype, {c.M, c.C}, c.h_values);
      const HeadOutputs out(c, dtype);
      TestContext& ctx = context_of(isa, 2);
      linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                         .h = h,
                                         .targets = c.targets(),
                                         .rows_per_chunk = 16,
                                         .logp = out.logp,
                                         .lse = out.lse,
                                         .dh = out.dh});
      linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                         .h = both,
                                         .targets = c.targets(),
                                         .rows_per_chunk = 16,
                                         .logp = out.logp,
                                         .lse = out.lse,
                                         .dh = both});
      CHECK(bytes_of(both) == bytes_of(out.dh));
    }
}

TEST_CASE("linear_cross_entropy: a weight at an odd address gives the bytes of an aligned one") {
  HeadCase c(5, 64, 32, DType::bf16, WeightFormat::bf16);
  const Buffer h(DType::bf16, {c.M, c.C}, c.h_values);
  const HeadOutputs out(c, DType::f32), odd(c, DType::f32);
  TestContext& ctx = context_of(Isa::avx2, 2);
  linear_cross_entropy_by_rows(
      ctx, {.weight = c.weight, .h = h, .targets = c.targets(), .logp = out.logp, .lse = out.lse, .dh = out.dh});
  std::vector<std::byte> shifted(c.bytes.size() + 1);
  std::memcpy(shifted.data() + 1, c.bytes.data(), c.bytes.size());
  Weight weight = c.weight;
  weight.data = shifted.data() + 1;
  linear_cross_entropy_by_rows(
      ctx, {.weight = weight, .h = h, .targets = c.targets(), .logp = odd.logp, .lse = odd.lse, .dh = odd.dh});
  CHECK(bytes_of(odd.dh) == bytes_of(out.dh));
  CHECK(bytes_of(odd.logp) == bytes_of(out.logp));
}

TEST_CASE("linear_cross_entropy: peaked rows keep the digits of 1 - p, and large logits give no overflow") {
  for (Isa isa : built_isas())
    for (float spread : {30.0F, 3000.0F}) {
      HeadCase c(12, 600, 64, DType::f32, WeightFormat::f32, 0, spread);
      for (int64_t m = 0; m < 6; ++m) {  // half of the targets are the row's best token
        double best = -1e300;
        for (int64_t v = 0; v < c.V; ++v) {
          double z = 0;
          for (int64_t k = 0; k < c.C; ++k)
            z += static_cast<double>(c.h_values[static_cast<size_t>(m * c.C + k)]) *
                 static_cast<double>(c.w_values[static_cast<size_t>(v * c.C + k)]);
          if (z > best) best = z, c.target_values[static_cast<size_t>(m)] = static_cast<int32_t>(v);
        }
      }
      const auto exact = head_reference<double>(c, false);
      const auto plain = head_reference<float>(c, false);
      const Buffer h(DType::f32, {c.M, c.C}, c.h_values);
      const HeadOutputs out(c, DType::f32);
      TestContext& ctx = context_of(isa, 2);
      linear_cross_entropy_by_rows(
          ctx, {.weight = c.weight, .h = h, .targets = c.targets(), .logp = out.logp, .lse = out.lse, .dh = out.dh});
      check_close(to_double(out.logp), exact.logp, to_double(plain.logp), DType::f32);
      check_close(to_double(out.dh), exact.dh, to_double(plain.dh), DType::f32);
      for (double logp : to_double(out.logp)) CHECK(logp <= 0);
    }
}

TEST_CASE("linear_cross_entropy: NaN in a row of h stays in that row's results") {
  for (Isa isa : built_isas()) {
    HeadCase c(20, 600, 64, DType::f32, WeightFormat::f32);
    c.h_values[3 * 64 + 5] = NAN;
    const Buffer h(DType::f32, {c.M, c.C}, c.h_values);
    const HeadOutputs out(c, DType::f32);
    TestContext& ctx = context_of(isa, 2);
    linear_cross_entropy_by_rows(
        ctx, {.weight = c.weight, .h = h, .targets = c.targets(), .logp = out.logp, .lse = out.lse, .dh = out.dh});
    for (int64_t m = 0; m < c.M; ++m) {
      CHECK(std::isnan(out.logp.tensor.as<float>()[m]) == (m == 3));
      CHECK(std::isnan(out.dh.tensor.as<float>()[m * c.C]) == (m == 3));
    }
  }
}

TEST_CASE("head_logits: few rows and many rows are as close to f64 as plain loops") {
  for (Isa isa : built_isas())
    for (DType dtype : {DType::f32, DType::bf16})
      for (int64_t M : {1, 16, 17}) {
        for (float softcap : {0.0F, 5.0F})
          for (WeightFormat format : {WeightFormat::bf16, WeightFormat::q8_0}) {
            CAPTURE(M);
            HeadCase c(M, 333, 96, dtype, format, softcap);
            std::vector<double> exact;
            std::vector<float> plain;
            const std::vector<double> h64(c.h_values.begin(), c.h_values.end());
            for (int64_t m = 0; m < M; ++m)
              for (int64_t v = 0; v < c.V; ++v) {
                exact.push_back(ref::head_logit(c.C, h64.data() + m * c.C, c.w_values.data() + v * c.C,
                                                static_cast<double>(softcap)));
                plain.push_back(ref::head_logit(c.C, c.h_values.data() + m * c.C, c.w_values.data() + v * c.C,
                                                static_cast<double>(softcap)));
              }
            const Buffer h(dtype, {M, c.C}, c.h_values), logits(DType::f32, {M, c.V});
            fill(logits, NAN);
            TestContext& ctx = context_of(isa, 2);
            head_logits(ctx, {.weight = c.weight, .h = h, .softcap = softcap, .logits = logits});
            check_close(to_double(logits), exact, to_double(plain), DType::f32);
          }
      }
}

TEST_CASE("linear_cross_entropy: shapes, dtypes and targets that do not fit are refused") {
  HeadCase c(4, 50, 32, DType::f32, WeightFormat::f32);
  const Buffer h(DType::f32, {c.M, c.C}, c.h_values), half(DType::bf16, {c.M, c.C}), small(DType::f32, {2});
  const HeadOutputs out(c, DType::f32);
  TestContext& ctx = context_of(Isa::avx2, 2);
  const auto by_rows = [&](const Tensor& rows, const Tensor& logp, const Tensor& dh) {
    linear_cross_entropy_by_rows(
        ctx, {.weight = c.weight, .h = rows, .targets = c.targets(), .logp = logp, .lse = out.lse, .dh = dh});
  };
  CHECK_THROWS_AS(by_rows(h, small, out.dh), Error);
  CHECK_THROWS_AS(by_rows(h, out.logp, half), Error);
  CHECK_NOTHROW(by_rows(h, out.logp, out.dh));
  c.target_values[2] = 50;
  CHECK_THROWS_AS(by_rows(h, out.logp, out.dh), Error);
  c.target_values[2] = -1;
  CHECK_THROWS_AS(by_rows(h, out.logp, {}), Error);
}
