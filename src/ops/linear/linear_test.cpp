#include "ops/linear/linear.h"

#include <cstring>
#include <string>
#include <vector>

#include "core/rng.h"
#include "ops/linear/linear_ref.h"
#include "ops/quant/quant.h"
#include "support/close.h"
#include "support/complex_step.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

struct Case {
  int64_t N, in, out, R;
  DType dtype = DType::bf16;
  float scale = 1.5F, p = 0;
  Write write = Write::set;
  DType dx_dtype = DType::bf16;
  bool bias = false, residual = false, dora = false;

  Dropout dropout() const { return {.p = p, .seed = 11, .stream = 77, .row_begin = 0}; }
};

std::string name(const Case& c) {
  return std::to_string(c.N) + " rows, " + std::to_string(c.in) + " -> " + std::to_string(c.out) + ", R " +
         std::to_string(c.R) + ", " + std::string(to_string(c.dtype)) + ", p " + std::to_string(c.p) +
         (c.dora ? ", DoRA" : "");
}

Weight plain_weight(const Tensor& t) {
  return {.format = t.dtype == DType::bf16 ? WeightFormat::bf16 : WeightFormat::f32,
          .rows = t.shape[0],
          .cols = t.shape[1],
          .data = static_cast<const std::byte*>(t.data)};
}

// All tensors of one layer, inputs filled.
struct Layer {
  Case c;
  std::vector<float> w_values;
  bool keeps_xa = false;  // from the forward for the backward
  Buffer w, bias, a, b, m, norm, x, dy, residual, y, xa, dx, da, db, dm;

  explicit Layer(const Case& c_)
      : c(c_),
        w_values(random_values(static_cast<size_t>(c.out * c.in), 1, 0.1F)),
        w(c.dtype, {c.out, c.in}, w_values),
        bias(DType::f32, {c.out}, random_values(static_cast<size_t>(c.out), 2)),
        a(DType::f32, {c.R, c.in}, random_values(static_cast<size_t>(c.R * c.in), 3, 0.1F)),
        b(DType::f32, {c.out, c.R}, random_values(static_cast<size_t>(c.out * c.R), 4)),
        m(DType::f32, {c.out}, random_values(static_cast<size_t>(c.out), 8)),
        norm(DType::f32, {c.out}, random_values(static_cast<size_t>(c.out), 9)),
        x(c.dtype, {c.N, c.in}, random_values(static_cast<size_t>(c.N * c.in), 5)),
        dy(c.dtype, {c.N, c.out}, random_values(static_cast<size_t>(c.N * c.out), 6)),
        residual(c.dtype, {c.N, c.out}, random_values(static_cast<size_t>(c.N * c.out), 7)),
        y(c.dtype, {c.N, c.out}),
        xa(c.dtype, {c.N, xa_columns(c.R)}),
        dx(c.dtype == DType::f32 ? DType::f32 : c.dx_dtype, {c.N, c.in}),
        da(DType::f32, {c.R, c.in}),
        db(DType::f32, {c.out, c.R}),
        dm(DType::f32, {c.out}) {
    for (int64_t o = 0; o < c.out; ++o) norm.tensor.as<float>()[o] = 1 + std::abs(norm.tensor.as<float>()[o]);
    reset();
  }
  void reset() {
    fill(y, NAN);
    fill(xa, NAN);
    fill(dx, c.write == Write::set ? NAN : 0.5F);
    fill(da, 0.25F);
    fill(db, -0.25F);
    fill(dm, 0.5F);
  }
  Tensor optional(bool wanted, const Tensor& t) const { return wanted ? t : Tensor{}; }

