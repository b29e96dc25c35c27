// The head on a CUDA device at shapes that its tensor-core path cuts into several tiles, blocks and chunks.
#include <doctest/doctest.h>

#include <algorithm>

#include "support/head_case.h"

using namespace sluice;
using namespace sluice::test;

namespace {

void by_rows(Context& ctx, HeadCase& c, const Tensor& h, const HeadOutputs& out, int64_t begin, int64_t count,
             int64_t rows_per_chunk, bool gradient = true) {
  const auto rows = [&](const Tensor& t) { return t.rows(begin, count); };
  linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                     .h = rows(h),
                                     .targets = rows(c.targets()),
                                     .softcap = c.softcap,
                                     .rows_per_chunk = rows_per_chunk,
                                     .logp = rows(out.logp),
                                     .lse = rows(out.lse),
                                     .hit = rows(out.hit),
                                     .dh = gradient ? rows(out.dh) : Tensor{}});
}

std::vector<double> row_of(const std::vector<double>& values, int64_t m, int64_t C) {
  return {values.begin() + m * C, values.begin() + (m + 1) * C};
}

struct Sizes {
  int64_t M, V, C;
};

}  // namespace

TEST_CASE("linear_cross_entropy on cuda: tiles, blocks and their ends agree with f64") {
  if (!on_cuda()) return;
  for (const Sizes& s : {Sizes{1, 20011, 64}, {77, 8449, 136}, {130, 3001, 512}, {300, 1023, 64}, {700, 777, 72}})
    for (float softcap : {0.0F, 30.0F, 60.0F})
      for (WeightFormat format : {WeightFormat::bf16, WeightFormat::q8_0}) {
        if (s.C % 32 != 0 && format == WeightFormat::q8_0) continue;
        CAPTURE(s.M);
        CAPTURE(softcap);
        CAPTURE(to_string(format));
        HeadCase c(s.M, s.V, s.C, DType::bf16, format, softcap);
        aim_at_best(c);
        const auto g = random_values(static_cast<size_t>(c.M), 7);
        const auto exact = head_reference<double>(c, false), exact_g = head_reference<double>(c, false, g);
        const Buffer h(DType::bf16, {c.M, c.C}, c.h_values), upstream(DType::f32, {c.M}, g);
        TestContext ctx(Isa::avx2);
        for (DType dh_dtype : {DType::f32, DType::bf16}) {
          const HeadOutputs out(c, dh_dtype), blocks(c, dh_dtype);
          by_rows(ctx, c, h, out, 0, c.M, 128);
          CHECK(relative_l2(to_double(out.logp), exact.logp) < 3e-6);
          CHECK(relative_l2(to_double(out.lse), exact.lse) < 3e-6);
          CHECK(to_double(out.hit) == exact.hit);
          CHECK(relative_l2(to_double(out.dh), exact.dh) < (dh_dtype == DType::f32 ? 1e-3 : 3e-3));
          linear_cross_entropy_by_blocks(ctx, {.weight = c.weight,
                                               .h = h,
                                               .targets = c.targets(),
                                               .softcap = softcap,
                                               .logp = blocks.logp,
                                               .lse = blocks.lse,
                                               .hit = blocks.hit});
          CHECK(bytes_of(blocks.hit) == bytes_of(out.hit));
          CHECK(bytes_of(blocks.logp) == bytes_of(out.logp));
          CHECK(bytes_of(blocks.lse) == bytes_of(out.lse));
          linear_cross_entropy_by_blocks_backward(ctx, {.weight = c.weight,
                                                        .h = h,
                                                        .targets = c.targets(),
                                                        .softcap = softcap,
                                                        .lse = blocks.lse,
                                                        .g = upstream,
                                                        .dropped = {},
                                                        .dh = blocks.dh});
          CHECK(relative_l2(to_double(blocks.dh), exact_g.dh) < (dh_dtype == DType::f32 ? 1e-3 : 3e-3));
        }
      }
}

