// Faults that others met in fused heads (field cases), as tests.
#include <doctest/doctest.h>

#include "ops/gemm/gemm.h"
#include "support/head_case.h"

using namespace sluice;
using namespace sluice::test;

namespace {

double sum_of_row_norms(const std::vector<double>& values, int64_t C) {
  double sum = 0;
  for (size_t row = 0; row < values.size(); row += static_cast<size_t>(C)) {
    double squares = 0;
    for (size_t c = row; c < row + static_cast<size_t>(C); ++c) squares += values[c] * values[c];
    sum += std::sqrt(squares);
  }
  return sum;
}

struct Skipped {
  std::vector<double> dh;
  double dropped = 0;
};
Skipped backward(Context& ctx, HeadCase& c, const Buffer& h, const Buffer& lse, const Buffer& g, float skip_below) {
  const Buffer dh(DType::f32, {c.M, c.C}), dropped(DType::f32, {1});
  fill(dh, NAN);
  fill(dropped, NAN);
  linear_cross_entropy_by_blocks_backward(ctx, {.weight = c.weight,
                                                .h = h,
                                                .targets = c.targets(),
                                                .softcap = c.softcap,
                                                .lse = lse,
                                                .g = g,
                                                .skip_below = skip_below,
                                                .dropped = skip_below > 0 ? dropped.tensor : Tensor{},
                                                .dh = dh});
  return {to_double(dh), skip_below > 0 ? to_double(dropped)[0] : 0.0};
}

// Exact and with skipping: the error stays within what the dropped mass allows, sum_m |d dh[m]| <= dropped * sum
// |coefficients| * max |W[v]|, where a row's coefficients sum to at most 2 |g|.
void check_skipping(int64_t M, int64_t V, float spread) {
  CAPTURE(V);
  HeadCase c(M, V, 64, DType::f32, WeightFormat::bf16, 0, spread);
  const Buffer h(DType::f32, {M, c.C}, c.h_values),
      g(DType::f32, {M}, std::vector<float>(static_cast<size_t>(M), 1.0F));
  const Buffer logp(DType::f32, {M}), lse(DType::f32, {M}), by_rows(DType::f32, {M, c.C});
  TestContext ctx(detect_isa(), 2, 160 << 20);
  linear_cross_entropy_by_rows(
      ctx, {.weight = c.weight, .h = h, .targets = c.targets(), .logp = logp, .lse = lse, .dh = by_rows});
  const Skipped exact = backward(ctx, c, h, lse, g, 0);
  CHECK(relative_l2(exact.dh, to_double(by_rows)) < 1e-5);
  double largest_row = 0;
  for (int64_t v = 0; v < V; ++v) {
    const std::vector<double> row(c.w_values.begin() + v * c.C, c.w_values.begin() + (v + 1) * c.C);
    largest_row = std::max(largest_row, l2(row));
  }
  double before = 0;
  for (float skip_below : {1e-30F, 1e-6F, 1.0F / 4096, 0.05F}) {
    CAPTURE(skip_below);
    const Skipped some = backward(ctx, c, h, lse, g, skip_below);
    CHECK(some.dropped >= before);
    CHECK(some.dropped <= 1);
    before = some.dropped;
    std::vector<double> error = some.dh;
    for (size_t i = 0; i < error.size(); ++i) error[i] -= exact.dh[i];
    const double rounding = 1e-5 * sum_of_row_norms(exact.dh, c.C);
    CHECK(sum_of_row_norms(error, c.C) <= some.dropped * 2 * static_cast<double>(M) * largest_row + rounding);
    if (some.dropped == 0) CHECK(sum_of_row_norms(error, c.C) == 0);
  }
  CHECK(backward(ctx, c, h, lse, g, 3).dropped == 1);  // no coefficient is above 1
  CHECK(backward(ctx, c, h, lse, g, 1e-38F).dropped < 1e-6);
}

}  // namespace