  void forward(Context& ctx, const Weight& weight, int64_t begin, int64_t count) const {
    Dropout dropout = c.dropout();
    dropout.row_begin = begin;
    linear_forward(ctx, {.weight = weight,
                         .bias = optional(c.bias, bias),
                         .lora_a = optional(c.R > 0, a),
                         .lora_b = optional(c.R > 0, b),
                         .magnitude = optional(c.dora, m),
                         .norm = optional(c.dora, norm),
                         .scale = c.scale,
                         .dropout = dropout,
                         .x = x.tensor.rows(begin, count),
                         .residual = optional(c.residual, residual.tensor.rows(begin, count)),
                         .y = y.tensor.rows(begin, count),
                         .xa = optional(keeps_xa, xa.tensor.rows(begin, count))});
  }
  void backward(Context& ctx, const Weight& weight, int64_t begin, int64_t count) const {
    Dropout dropout = c.dropout();
    dropout.row_begin = begin;
    linear_backward(ctx, {.weight = weight,
                          .lora_a = optional(c.R > 0, a),
                          .lora_b = optional(c.R > 0, b),
                          .magnitude = optional(c.dora, m),
                          .norm = optional(c.dora, norm),
                          .scale = c.scale,
                          .dropout = dropout,
                          .x = optional(c.R > 0, x.tensor.rows(begin, count)),
                          .xa = optional(keeps_xa, xa.tensor.rows(begin, count)),
                          .dy = dy.tensor.rows(begin, count),
                          .dx = dx.tensor.rows(begin, count),
                          .write = c.write,
                          .dlora_a = optional(c.R > 0, da),
                          .dlora_b = optional(c.R > 0, db),
                          .dmagnitude = optional(c.dora, dm)});
  }
  void run(Context& ctx, const Weight& weight, int64_t tile) {
    reset();
    for (int64_t begin = 0; begin < c.N; begin += tile) forward(ctx, weight, begin, std::min(tile, c.N - begin));
    for (int64_t begin = 0; begin < c.N; begin += tile) backward(ctx, weight, begin, std::min(tile, c.N - begin));
  }
  std::string bytes() const {
    std::string all;
    for (const Tensor& t : {y.tensor, dx.tensor, da.tensor, db.tensor, dm.tensor})
      all.append(static_cast<const char*>(t.data), static_cast<size_t>(t.size_bytes()));
    return all;
  }
};

struct RoundBf16 {
  float operator()(float value) const { return static_cast<float>(bf16(value)); }
};

struct Results {
  std::vector<double> y, dx, da, db, dm;
};

// What the layer should give, by the reference in T with thin products rounded by `round`.
template <class T, class Round>
Results reference(const Layer& l, Round round) {
  const Case& c = l.c;
  const auto values = [](const Tensor& t) {
    const std::vector<double> v = to_double(t);
    return std::vector<T>(v.begin(), v.end());
  };
  std::vector<int> keep(static_cast<size_t>(c.N * c.in));
  for (size_t i = 0; i < keep.size(); ++i) keep[i] = random_uniform(c.dropout().seed, c.dropout().stream, i) >= c.p;
  const std::vector<T> w(l.w_values.begin(), l.w_values.end()), a = values(l.a), b = values(l.b), x = values(l.x),
                                                                dy = values(l.dy);
  const std::vector<T> bias = values(l.bias), residual = values(l.residual), m = values(l.m), norm = values(l.norm);
  const ref::Linear<T, Round> linear{.N = c.N,
                                     .in = c.in,
                                     .out = c.out,
                                     .weight = w.data(),
                                     .R = c.R,
                                     .lora_a = a.data(),
                                     .lora_b = b.data(),
                                     .scale = c.scale,
                                     .dropout_p = c.p,
                                     .keep = keep.data(),
                                     .magnitude = c.dora ? m.data() : nullptr,
                                     .norm = c.dora ? norm.data() : nullptr,
                                     .round = round};
  std::vector<T> y(static_cast<size_t>(c.N * c.out)), dx(x.size()), da(a.size(), T(0.25)), db(b.size(), T(-0.25)),
      dm(m.size(), T(0.5));
  linear.forward(x.data(), c.bias ? bias.data() : nullptr, c.residual ? residual.data() : nullptr, y.data());
  const std::vector<T> scaled = c.dora ? linear.magnitude_backward(x.data(), dy.data(), dm.data()) : dy;
  linear.backward(x.data(), scaled.data(), dx.data(), da.data(), db.data());
  if (c.write == Write::add) {
    for (T& v : dx) v += T(0.5);
  }
  return {{y.begin(), y.end()},
          {dx.begin(), dx.end()},
          {da.begin(), da.end()},
          {db.begin(), db.end()},
          {dm.begin(), dm.end()}};
}

void check_against_reference(Context& ctx, const Case& c) {
  CAPTURE(name(c));
  Layer l(c);
  l.run(ctx, plain_weight(l.w), c.N);
  const Results exact = reference<double>(l, ref::Exact{});
  const Results plain = c.dtype == DType::bf16 ? reference<float>(l, RoundBf16{}) : reference<float>(l, ref::Exact{});
  check_close(to_double(l.y.tensor), exact.y, plain.y, l.y.tensor.dtype);
  check_close(to_double(l.dx.tensor), exact.dx, plain.dx, l.dx.tensor.dtype);
  if (c.R == 0) return;
  check_close(to_double(l.da.tensor), exact.da, plain.da, DType::f32);
  check_close(to_double(l.db.tensor), exact.db, plain.db, DType::f32);
  check_close(to_double(l.dm.tensor), exact.dm, plain.dm, DType::f32);
}

}  // namespace

