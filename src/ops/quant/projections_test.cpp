#include "ops/quant/projections.h"

#include <doctest/doctest.h>

#include <cmath>
#include <deque>

#include "ops/quant/quant_ref.h"
#include "support/close.h"
#include "support/contexts.h"
#include "support/weights.h"

namespace sluice {
namespace {

using namespace sluice::test;

// Two or three matrices of one x, as projections sees them and as plain loops compute them.
struct Problem {
  int64_t N, in;
  std::deque<RandomWeight> weights;
  std::vector<float> x, norm_weight, before;

  Problem(const std::vector<WeightKind>& kinds, const std::vector<int64_t>& rows, int64_t N_, int64_t in_)
      : N(N_), in(in_), x(random_values(static_cast<size_t>(N * in), 1)) {
    for (size_t i = 0; i < rows.size(); ++i) weights.emplace_back(kinds[i], rows[i], in, static_cast<uint32_t>(i + 2));
    norm_weight = random_values(static_cast<size_t>(in), 9);
    before = random_values(static_cast<size_t>(N * 4096), 10);
  }

  struct Variant {
    bool norm, add;
    std::optional<Activation> gate;
  };

  std::vector<float> run(Context& ctx, const Variant& v, int64_t row_begin, int64_t count) const {
    Buffer xb(DType::f32, {N, in}, x), nb(DType::f32, {in}, norm_weight);
    std::deque<Buffer> ys;
    Projections args{.x = xb.tensor.rows(row_begin, count), .gate = v.gate, .write = v.add ? Write::add : Write::set};
    if (v.norm) args.norm = Projections::Norm{.weight = nb, .eps = 1e-5F, .offset = 1};
    for (const RandomWeight& w : weights) {
      const auto size = static_cast<size_t>(count * w.weight.rows);
      std::vector<float> start(size, NAN);
      if (v.add) std::copy_n(before.begin() + row_begin * w.weight.rows, size, start.begin());
      args.parts.push_back({&w.weight, ys.emplace_back(DType::f32, Shape{count, w.weight.rows}, start)});
    }
    projections(ctx, args);
    std::vector<float> all;
    for (size_t i = 0; i < (v.gate ? 1 : ys.size()); ++i) {
      const float* y = ys[i].tensor.as<float>();
      all.insert(all.end(), y, y + ys[i].tensor.numel());
    }
    return all;
  }

  template <class T>
  std::vector<double> reference(const Variant& v) const {
    std::vector<T> xs(x.begin(), x.end());
    for (int64_t n = 0; n < N && v.norm; ++n) {
      T squares = 0;
      for (int64_t c = 0; c < in; ++c) squares += xs[n * in + c] * xs[n * in + c];
      const T rstd = 1 / std::sqrt(squares / T(in) + T(1e-5F));
      for (int64_t c = 0; c < in; ++c) xs[n * in + c] *= rstd * (1 + T(norm_weight[c]));
    }
    std::vector<std::vector<T>> ys;
    for (const RandomWeight& w : weights) {
      ys.emplace_back(static_cast<size_t>(N * w.weight.rows));
      ref::weight_matvec<T>(w.weight, N, xs.data(), ys.back().data());
    }
    if (v.gate) {
      for (size_t i = 0; i < ys[0].size(); ++i) {
        const T z = ys[0][i], u = T(std::sqrt(2 / M_PI)) * (z + T(0.044715) * z * z * z);
        ys[0][i] = (*v.gate == Activation::silu ? z / (1 + std::exp(-z)) : z / 2 * (1 + std::tanh(u))) * ys[1][i];
      }
      ys.resize(1);
    }
    std::vector<double> all;
    for (const std::vector<T>& y : ys) {
      for (size_t i = 0; i < y.size(); ++i) all.push_back(static_cast<double>(v.add ? y[i] + T(before[i]) : y[i]));
    }
    return all;
  }
};

const std::vector<Problem::Variant> variants = {{false, false, {}},
                                                {true, false, {}},
                                                {false, true, {}},
                                                {true, true, {}},
                                                {true, false, Activation::silu},
                                                {false, true, Activation::gelu_tanh}};

TEST_CASE("projections: as close to f64 as plain loops in float, for every format, with norms, gates and sums") {
  for (const WeightKind& kind : all_weight_kinds()) {
    CAPTURE(kind.name());
    const int64_t in = block_cols(kind.format) == 1 && kind.format != WeightFormat::affine ? 88 : 512;
    for (const Problem::Variant& v : variants) {
      CAPTURE(v.norm);
      CAPTURE(v.add);
      CAPTURE(v.gate.has_value());
      const std::vector<int64_t> rows = v.gate ? std::vector<int64_t>{37, 37} : std::vector<int64_t>{37, 16, 5};
      const Problem problem(std::vector<WeightKind>(3, kind), rows, 3, in);
      const std::vector<double> exact = problem.reference<double>(v), plain = problem.reference<float>(v);
      for (Isa isa : built_isas()) {
        TestContext ctx(isa, 2, 1 << 20);
        const std::vector<float> y = problem.run(ctx, v, 0, 3);
        check_close(std::vector<double>(y.begin(), y.end()), exact, plain, DType::f32);
      }
    }
  }
}

TEST_CASE("projections: matrices of several formats go together, and a row does not depend on the others") {
  const WeightKind q4_k{.format = WeightFormat::q4_k}, q6_k{.format = WeightFormat::q6_k},
      bf16{.format = WeightFormat::bf16};
  for (const std::vector<WeightKind>& kinds :
       {std::vector<WeightKind>{q4_k, q4_k, q6_k}, std::vector<WeightKind>{q4_k, bf16, bf16}}) {
    const int64_t N = 9;
    const Problem problem(kinds, {301, 64, 70}, N, 1536);
    for (const Problem::Variant& v : variants) {
      if (v.gate) continue;
      for (Isa isa : built_isas()) {
        TestContext ctx(isa, 2, 1 << 20);
        const std::vector<float> all = problem.run(ctx, v, 0, N);
        check_close(std::vector<double>(all.begin(), all.end()), problem.reference<double>(v),
                    problem.reference<float>(v), DType::f32);
        for (int64_t n = 0; n < N; ++n) {
          const std::vector<float> one = problem.run(ctx, v, n, 1);
          size_t at = 0, from = 0;
          for (const RandomWeight& w : problem.weights) {
            const auto rows = static_cast<size_t>(w.weight.rows);
            CHECK(std::memcmp(one.data() + from, all.data() + at + static_cast<size_t>(n) * rows, rows * 4) == 0);
            from += rows, at += static_cast<size_t>(N) * rows;
          }
        }
      }
    }
  }
}

TEST_CASE("projections: a matrix of many tiles, gated, for one and for several rows") {
  const WeightKind kind{.format = WeightFormat::affine, .bits = 4, .group_size = 64};
  const int64_t N = 3;
  const Problem problem({kind, kind}, {9001, 9001}, N, 256);
  const Problem::Variant v{true, false, Activation::silu};
  for (Isa isa : built_isas()) {
    TestContext ctx(isa, 2, 4 << 20);
    const std::vector<float> all = problem.run(ctx, v, 0, N), one = problem.run(ctx, v, 1, 1);
    check_close(std::vector<double>(all.begin(), all.end()), problem.reference<double>(v), problem.reference<float>(v),
                DType::f32);
    CHECK(std::memcmp(one.data(), all.data() + 9001, 9001 * 4) == 0);
  }
}

}  // namespace
}  // namespace sluice