TEST_CASE(
    "FieldL11_head_skip: nothing is skipped unless asked, and the dropped mass is reported and bounds the error") {
  check_skipping(200, 32, 4);
  check_skipping(200, 1000, 4);
  check_skipping(130, 1000, 30);
  check_skipping(40, 32000, 20);
}

TEST_SUITE("full") {
  TEST_CASE("FieldL11_head_skip: the bound holds for a vocabulary of 262144 and for 8192 rows") {
    check_skipping(16, 262144, 20);
    check_skipping(8192, 1000, 12);
  }
}

TEST_CASE("FieldL12_no_targets: a batch without a target gives nothing, without a fault or a division by zero") {
  HeadCase c(1, 100, 32, DType::f32, WeightFormat::f32);
  for (Isa isa : built_isas()) {
    TestContext ctx(isa, 2, 1 << 20);
    const Buffer h(DType::f32, {0, 32}), none(DType::f32, {0}), logits(DType::f32, {0, 100}), dropped(DType::f32, {1});
    const Tensor targets{c.target_values.data(), DType::i32, {0}};
    linear_cross_entropy_by_rows(ctx,
                                 {.weight = c.weight, .h = h, .targets = targets, .logp = none, .lse = none, .dh = h});
    linear_cross_entropy_by_rows(ctx,
                                 {.weight = c.weight, .h = h, .targets = targets, .logp = none, .lse = none, .dh = {}});
    linear_cross_entropy_by_blocks(ctx, {.weight = c.weight, .h = h, .targets = targets, .logp = none, .lse = none});
    fill(dropped, NAN);
    linear_cross_entropy_by_blocks_backward(ctx, {.weight = c.weight,
                                                  .h = h,
                                                  .targets = targets,
                                                  .lse = none,
                                                  .g = none,
                                                  .skip_below = 0.1F,
                                                  .dropped = dropped,
                                                  .dh = h});
    head_logits(ctx, {.weight = c.weight, .h = h, .logits = logits});
    CHECK(to_double(dropped)[0] == 0);
  }
}

TEST_CASE("FieldL12_no_targets: rows whose upstream gradient is zero get a gradient of zero, and no mass is dropped") {
  HeadCase c(5, 300, 32, DType::bf16, WeightFormat::f32);
  const Buffer h(DType::bf16, {5, 32}, c.h_values), g(DType::f32, {5}, std::vector<float>(5, 0.0F)),
      logp(DType::f32, {5}), lse(DType::f32, {5});
  TestContext ctx(detect_isa(), 2, 1 << 22);
  linear_cross_entropy_by_blocks(ctx, {.weight = c.weight, .h = h, .targets = c.targets(), .logp = logp, .lse = lse});
  for (float skip_below : {0.0F, 0.1F}) {
    const Skipped result = backward(ctx, c, h, lse, g, skip_below);
    for (double value : result.dh) CHECK(value == 0);
    CHECK(result.dropped == 0);
  }
}

TEST_CASE("FieldL13_inputs: a call leaves its inputs as they were unless dh is h") {
  for (Isa isa : built_isas())
    for (DType dtype : {DType::f32, DType::bf16}) {
      HeadCase c(33, 700, 64, dtype, WeightFormat::q8_0, 5);
      const auto weight_before = c.bytes;
      const auto targets_before = c.target_values;
      const Buffer h(dtype, {c.M, c.C}, c.h_values), g(DType::f32, {c.M}, random_values(33, 5));
      const HeadOutputs out(c, dtype);
      const auto h_before = bytes_of(h), g_before = bytes_of(g);
      TestContext ctx(isa, 2, 1 << 22);
      linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                         .h = h,
                                         .targets = c.targets(),
                                         .softcap = 5,
                                         .rows_per_chunk = 16,
                                         .logp = out.logp,
                                         .lse = out.lse,
                                         .dh = out.dh});
      const auto lse_before = bytes_of(out.lse);
      linear_cross_entropy_by_blocks_backward(
          ctx,
          {.weight = c.weight, .h = h, .targets = c.targets(), .softcap = 5, .lse = out.lse, .g = g, .dh = out.dh});
      CHECK(bytes_of(h) == h_before);
      CHECK(bytes_of(g) == g_before);
      CHECK(bytes_of(out.lse) == lse_before);
      CHECK(c.bytes == weight_before);
      CHECK(c.target_values == targets_before);
    }
}

