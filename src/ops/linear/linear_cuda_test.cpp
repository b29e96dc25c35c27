// Shapes that the Hopper kernels take: whole and partial tiles, more tiles than multiprocessors, every layout and
// epilogue.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/rng.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_ref.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

struct Case {
  int64_t N, in, out, R;
  float p = 0;
  Write write = Write::set;
  DType dx_dtype = DType::bf16;
  bool bias = false, residual = false, dora = false;
  DType dtype = DType::bf16;
};

std::string name(const Case& c) {
  return std::to_string(c.N) + " rows, " + std::to_string(c.in) + " -> " + std::to_string(c.out) + ", R " +
         std::to_string(c.R) + ", p " + std::to_string(c.p) + (c.dora ? ", DoRA, " : ", ") +
         std::string(to_string(c.dtype));
}

constexpr float scale = 1.5F;

struct Layer {
  Case c;
  bool keeps_xa = false;  // from the forward for the backward
  Buffer w, bias, a, b, m, norm, x, dy, residual, y, xa, dx, da, db, dm;

  explicit Layer(const Case& c_)
      : c(c_),
        w(c.dtype, {c.out, c.in}, random_values(count(c.out, c.in), 1, 0.1F)),
        bias(DType::f32, {c.out}, random_values(count(c.out, 1), 2)),
        a(DType::f32, {c.R, c.in}, random_values(count(c.R, c.in), 3, 0.1F)),
        b(DType::f32, {c.out, c.R}, random_values(count(c.out, c.R), 4)),
        m(DType::f32, {c.out}, random_values(count(c.out, 1), 8)),
        norm(DType::f32, {c.out}, random_values(count(c.out, 1), 9)),
        x(c.dtype, {c.N, c.in}, random_values(count(c.N, c.in), 5)),
        dy(c.dtype, {c.N, c.out}, random_values(count(c.N, c.out), 6)),
        residual(c.dtype, {c.N, c.out}, random_values(count(c.N, c.out), 7)),
        y(c.dtype, {c.N, c.out}),
        xa(c.dtype, {c.N, xa_columns(c.R)}),
        dx(c.dtype == DType::f32 ? DType::f32 : c.dx_dtype, {c.N, c.in}),
        da(DType::f32, {c.R, c.in}),
        db(DType::f32, {c.out, c.R}),
        dm(DType::f32, {c.out}) {
    for (int64_t o = 0; o < c.out; ++o) norm.tensor.as<float>()[o] = 1 + std::abs(norm.tensor.as<float>()[o]);
  }
  static size_t count(int64_t rows, int64_t cols) { return static_cast<size_t>(rows * cols); }
  static Tensor when(bool wanted, const Tensor& t) { return wanted ? t : Tensor{}; }
  Weight weight() const {
    return {.format = c.dtype == DType::bf16 ? WeightFormat::bf16 : WeightFormat::f32,
            .rows = c.out,
            .cols = c.in,
            .data = static_cast<const std::byte*>(w.tensor.data)};
  }

