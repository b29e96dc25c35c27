// The golden cases of tests/golden/fixtures/attention and attention_forest, made in float64 by an independent implementation.
#include <doctest/doctest.h>

#include <algorithm>

#include "support/attention_problem.h"
#include "support/oracle.h"

using namespace sluice;
using namespace sluice::test;

namespace {

// splitmix64, as cases.json describes it; values in [-1, 1) that f32 holds exactly.
std::vector<float> generated(uint64_t seed, int64_t count, float factor = 1) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    uint64_t z = seed += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    value = (static_cast<float>(z >> 40) * 0x1p-23F - 1) * factor;
  }
  return values;
}

// [heads, rows, D] of the fixtures -> rows `skip` … of [skip + rows, heads * D]; what is skipped is zero.
template <class T>
std::vector<T> by_token(const std::vector<T>& x, int64_t heads, int64_t D, int64_t skip = 0) {
  const int64_t rows = static_cast<int64_t>(x.size()) / (heads * D);
  std::vector<T> y(static_cast<size_t>((skip + rows) * heads * D));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(x.begin() + (h * rows + r) * D, D, y.begin() + ((skip + r) * heads + h) * D);
  }
  return y;
}

struct GoldenCase {
  AttentionProblem problem;
  int64_t first_query;  // the fixture's queries are the tokens from here on

  GoldenCase(const Json& c) : problem{{}, spans_of(c), {}, {}, {}, {}}, first_query(0) {
    AttentionProblem& p = problem;
    p.shape = {.num_heads = c["hq"],
               .num_kv_heads = c["hkv"],
               .head_dim = c["D"],
               .scale = c["scale"],
               .window = c["window"].is_null() ? 0 : c["window"].get<int64_t>()};
    const int64_t H = p.shape.num_heads, K = p.shape.num_kv_heads, D = p.shape.head_dim, N = p.N();
    const int64_t queries = c.contains("qL") ? c["qL"].get<int64_t>() : N;
    first_query = N - queries;
    const Json& seeds = c["seeds"];
    p.q = by_token(generated(seeds["q"], H * queries * D, c["qmul"]), H, D, first_query);
    p.k = by_token(generated(seeds["k"], K * N * D), K, D);
    p.v = by_token(generated(seeds["v"], K * N * D), K, D);
    p.do_ = by_token(generated(seeds["dO"], H * queries * D), H, D,
                     first_query);  // zero: no gradient from the tokens before
  }

  static Spans spans_of(const Json& c) {
    std::vector<Spans::Piece> pieces;
    if (c.contains("spans")) {
      for (const Json& span : c["spans"]) pieces.push_back({span[0], span[1]});
    } else if (!c["prefix"].is_null()) {
      pieces = {{-1, c["prefix"]["P"]}, {0, c["prefix"]["Rc"]}, {0, c["prefix"]["Rr"]}};
    } else {
      pieces = {{-1, c["kL"]}};
    }
    return Spans(pieces);
  }
};

// Forward on the fixture's queries only, by query_begin; backward on all.
void run_golden(Context& ctx, const AttentionProblem& p, int64_t first_query, AttentionRun& run) {
  run.forward(ctx, p);
  run.backward(ctx, p);
  const int64_t rows = p.N() - first_query;
  for (const Buffer* out : {&run.o, &run.lse}) fill(out->tensor.rows(first_query, rows), -7);
  attention_forward(ctx, {.shape = p.shape,
                          .spans = p.spans,
                          .query_begin = first_query,
                          .q = run.q.tensor.rows(first_query, rows),
                          .k = run.k,
                          .v = run.v,
                          .o = run.o.tensor.rows(first_query, rows),
                          .lse = run.lse.tensor.rows(first_query, rows)});
}

std::vector<double> from_row(const Buffer& x, int64_t row) {
  return to_double(x.tensor.rows(row, x.tensor.shape[0] - row));
}

std::vector<double> gradient_of(const Buffer& x) {
  std::vector<double> values = to_double(x);
  for (double& value : values) value -= attention_gradient_before;
  return values;
}