TEST_CASE("linear_backward: the reference agrees with the complex step, for dx, dA, dB and dm, with dropout") {
  const int64_t N = 3, in = 5, out = 4, R = 2;
  const auto values = [](int64_t count, uint32_t seed) {
    const std::vector<float> v = random_values(static_cast<size_t>(count), seed);
    return std::vector<double>(v.begin(), v.end());
  };
  const std::vector<double> w = values(out * in, 1), a = values(R * in, 2), b = values(out * R, 3),
                            x = values(N * in, 4), dy = values(N * out, 5), bias = values(out, 6),
                            residual = values(N * out, 7), m = values(out, 8);
  const std::vector<double> norm = {1.5, 0.25, 2, 3};  // a constant of the backward
  const std::vector<int> keep = {1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1, 1};
  // sum of dy y as a function of x, A, B and m
  const auto loss = [&](const std::vector<Complex>& zx, const std::vector<Complex>& za, const std::vector<Complex>& zb,
                        const std::vector<Complex>& zm) {
    const std::vector<Complex> zw(w.begin(), w.end()), zbias(bias.begin(), bias.end()),
        zr(residual.begin(), residual.end()), zn(norm.begin(), norm.end());
    const ref::Linear<Complex> linear{.N = N,
                                      .in = in,
                                      .out = out,
                                      .weight = zw.data(),
                                      .R = R,
                                      .lora_a = za.data(),
                                      .lora_b = zb.data(),
                                      .scale = 0.7,
                                      .dropout_p = 0.25,
                                      .keep = keep.data(),
                                      .magnitude = zm.data(),
                                      .norm = zn.data()};
    std::vector<Complex> y(static_cast<size_t>(N * out));
    linear.forward(zx.data(), zbias.data(), zr.data(), y.data());
    Complex sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
    return sum;
  };
  const ref::Linear<double> linear{.N = N,
                                   .in = in,
                                   .out = out,
                                   .weight = w.data(),
                                   .R = R,
                                   .lora_a = a.data(),
                                   .lora_b = b.data(),
                                   .scale = 0.7,
                                   .dropout_p = 0.25,
                                   .keep = keep.data(),
                                   .magnitude = m.data(),
                                   .norm = norm.data()};
  std::vector<double> dx(x.size(), NAN), da(a.size(), 0), db(b.size(), 0), dm(m.size(), 0);
  const std::vector<double> scaled = linear.magnitude_backward(x.data(), dy.data(), dm.data());
  linear.backward(x.data(), scaled.data(), dx.data(), da.data(), db.data());
  const std::vector<Complex> cx(x.begin(), x.end()), ca(a.begin(), a.end()), cb(b.begin(), b.end()),
      cm(m.begin(), m.end());
  CHECK(max_difference(dx, complex_step_gradient(x, [&](auto& z) { return loss(z, ca, cb, cm); })) < 1e-13);
  CHECK(max_difference(da, complex_step_gradient(a, [&](auto& z) { return loss(cx, z, cb, cm); })) < 1e-13);
  CHECK(max_difference(db, complex_step_gradient(b, [&](auto& z) { return loss(cx, ca, z, cm); })) < 1e-13);
  CHECK(max_difference(dm, complex_step_gradient(m, [&](auto& z) { return loss(cx, ca, cb, z); })) < 1e-13);
}

TEST_CASE("linear: each backend is as close to f64 as plain loops in its precision") {
  for (Isa isa : built_isas()) {
    TestContext t(isa);
    for (DType dtype : {DType::f32, DType::bf16}) {
      check_against_reference(t, {.N = 1, .in = 1, .out = 1, .R = 1, .dtype = dtype});
      check_against_reference(t, {.N = 7, .in = 33, .out = 19, .R = 3, .dtype = dtype, .bias = true});
      check_against_reference(t, {.N = 65, .in = 100, .out = 70, .R = 8, .dtype = dtype, .p = 0.3F, .residual = true});
      check_against_reference(t, {.N = 11, .in = 333, .out = 20, .R = 2, .dtype = dtype, .p = 0.5F});
      check_against_reference(t, {.N = 300, .in = 64, .out = 41, .R = 16, .dtype = dtype, .write = Write::add});
      check_against_reference(
          t, {.N = 530, .in = 48, .out = 36, .R = 5, .dtype = dtype, .p = 0.1F, .dx_dtype = DType::f32});
      check_against_reference(
          t, {.N = 20, .in = 40, .out = 30, .R = 4, .dtype = dtype, .write = Write::add, .dx_dtype = DType::f32});
      check_against_reference(t, {.N = 6, .in = 33, .out = 19, .R = 3, .dtype = dtype, .bias = true, .dora = true});
      check_against_reference(
          t, {.N = 300, .in = 64, .out = 141, .R = 5, .dtype = dtype, .p = 0.3F, .residual = true, .dora = true});
      check_against_reference(t,
                              {.N = 9, .in = 600, .out = 1100, .R = 0, .dtype = dtype, .bias = true, .residual = true});
    }
  }
}