  void reset() {
    fill(y, NAN);
    fill(xa, NAN);
    fill(dx, c.write == Write::set ? NAN : 0.5F);
    fill(da, 0.25F);
    fill(db, -0.25F);
    fill(dm, 0.5F);
  }
  void run_rows(Context& ctx, int64_t begin, int64_t rows) const {
    const Weight weights = weight();
    const Dropout dropout{.p = c.p, .seed = 11, .stream = 77, .row_begin = begin};
    linear_forward(ctx, {.weight = weights,
                         .bias = when(c.bias, bias),
                         .lora_a = when(c.R > 0, a),
                         .lora_b = when(c.R > 0, b),
                         .magnitude = when(c.dora, m),
                         .norm = when(c.dora, norm),
                         .scale = scale,
                         .dropout = dropout,
                         .x = x.tensor.rows(begin, rows),
                         .residual = when(c.residual, residual.tensor.rows(begin, rows)),
                         .y = y.tensor.rows(begin, rows),
                         .xa = when(keeps_xa, xa.tensor.rows(begin, rows))});
    linear_backward(ctx, {.weight = weights,
                          .lora_a = when(c.R > 0, a),
                          .lora_b = when(c.R > 0, b),
                          .magnitude = when(c.dora, m),
                          .norm = when(c.dora, norm),
                          .scale = scale,
                          .dropout = dropout,
                          .x = when(c.R > 0, x.tensor.rows(begin, rows)),
                          .xa = when(keeps_xa, xa.tensor.rows(begin, rows)),
                          .dy = dy.tensor.rows(begin, rows),
                          .dx = dx.tensor.rows(begin, rows),
                          .write = c.write,
                          .dlora_a = when(c.R > 0, da),
                          .dlora_b = when(c.R > 0, db),
                          .dmagnitude = when(c.dora, dm)});
  }
  void run(Context& ctx, int64_t tile) {
    reset();
    for (int64_t begin = 0; begin < c.N; begin += tile) run_rows(ctx, begin, std::min(tile, c.N - begin));
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

template <class T, class Round>
Results reference(const Layer& l, Round round) {
  const Case& c = l.c;
  const auto values = [](const Tensor& t) {
    const std::vector<double> v = to_double(t);
    return std::vector<T>(v.begin(), v.end());
  };
  std::vector<int> keep(c.p > 0 ? Layer::count(c.N, c.in) : 0);
  for (size_t i = 0; i < keep.size(); ++i) keep[i] = random_uniform(11, 77, i) >= c.p;
  const std::vector<T> w = values(l.w), a = values(l.a), b = values(l.b), x = values(l.x), dy = values(l.dy),
                       bias = values(l.bias), residual = values(l.residual), m = values(l.m), norm = values(l.norm);
  const ref::Linear<T, Round> linear{.N = c.N,
                                     .in = c.in,
                                     .out = c.out,
                                     .weight = w.data(),
                                     .R = c.R,
                                     .lora_a = a.data(),
                                     .lora_b = b.data(),
                                     .scale = scale,
                                     .dropout_p = c.p,
                                     .keep = c.p > 0 ? keep.data() : nullptr,
                                     .magnitude = c.dora ? m.data() : nullptr,
                                     .norm = c.dora ? norm.data() : nullptr,
                                     .round = round};
  std::vector<T> y(dy.size()), dx(x.size()), da(a.size(), T(0.25)), db(b.size(), T(-0.25)), dm(m.size(), T(0.5));
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
  l.run(ctx, c.N);
  const Results exact = reference<double>(l, ref::Exact{});
  const Results plain = c.dtype == DType::bf16 ? reference<float>(l, RoundBf16{}) : reference<float>(l, ref::Exact{});
  INFO("y");
  check_close(to_double(l.y.tensor), exact.y, plain.y, l.y.tensor.dtype);
  INFO("dx");
  check_close(to_double(l.dx.tensor), exact.dx, plain.dx, l.dx.tensor.dtype);
  if (c.R == 0) return;
  INFO("dA");
  check_close(to_double(l.da.tensor), exact.da, plain.da, DType::f32);
  INFO("dB");
  check_close(to_double(l.db.tensor), exact.db, plain.db, DType::f32);
  INFO("dm");
  check_close(to_double(l.dm.tensor), exact.dm, plain.dm, DType::f32);
}

}  // namespace

TEST_CASE("linear on CUDA: plain products, whole and partial tiles, are as close to f64 as plain loops") {
  if (!on_cuda()) return;
  TestContext t(detect_isa());
  check_against_reference(t, {.N = 128, .in = 64, .out = 128, .R = 0});
  check_against_reference(t, {.N = 128, .in = 128, .out = 256, .R = 0});
  check_against_reference(t, {.N = 1, .in = 72, .out = 136, .R = 0, .bias = true});
  check_against_reference(t, {.N = 640, .in = 264, .out = 392, .R = 0, .bias = true, .residual = true});
  check_against_reference(t, {.N = 387, .in = 328, .out = 200, .R = 0, .write = Write::add});
  check_against_reference(t, {.N = 131, .in = 200, .out = 328, .R = 0, .write = Write::add, .dx_dtype = DType::f32});
  check_against_reference(
      t, {.N = 131, .in = 136, .out = 269, .R = 0, .bias = true, .residual = true});  // y at odd addresses
}

TEST_CASE("linear on CUDA: adapters of every kind of rank are as close to f64 as plain loops") {
  if (!on_cuda()) return;
  TestContext t(detect_isa());
  check_against_reference(t, {.N = 256, .in = 128, .out = 128, .R = 16});
  check_against_reference(t, {.N = 129, .in = 264, .out = 392, .R = 8});
  check_against_reference(t, {.N = 257, .in = 200, .out = 520, .R = 16, .bias = true, .residual = true});
  check_against_reference(
      t, {.N = 700, .in = 136, .out = 264, .R = 64, .p = 0.1F, .write = Write::add, .dx_dtype = DType::f32});
  check_against_reference(t, {.N = 300, .in = 328, .out = 264, .R = 72});
  check_against_reference(t, {.N = 511, .in = 1352, .out = 72, .R = 24, .dora = true});
  check_against_reference(t, {.N = 385, .in = 72, .out = 1400, .R = 16, .write = Write::add});
  check_against_reference(t, {.N = 260, .in = 136, .out = 144, .R = 40, .p = 0.3F, .residual = true, .dora = true});
  check_against_reference(t, {.N = 150, .in = 96, .out = 88, .R = 5, .p = 0.5F});
  check_against_reference(t, {.N = 140, .in = 72, .out = 264, .R = 130});
  check_against_reference(t, {.N = 200, .in = 320, .out = 512, .R = 4, .dtype = DType::f32});
}

TEST_CASE(
    "linear on CUDA: adapters of many rows, wide x and wide dy, with dropout, are as close to f64 as plain loops") {
  if (!on_cuda()) return;
  TestContext t(detect_isa());
  check_against_reference(t, {.N = 2100, .in = 72, .out = 136, .R = 16});
  check_against_reference(t, {.N = 2100, .in = 136, .out = 72, .R = 8, .p = 0.1F, .write = Write::add});
  check_against_reference(t, {.N = 300, .in = 1112, .out = 72, .R = 16, .p = 0.3F});
  check_against_reference(t, {.N = 300, .in = 72, .out = 1112, .R = 12, .p = 0.3F, .residual = true});
  check_against_reference(t, {.N = 4300, .in = 584, .out = 16, .R = 16, .p = 0.1F});
  check_against_reference(t, {.N = 2100, .in = 136, .out = 1032, .R = 16});
  check_against_reference(t, {.N = 2100, .in = 72, .out = 1032, .R = 8, .p = 0.1F, .write = Write::add});
}

TEST_CASE("linear on CUDA: more tiles than multiprocessors are as close to f64 as plain loops") {
  if (!on_cuda()) return;
  TestContext t(detect_isa());
  check_against_reference(t, {.N = 1025, .in = 72, .out = 6088, .R = 8});
  check_against_reference(t, {.N = 1025, .in = 6088, .out = 72, .R = 16, .p = 0.1F, .write = Write::add});
  check_against_reference(t, {.N = 1300, .in = 4616, .out = 72, .R = 8});
}

TEST_CASE("linear on CUDA: tiles of whole row chunks give the same bytes") {
  if (!on_cuda()) return;
  TestContext t(detect_isa());
  for (const Case& c : {Case{.N = 1100, .in = 264, .out = 392, .R = 16, .residual = true},
                        {.N = 1100, .in = 1352, .out = 256, .R = 72, .p = 0.2F, .write = Write::add, .dora = true},
                        {.N = 1100, .in = 2056, .out = 2048, .R = 8},
                        {.N = 2600, .in = 328, .out = 136, .R = 16, .p = 0.2F},
                        {.N = 2600, .in = 328, .out = 1032, .R = 16},
                        {.N = 2600, .in = 72, .out = 1032, .R = 16, .p = 0.2F},
                        {.N = 17100, .in = 72, .out = 200, .R = 16},
                        {.N = 1100, .in = 320, .out = 512, .R = 8, .dtype = DType::f32}}) {
    CAPTURE(name(c));
    Layer l(c);
    l.run(t, c.N);
    const std::string expected = l.bytes();
    l.run(t, c.N);
    CHECK((l.bytes() == expected));
    for (int64_t tile : {row_chunk, 2 * row_chunk, 3 * row_chunk}) {
      CAPTURE(tile);
      l.run(t, tile);
      CHECK((l.bytes() == expected));
    }
  }
}

TEST_CASE("linear on CUDA: xa kept from the forward changes no byte") {
  if (!on_cuda()) return;
  TestContext t(detect_isa());
  for (const Case& c : {Case{.N = 1100, .in = 264, .out = 392, .R = 16, .residual = true},
                        {.N = 2600, .in = 264, .out = 1032, .R = 8},
                        {.N = 2600, .in = 264, .out = 1032, .R = 16, .p = 0.2F, .dora = true},
                        {.N = 600, .in = 392, .out = 72, .R = 5, .p = 0.2F, .write = Write::add},
                        {.N = 1100, .in = 1352, .out = 256, .R = 72, .p = 0.2F, .dora = true},
                        {.N = 1100, .in = 256, .out = 1352, .R = 32},
                        {.N = 1100, .in = 320, .out = 512, .R = 8, .dtype = DType::f32}}) {
    CAPTURE(name(c));
    Layer l(c);
    l.run(t, c.N);
    const std::string expected = l.bytes();
    l.keeps_xa = true;
    for (int64_t tile : {c.N, 2 * row_chunk}) {
      l.run(t, tile);
      CHECK((l.bytes() == expected));
    }
  }
}

TEST_CASE("linear on CUDA: a row's y and dx do not depend on the rows beside it") {
  if (!on_cuda()) return;
  TestContext t(detect_isa());
  for (const Case& c : {Case{.N = 700, .in = 1352, .out = 392, .R = 16, .residual = true},
                        {.N = 300, .in = 320, .out = 512, .R = 8, .p = 0.2F, .dtype = DType::f32}}) {
    CAPTURE(name(c));
    Layer l(c);
    l.run(t, c.N);
    const auto copy = [](const Tensor& tensor) {
      return std::string(static_cast<const char*>(tensor.data), static_cast<size_t>(tensor.size_bytes()));
    };
    const std::string y = copy(l.y), dx = copy(l.dx);
    l.reset();
    for (int64_t begin = 0, rows = 1; begin < c.N; begin += rows, rows = rows * 2 + 1)
      l.run_rows(t, begin, std::min(rows, c.N - begin));
    CHECK((copy(l.y) == y));
    CHECK((copy(l.dx) == dx));
  }
}