void check_f32(const Oracle& oracle, const std::string& id, const GoldenCase& golden) {
  const AttentionShape& shape = golden.problem.shape;
  const int64_t H = shape.num_heads, K = shape.num_kv_heads, D = shape.head_dim;
  for (Isa isa : built_isas()) {
    TestContext context(isa, 2, 8 << 20);
    AttentionRun run(golden.problem, DType::f32);
    run_golden(context, golden.problem, golden.first_query, run);
    CHECK(max_difference(from_row(run.o, golden.first_query), by_token(oracle.values(id + "/o"), H, D)) < 1e-5);
    CHECK(max_difference(from_row(run.lse, golden.first_query), by_token(oracle.values(id + "/lse"), H, 1)) < 1e-5);
    // Where each query sees one key, dq and dk are exactly zero: no relative bound.
    const auto check_gradient = [](const std::vector<double>& x, const std::vector<double>& exact) {
      if (l2(exact) > 0) CHECK(relative_l2(x, exact) <= 5e-5);
      else CHECK(l2(x) <= 5e-7 * std::sqrt(static_cast<double>(x.size())));
    };
    check_gradient(from_row(run.dq, golden.first_query), by_token(oracle.values(id + "/dq"), H, D));
    check_gradient(gradient_of(run.dk), by_token(oracle.values(id + "/dk"), K, D));
    check_gradient(gradient_of(run.dv), by_token(oracle.values(id + "/dv"), K, D));
  }
}

// Inputs rounded to bf16, against the f64 reference on the rounded inputs.
void check_bf16(const GoldenCase& golden) {
  AttentionProblem p = golden.problem;
  for (auto* values : {&p.q, &p.k, &p.v, &p.do_}) {
    for (float& x : *values) x = static_cast<float>(bf16(x));
  }
  const auto exact = reference_attention<double>(p);
  for (Isa isa : built_isas()) {
    TestContext context(isa, 2, 8 << 20);
    AttentionRun run(p, DType::bf16);
    run_golden(context, p, golden.first_query, run);
    CHECK(max_difference(to_double(run.o), exact.o) < 2e-2);
    CHECK(max_difference(to_double(run.lse), exact.lse) < 2e-2);
    for (auto [x, y] : {std::pair{&run.dq, &exact.dq}, {&run.dk, &exact.dk}, {&run.dv, &exact.dv}}) {
      // Of the size of rounding o to bf16, also where the gradient itself cancels.
      CHECK(max_difference(to_double(*x), *y) <=
            2e-2 * std::max(1.0, max_difference(*y, std::vector<double>(y->size()))));
      if (l2(*y) > 0.1 * std::sqrt(static_cast<double>(y->size()))) CHECK(relative_l2(to_double(*x), *y) <= 2e-2);
    }
  }
}

// Attention here is causal: these fixtures let a query see later keys.
const std::vector<std::string> not_causal = {"a043", "a044", "a045", "a046", "a047", "a048", "a049", "a050"};

}  // namespace

TEST_CASE("attention: the generator of the oracle's inputs is reproduced") {
  const Oracle oracle("attention");
  CHECK(to_double(generated(1000, 8)) == oracle.values("generator_check/u_seed1000_first8"));
}

TEST_CASE("attention: every causal oracle case agrees, forward and backward, in f32 and bf16") {
  int cases = 0;
  for (const char* folder : {"attention", "attention_forest"}) {
    const Oracle oracle(folder);
    const Json file = oracle.json("cases.json");
    for (const Json& c : file["cases"]) {
      const std::string id = c["id"];
      CAPTURE(id);
      const bool causal = !c.contains("causal") || c["causal"].get<bool>();
      CHECK(causal == (std::find(not_causal.begin(), not_causal.end(), id) == not_causal.end()));
      if (!causal) continue;
      const GoldenCase golden(c);
      check_f32(oracle, id, golden);
      check_bf16(golden);
      ++cases;
    }
  }
  CHECK(cases >= 53 + 24);
}