TEST_CASE("FieldL13_precision: the loss of bf16 operands is that of float32 logits from the same operands, to 1e-6") {
  for (Isa isa : built_isas()) {
    HeadCase c(64, 2000, 96, DType::bf16, WeightFormat::bf16, 0, 3);  // values that both dtypes hold exactly
    const Buffer half(DType::bf16, {c.M, c.C}, c.h_values), whole(DType::f32, {c.M, c.C}, c.h_values);
    double loss[2] = {};
    for (int i = 0; i < 2; ++i) {
      const HeadOutputs out(c, DType::f32);
      TestContext ctx(isa, 2, 8 << 20);
      linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                         .h = i == 0 ? half : whole,
                                         .targets = c.targets(),
                                         .logp = out.logp,
                                         .lse = out.lse,
                                         .dh = out.dh});
      for (double logp : to_double(out.logp)) loss[i] -= logp / static_cast<double>(c.M);
    }
    CHECK(std::abs(loss[0] - loss[1]) <= 1e-6 * std::abs(loss[1]));
  }
}

TEST_CASE(
    "FieldM2_scratch: it does not grow with the number of rows, is what the plan says, and holds no logits in "
    "evaluation") {
  for (Isa isa : built_isas())
    for (WeightFormat format : {WeightFormat::bf16, WeightFormat::q8_0}) {
      HeadCase c(2048, 3000, 64, DType::bf16, format);
      const Buffer h(DType::bf16, {c.M, c.C}, c.h_values), g(DType::f32, {c.M});
      const HeadOutputs out(c, DType::bf16);
      ThreadPool pool(2);
      const auto peak_of = [&](Arena arena, int64_t M, int call) {
        Context ctx{.arena = arena, .pool = pool, .device = test_device(), .isa = isa};
        const auto rows = [&](const Tensor& t) { return t.rows(0, M); };
        if (call == 2)
          linear_cross_entropy_by_blocks_backward(ctx, {.weight = c.weight,
                                                        .h = rows(h),
                                                        .targets = rows(c.targets()),
                                                        .lse = rows(out.lse),
                                                        .g = rows(g),
                                                        .dh = rows(out.dh)});
        else
          linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                             .h = rows(h),
                                             .targets = rows(c.targets()),
                                             .rows_per_chunk = 64,
                                             .logp = rows(out.logp),
                                             .lse = rows(out.lse),
                                             .dh = call == 0 ? rows(out.dh) : Tensor{}});
        CHECK(arena.used() == 0);
        return arena.peak();
      };
      for (int call : {0, 1, 2}) {
        CAPTURE(call);
        const int64_t planned = peak_of(Arena::counting(test_device()), 512, call);
        CHECK(peak_of(Arena::counting(test_device()), 1024, call) == planned);
        CHECK(peak_of(Arena::counting(test_device()), 2048, call) == planned);
        CHECK(peak_of(test_arena(planned), 512, call) == planned);
        if (isa == Isa::avx2 || !gemm_bf16_native()) continue;  // products of widened copies
        const int64_t kept = 64 * c.V * 2;
        if (call == 0) CHECK(planned <= kept + 2 * c.V * c.C * 2 + (int64_t{2} << 20));
        const int64_t panel = c.V * c.C * 2;
        if (call == 1) CHECK(planned <= 2 * (panel + 128 * c.V * 4) + 512 * 16 * 8 + (1 << 18));
      }
    }
}