TEST_CASE("linear: tiles of whole row chunks and any number of threads give the same bytes") {
  for (Isa isa : built_isas()) {
    TestContext one(isa, 1), two(isa, 2), five(isa, 5);
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (float p : {0.0F, 0.2F}) {
        Layer l({.N = 1100, .in = 96, .out = 136, .R = 8, .dtype = dtype, .p = p, .write = Write::add, .dora = p > 0});
        const Weight w = plain_weight(l.w);
        l.run(one, w, l.c.N);
        const std::string expected = l.bytes();
        for (int64_t tile : {row_chunk, 2 * row_chunk, l.c.N}) {
          l.run(two, w, tile);
          CAPTURE(tile);
          CHECK((l.bytes() == expected));
        }
        l.run(one, w, 3 * row_chunk);
        CHECK((l.bytes() == expected));
        l.run(five, w, l.c.N);
        CHECK((l.bytes() == expected));
      }
    }
  }
}

TEST_CASE("linear: xa kept from the forward changes no byte") {
  for (Isa isa : built_isas()) {
    TestContext t(isa, 2);
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (const Case& c : {Case{.N = 300, .in = 96, .out = 136, .R = 16, .dtype = dtype},
                            {.N = 530, .in = 136, .out = 48, .R = 5, .dtype = dtype, .p = 0.2F, .dora = true},
                            {.N = 270, .in = 72, .out = 72, .R = 24, .dtype = dtype, .p = 0.3F}}) {
        CAPTURE(name(c));
        Layer l(c);
        const Weight w = plain_weight(l.w);
        l.run(t, w, c.N);
        const std::string expected = l.bytes();
        l.keeps_xa = true;
        l.run(t, w, row_chunk);
        CHECK((l.bytes() == expected));
      }
    }
  }
}

TEST_CASE("linear: a row's y and dx do not depend on the rows beside it") {
  for (Isa isa : built_isas()) {
    TestContext t(isa, 2);
    for (DType dtype : {DType::f32, DType::bf16}) {
      Layer l({.N = 270, .in = 576, .out = 192, .R = 16, .dtype = dtype, .p = 0.2F, .residual = true});
      const Weight w = plain_weight(l.w);
      l.run(t, w, l.c.N);
      const std::string y(static_cast<const char*>(l.y.tensor.data), static_cast<size_t>(l.y.tensor.size_bytes()));
      const std::string dx(static_cast<const char*>(l.dx.tensor.data), static_cast<size_t>(l.dx.tensor.size_bytes()));
      l.reset();
      for (int64_t begin = 0, count = 1; begin < l.c.N; begin += count, count = count * 2 + 1) {
        l.forward(t, w, begin, std::min(count, l.c.N - begin));
        l.backward(t, w, begin, std::min(count, l.c.N - begin));
      }
      CHECK(std::memcmp(l.y.tensor.data, y.data(), y.size()) == 0);
      CHECK(std::memcmp(l.dx.tensor.data, dx.data(), dx.size()) == 0);
    }
  }
}