TEST_CASE("linear_cross_entropy on cuda: peaked rows keep their digits, whatever the size of logits") {
  if (!on_cuda()) return;
  // 60: tiles of one row differ by more than bf16 and float32 hold, so that references come to work.
  for (float spread : {15.0F, 60.0F})
    for (float softcap : {0.0F, 30.0F}) {
      CAPTURE(spread);
      CAPTURE(softcap);
      HeadCase c(64, 9000, 64, DType::bf16, WeightFormat::bf16, softcap, spread);
      if (softcap == 0) aim_at_best(c);
      const auto exact = head_reference<double>(c, false);
      const Buffer h(DType::bf16, {c.M, c.C}, c.h_values);
      const HeadOutputs out(c, DType::f32);
      TestContext ctx(Isa::avx2);
      by_rows(ctx, c, h, out, 0, c.M, 128);
      const auto dh = to_double(out.dh), logp = to_double(out.logp);
      CHECK(relative_l2(dh, exact.dh) < 1e-3);
      for (int64_t m = 0; m < c.M; ++m) {
        CAPTURE(m);
        CHECK(logp[static_cast<size_t>(m)] <= 0);
        const double truth = exact.logp[static_cast<size_t>(m)];
        // 1 - p is itself a difference of doubles in the reference.
        CHECK(std::abs(logp[static_cast<size_t>(m)] - truth) <= 1e-3 * std::abs(truth) + 1e-12);
        const auto row = row_of(exact.dh, m, c.C);
        if (l2(row) > 1e-9) CHECK(relative_l2(row_of(dh, m, c.C), row) < 4e-3);
      }
    }
}

TEST_CASE(
    "linear_cross_entropy on cuda: a row's bits depend on no other row, nor on chunks, nor on what is asked for") {
  if (!on_cuda()) return;
  for (int64_t C : {64, 328})
    for (float softcap : {0.0F, 30.0F}) {
      HeadCase c(2500, 20000, C, DType::bf16, WeightFormat::bf16, softcap, 20);
      const Buffer h(DType::bf16, {c.M, c.C}, c.h_values);
      const HeadOutputs whole(c, DType::f32), other(c, DType::f32);
      TestContext ctx(Isa::avx2);
      by_rows(ctx, c, h, whole, 0, c.M, 128);
      by_rows(ctx, c, h, other, 0, c.M, 4096);
      CHECK(bytes_of(other.logp) == bytes_of(whole.logp));
      CHECK(bytes_of(other.lse) == bytes_of(whole.lse));
      CHECK(bytes_of(other.dh) == bytes_of(whole.dh));
      const HeadOutputs pieces(c, DType::f32), evaluation(c, DType::f32);
      for (int64_t begin = 0, count = 1; begin < c.M;
           begin += count, count = std::min<int64_t>(3 * count, c.M - begin)) {
        by_rows(ctx, c, h, pieces, begin, count, 128);
        by_rows(ctx, c, h, evaluation, begin, count, 128, false);
      }
      CHECK(bytes_of(pieces.logp) == bytes_of(whole.logp));
      CHECK(bytes_of(pieces.dh) == bytes_of(whole.dh));
      CHECK(bytes_of(evaluation.logp) == bytes_of(whole.logp));
      CHECK(bytes_of(evaluation.lse) == bytes_of(whole.lse));
    }
}

TEST_CASE("linear_cross_entropy on cuda: skipping by blocks with bf16 operands") {
  if (!on_cuda()) return;
  for (float softcap : {0.0F, 30.0F}) {
    HeadCase c(200, 9100, 64, DType::bf16, WeightFormat::bf16, softcap, 8);
    const Buffer h(DType::bf16, {c.M, c.C}, c.h_values), g(DType::f32, {c.M}, random_values(200, 5));
    const HeadOutputs out(c, DType::f32);
    TestContext ctx(Isa::avx2);
    by_rows(ctx, c, h, out, 0, c.M, 128);
    const auto backward = [&](float skip_below, double& dropped) {
      const Buffer share(DType::f32, {1});
      fill(share, NAN);
      fill(out.dh, NAN);
      linear_cross_entropy_by_blocks_backward(ctx, {.weight = c.weight,
                                                    .h = h,
                                                    .targets = c.targets(),
                                                    .softcap = softcap,
                                                    .lse = out.lse,
                                                    .g = g,
                                                    .skip_below = skip_below,
                                                    .dropped = skip_below > 0 ? share.tensor : Tensor{},
                                                    .dh = out.dh});
      dropped = skip_below > 0 ? to_double(share)[0] : 0;
      return to_double(out.dh);
    };
    double dropped = 0, before = 0;
    const auto exact = backward(0, dropped);
    for (float skip_below : {1e-20F, 1e-6F, 1e-3F, 0.05F}) {
      const auto dh = backward(skip_below, dropped);
      CHECK(dropped >= before);
      CHECK(dropped <= 1);
      CHECK(relative_l2(dh, exact) <= 4 * dropped + 1e-6);
      before = dropped;
    }
    const auto nothing = backward(10, dropped);
    CHECK(dropped == 1);
    CHECK(l2(nothing) == 0);
  }
}
