#include "ops/attention/attention.h"

#include <doctest/doctest.h>

#include "support/attention_problem.h"
#include "support/complex_step.h"

using namespace sluice;
using namespace sluice::test;

namespace {

std::vector<double> doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

// sum(o do) + sum(lse dlse) has known derivatives only for o: lse enters as its own gradient of zero.
Complex loss(const AttentionProblem& p, const std::vector<Complex>& q, const std::vector<Complex>& k,
             const std::vector<Complex>& v) {
  std::vector<Complex> o(q.size()), lse(static_cast<size_t>(p.N() * p.shape.num_heads));
  ref::attention_forward(p.shape, p.spans, 0, p.N(), q.data(), k.data(), v.data(), o.data(), lse.data());
  Complex sum = 0;
  for (size_t i = 0; i < o.size(); ++i) sum += o[i] * static_cast<double>(p.do_[i]);
  return sum;
}

struct Case {
  const char* what;
  AttentionShape shape;
  std::vector<Spans::Piece> spans;
};

AttentionShape heads(int64_t H, int64_t K, int64_t D, float scale, int64_t window = 0, float softcap = 0) {
  return {.num_heads = H, .num_kv_heads = K, .head_dim = D, .scale = scale, .window = window, .softcap = softcap};
}

const Case small_cases[] = {
    {"one span", heads(2, 1, 6, 0.4F), {{-1, 7}}},
    {"window", heads(2, 2, 6, 0.4F, 3), {{-1, 8}}},
    {"softcap", heads(4, 2, 4, 1.0F, 0, 1.5F), {{-1, 6}}},
    {"prompt with two answers", heads(2, 1, 4, 0.5F), {{-1, 4}, {0, 3}, {0, 2}}},
    {"forest, window and softcap", heads(2, 1, 4, 1.0F, 4, 2.0F), {{-1, 3}, {-1, 2}, {0, 3}, {1, 2}, {2, 1}}},
};

const Case cases[] = {
    {"two tokens", heads(2, 1, 8, 0.3F), {{-1, 2}}},
    {"shorter than a tile", heads(2, 2, 8, 0.3F), {{-1, 31}}},
    {"SmolLM2 heads", heads(9, 3, 64, 0.125F), {{-1, 300}}},
    {"whole blocks", heads(2, 1, 64, 0.125F), {{-1, 256}}},
    {"head_dim 10", heads(3, 1, 10, 0.3F), {{-1, 205}}},
    {"head_dim 34", heads(2, 1, 34, 0.2F, 70), {{-1, 333}}},
    {"head_dim 256, window", heads(4, 1, 256, 0.0625F, 100), {{-1, 401}}},
    {"head_dim 512, scale 1", heads(2, 1, 512, 1.0F), {{-1, 150}}},
    {"softcap", heads(2, 1, 16, 0.25F, 0, 3.0F), {{-1, 200}}},
    {"softcap far from linear, window", heads(2, 1, 64, 1.0F, 130, 1.0F), {{-1, 270}}},
    {"packing", heads(2, 1, 32, 0.2F), {{-1, 100}, {-1, 7}, {-1, 128}, {-1, 1}, {-1, 90}}},
    {"packing, window", heads(2, 1, 32, 0.2F, 33), {{-1, 100}, {-1, 7}, {-1, 128}, {-1, 1}, {-1, 90}}},
    {"prompt with answers", heads(4, 2, 32, 0.2F), {{-1, 200}, {0, 70}, {0, 130}, {0, 3}}},
    {"prompt with answers, window", heads(4, 2, 32, 0.2F, 96), {{-1, 200}, {0, 70}, {0, 130}, {0, 3}}},
    {"deep tree", heads(2, 1, 16, 0.3F, 0), {{-1, 50}, {0, 60}, {0, 5}, {1, 70}, {3, 1}, {2, 90}, {4, 20}}},
    {"deep tree, window, softcap",
     heads(2, 1, 16, 0.3F, 75, 4.0F),
     {{-1, 50}, {0, 60}, {0, 5}, {1, 70}, {3, 1}, {2, 90}, {4, 20}}},
};

}  // namespace

TEST_CASE("attention_backward: the reference agrees with the complex step, with window, softcap and forests") {
  for (const Case& c : small_cases) {
    CAPTURE(c.what);
    const AttentionProblem p = attention_problem(c.shape, Spans(c.spans));
    auto exact = reference_attention<double>(p);
    for (auto* sum : {&exact.dk, &exact.dv}) {
      for (double& x : *sum) x -= attention_gradient_before;
    }
    const std::vector<Complex> q(p.q.begin(), p.q.end()), k(p.k.begin(), p.k.end()), v(p.v.begin(), p.v.end());
    CHECK(relative_l2(exact.dq, complex_step_gradient(doubles(p.q), [&](auto& z) { return loss(p, z, k, v); })) <
          1e-13);
    CHECK(relative_l2(exact.dk, complex_step_gradient(doubles(p.k), [&](auto& z) { return loss(p, q, z, v); })) <
          1e-13);
    CHECK(relative_l2(exact.dv, complex_step_gradient(doubles(p.v), [&](auto& z) { return loss(p, q, k, z); })) <
          1e-13);
  }
}