TEST_CASE("linear: a stored weight gives the bytes of its dequantised copy, over several panels") {
  struct Stored {
    WeightFormat format;
    int64_t rows, cols, interleaved_head_dim;
  };
  for (const Stored& s : {Stored{WeightFormat::q8_0, 96, 608, 0},
                          {WeightFormat::q4_1, 1000, 1056, 0},
                          {WeightFormat::q4_k, 70, 1280, 0},
                          {WeightFormat::bf16, 128, 100, 32},
                          {WeightFormat::f32, 64, 33, 0},
                          {WeightFormat::f16, 48, 70, 16}}) {
    CAPTURE(to_string(s.format));
    Weight w{.format = s.format, .rows = s.rows, .cols = s.cols, .interleaved_head_dim = s.interleaved_head_dim};
    std::vector<std::byte> data(static_cast<size_t>(s.rows * w.row_bytes()));
    for (size_t i = 0; i < data.size(); ++i)
      data[i] = std::byte(random_bits(1, 2, i) & 0x3b);  // small exponents: finite
    w.data = data.data();
    for (DType dtype : {DType::f32, DType::bf16}) {
      TestContext t(detect_isa(), 2);
      Layer l({.N = 300, .in = s.cols, .out = s.rows, .R = 4, .dtype = dtype});
      dequantize(t, {.weight = w, .out = l.w});
      l.run(t, plain_weight(l.w), l.c.N);
      const std::string expected = l.bytes();
      l.run(t, w, l.c.N);
      CHECK((l.bytes() == expected));
    }
  }
}

TEST_CASE("linear: a weight at an odd address is read as well") {
  TestContext t(detect_isa(), 1);
  Layer l({.N = 5, .in = 40, .out = 24, .R = 2, .dtype = DType::f32});
  Weight w = plain_weight(l.w);
  l.run(t, w, 5);
  const std::string expected = l.bytes();
  std::vector<std::byte> moved(static_cast<size_t>(l.w.tensor.size_bytes()) + 1);
  std::memcpy(moved.data() + 1, w.data, moved.size() - 1);
  w.data = moved.data() + 1;
  l.run(t, w, 5);
  CHECK((l.bytes() == expected));
}

TEST_CASE("linear: a counting arena predicts the peak to the byte") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (float p : {0.0F, 0.5F}) {
      for (int64_t N : {3, 256, 700}) {
        Layer l({.N = N, .in = 576, .out = 130, .R = 8, .dtype = dtype, .p = p, .dora = p > 0});
        TestContext t(detect_isa(), 2);
        Arena counting = Arena::counting(test_device());
        Context planner{.arena = counting, .pool = t.pool, .device = test_device(), .isa = t.ctx.isa};
        l.run(planner, plain_weight(l.w), N);
        CHECK(std::isnan(to_double(l.y.tensor)[0]));
        l.run(t, plain_weight(l.w), N);
        CHECK(counting.peak() == t.arena.peak());
      }
    }
  }
}

TEST_CASE("linear: no rows are no work, and gradients stay") {
  TestContext t(detect_isa(), 1);
  Layer l({.N = 4, .in = 8, .out = 8, .R = 2});
  const std::string before = l.bytes();
  l.forward(t, plain_weight(l.w), 0, 0);
  l.backward(t, plain_weight(l.w), 0, 0);
  CHECK((l.bytes() == before));
}

TEST_CASE("linear: misuse is our own mistake") {
  TestContext t(detect_isa(), 1);
  Layer l({.N = 4, .in = 8, .out = 6, .R = 2});
  const Weight w = plain_weight(l.w);
  CHECK_THROWS_AS(linear_forward(t, {.weight = w, .x = l.dy, .y = l.y}), Error);                // x is not [N, in]
  CHECK_THROWS_AS(linear_forward(t, {.weight = w, .lora_a = l.a, .x = l.x, .y = l.y}), Error);  // A without B
  CHECK_THROWS_AS(linear_forward(t, {.weight = w, .lora_a = l.a, .lora_b = l.b, .magnitude = l.m, .x = l.x, .y = l.y}),
                  Error);                                                                     // no norm
  CHECK_THROWS_AS(linear_forward(t, {.weight = w, .bias = l.x, .x = l.x, .y = l.y}), Error);  // bias shape
  CHECK_THROWS_AS(linear_forward(t, {.weight = w, .x = l.x, .y = l.y, .xa = l.xa}), Error);   // xa without an adapter
  CHECK_THROWS_AS(linear_forward(t, {.weight = w, .lora_a = l.a, .lora_b = l.b, .x = l.x, .y = l.y, .xa = l.y}),
                  Error);  // xa is not [N, xa_columns(R)]
  CHECK_THROWS_AS(linear_backward(t, {.weight = w, .lora_a = l.a, .lora_b = l.b, .x = l.x, .dy = l.dy, .dx = l.dx}),
                  Error);  // no dA
  CHECK_THROWS_AS(
      linear_forward(t, {.weight = w, .lora_a = l.a, .lora_b = l.b, .dropout = {.p = 1}, .x = l.x, .y = l.y}), Error);
}
