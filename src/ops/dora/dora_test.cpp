#include "ops/dora/dora.h"

#include <cstring>
#include <vector>

#include "core/rng.h"
#include "ops/dora/dora_ref.h"
#include "ops/quant/quant.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

struct Problem {
  int64_t out, in, R;
  Buffer w, a, b, norm;

  Problem(int64_t out_, int64_t in_, int64_t R_)
      : out(out_),
        in(in_),
        R(R_),
        w(DType::f32, {out, in}, random_values(static_cast<size_t>(out * in), 1, 0.1F)),
        a(DType::f32, {R, in}, random_values(static_cast<size_t>(R * in), 2, 0.3F)),
        b(DType::f32, {out, R}, random_values(static_cast<size_t>(out * R), 3)),
        norm(DType::f32, {out}) {
    fill(norm, NAN);
  }
  Weight weight() const { return {.rows = out, .cols = in, .data = static_cast<const std::byte*>(w.tensor.data)}; }
  void run(Context& ctx, const Weight& weight) const {
    adapted_row_norms(ctx, {.weight = weight,
                            .lora_a = R > 0 ? a.tensor : Tensor{},
                            .lora_b = R > 0 ? b.tensor : Tensor{},
                            .scale = 0.7F,
                            .norm = norm});
  }
  template <class T>
  std::vector<double> reference() const {
    const auto values = [](const Tensor& t) {
      const std::vector<double> v = to_double(t);
      return std::vector<T>(v.begin(), v.end());
    };
    std::vector<T> n(static_cast<size_t>(out));
    ref::adapted_row_norms<T>(out, in, R, values(w.tensor).data(), values(a.tensor).data(), values(b.tensor).data(),
                              T(0.7F), n.data());
    return {n.begin(), n.end()};
  }
};

}  // namespace

TEST_CASE("adapted_row_norms: each backend is as close to f64 as plain loops, for any number of threads") {
  for (Isa isa : built_isas()) {
    TestContext one(isa, 1), three(isa, 3);
    for (auto [out, in, R] : {std::array<int64_t, 3>{1, 1, 1}, {7, 33, 3}, {130, 1000, 8}, {67, 576, 0}}) {
      CAPTURE(out);
      const Problem p(out, in, R);
      p.run(one, p.weight());
      const std::vector<double> first = to_double(p.norm.tensor);
      check_close(first, p.reference<double>(), p.reference<float>(), DType::f32);
      p.run(three, p.weight());
      CHECK(to_double(p.norm.tensor) == first);
    }
  }
}

TEST_CASE("adapted_row_norms: a stored weight gives the bits of its dequantised copy, over several panels") {
  for (auto [format, rows, cols] : {std::tuple<WeightFormat, int64_t, int64_t>{WeightFormat::q4_1, 2100, 1056},
                                    {WeightFormat::q4_k, 70, 1280},
                                    {WeightFormat::bf16, 30, 33}}) {
    CAPTURE(to_string(format));
    Weight w{.format = format, .rows = rows, .cols = cols};
    std::vector<std::byte> data(static_cast<size_t>(rows * w.row_bytes()));
    for (size_t i = 0; i < data.size(); ++i)
      data[i] = std::byte(random_bits(1, 2, i) & 0x3b);  // small exponents: finite
    w.data = data.data();
    TestContext t(detect_isa(), 2);
    const Problem p(rows, cols, 4);
    dequantize(t, {.weight = w, .out = p.w});
    p.run(t, p.weight());
    const std::vector<double> expected = to_double(p.norm.tensor);
    p.run(t, w);
    CHECK(to_double(p.norm.tensor) == expected);
  }
}

TEST_CASE("adapted_row_norms: a counting arena predicts the peak to the byte, and no weight is read") {
  const Problem p(300, 600, 5);
  TestContext t(detect_isa(), 2);
  Arena counting = Arena::counting(test_device());
  Context planner{.arena = counting, .pool = t.pool, .device = test_device(), .isa = t.ctx.isa};
  Weight absent = p.weight();
  absent.data = nullptr;
  p.run(planner, absent);
  CHECK(std::isnan(to_double(p.norm.tensor)[0]));
  p.run(t, p.weight());
  CHECK(counting.peak() == t.arena.peak());
}

TEST_CASE("apply_magnitude: columns are scaled by magnitude / norm, and a norm of zero gives zero") {
  for (Isa isa : built_isas()) {
    TestContext t(isa, 2);
    const Buffer m(DType::f32, {3}, {2, 3, 4}), n(DType::f32, {3}, {1, 2, 0}),
        y(DType::f32, {2, 3}, {1, 1, 1, -1, 2, 5});
    apply_magnitude(t, {.magnitude = m, .norm = n, .y = y});
    CHECK(to_double(y.tensor) == std::vector<double>{2, 1.5, 0, -2, 3, 0});
  }
}