TEST_CASE("attention: each backend is as close to f64 as plain loops in its precision") {
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const AttentionProblem p = attention_problem(c.shape, Spans(c.spans));
    const auto exact = reference_attention<double>(p);
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(to_string(dtype));
      const auto plain =
          dtype == DType::bf16 ? reference_attention<float>(p, RoundToBf16{}) : reference_attention<float>(p);
      for (Isa isa : built_isas()) {
        CAPTURE(static_cast<int>(isa));
        TestContext context(isa, 2, 8 << 20);
        AttentionRun run(p, dtype);
        run.forward(context, p);
        run.backward(context, p);
        check_close(to_double(run.o), exact.o, to_double(plain.o), dtype);
        check_close(to_double(run.lse), exact.lse, to_double(plain.lse), DType::f32);
        check_close(to_double(run.dq), exact.dq, to_double(plain.dq), DType::f32);
        check_close(to_double(run.dk), exact.dk, to_double(plain.dk), DType::f32);
        check_close(to_double(run.dv), exact.dv, to_double(plain.dv), DType::f32);
      }
    }
  }
}

TEST_CASE("attention: a token that sees itself only passes v on, and its score has no gradient but rounding") {
  const AttentionProblem p = attention_problem(heads(2, 2, 8, 0.3F), Spans({{-1, 1}, {-1, 1}}));
  for (Isa isa : built_isas()) {
    TestContext context(isa, 2, 8 << 20);
    AttentionRun run(p, DType::f32);
    run.forward(context, p);
    run.backward(context, p);
    CHECK(to_double(run.o) == to_double(p.v));
    CHECK(max_difference(to_double(run.dq), std::vector<double>(p.q.size(), 0)) < 1e-6);
    for (size_t i = 0; i < p.v.size(); ++i) CHECK(run.dv.tensor.as<float>()[i] == p.do_[i] + attention_gradient_before);
  }
}

TEST_CASE("attention: scores in the thousands neither overflow nor blur the softmax") {
  const AttentionProblem p = attention_problem(heads(2, 1, 512, 40.0F), Spans::one(140));
  const auto exact = reference_attention<double>(p);
  const auto plain = reference_attention<float>(p);
  // A weight is as exact as its score: half a unit of a float in the thousands, whatever the order of its sum.
  const double of_score = 0x1p-13;
  for (Isa isa : built_isas()) {
    TestContext context(isa, 2, 8 << 20);
    AttentionRun run(p, DType::f32);
    run.forward(context, p);
    run.backward(context, p);
    check_close(to_double(run.o), exact.o, to_double(plain.o), DType::f32, of_score);
    check_close(to_double(run.lse), exact.lse, to_double(plain.lse), DType::f32, of_score);
    check_close(to_double(run.dv), exact.dv, to_double(plain.dv), DType::f32, of_score);
    // Nearly all weight lies on one key, so ds = p (dp - delta) cancels: bounded by the rounding of dp, which is of the size of |do| |v|.
    const double bound = 0x1p-20 * 40 * 512;
    CHECK(max_difference(to_double(run.dq), exact.dq) < bound);
    CHECK(max_difference(to_double(run.dk), exact.dk) < bound);
  }
}

TEST_CASE("attention: a NaN is not swallowed, and stays in the rows that see it") {
  AttentionProblem p = attention_problem(heads(2, 1, 16, 0.3F), Spans({{-1, 40}, {-1, 60}}));
  p.q[static_cast<size_t>(50 * p.wide() + 3)] = std::numeric_limits<float>::quiet_NaN();  // token 50, head 0
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (Isa isa : built_isas()) {
      TestContext context(isa, 2, 8 << 20);
      AttentionRun run(p, dtype);
      run.forward(context, p);
      run.backward(context, p);
      const auto o = to_double(run.o), dq = to_double(run.dq), dk = to_double(run.dk);
      for (int64_t i = 0; i < p.N(); ++i) {
        for (int64_t c = 0; c < p.wide(); ++c) {
          const auto at = static_cast<size_t>(i * p.wide() + c);
          CHECK(std::isnan(o[at]) == (i == 50 && c < 16));
          CHECK(std::isnan(dq[at]) == (i == 50 && c < 16));
        }
        if (i >= 40 && i <= 50) CHECK(std::isnan(dk[static_cast<size_t>(i * p.narrow())]));
      }
    }
  }
}

TEST_CASE("attention_forward: misuse is refused") {
  const AttentionProblem p = attention_problem(heads(2, 1, 8, 0.3F), Spans::one(5));
  TestContext context(Isa::avx2);
  AttentionRun run(p, DType::f32);
  AttentionForward args{
      .shape = p.shape, .spans = p.spans, .q = run.q, .k = run.k, .v = run.v, .o = run.o, .lse = run.lse};
  SUBCASE("heads that do not divide") { args.shape.num_kv_heads = 3; }
  SUBCASE("keys that end before the queries") { args.k = run.k.tensor.rows(0, 4); }
  SUBCASE("queries past the last token") { args.query_begin = 1; }
  SUBCASE("two dtypes") { args.k.dtype = DType::bf16; }
  SUBCASE("a scale of 0") { args.shape.scale = 0; }
  CHECK_THROWS_AS(attention_forward(context, args), Error);
}
