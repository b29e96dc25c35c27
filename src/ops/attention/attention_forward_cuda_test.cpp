// attention_forward on CUDA where it runs on tensor cores: bf16, head dimensions 64 to 512. SLUICE_CUDA_PATH=portable tests the portable kernels
// on Hopper.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "support/attention_problem.h"

using namespace sluice;
using namespace sluice::test;

namespace {

AttentionShape heads(int64_t H, int64_t K, int64_t D, int64_t window = 0, float softcap = 0, float scale = 0) {
  return {.num_heads = H,
          .num_kv_heads = K,
          .head_dim = D,
          .scale = scale > 0 ? scale : 1 / std::sqrt(static_cast<float>(D)),
          .window = window,
          .softcap = softcap};
}

using Pieces = std::vector<Spans::Piece>;
const Pieces packed = {{-1, 100}, {-1, 7}, {-1, 128}, {-1, 1}, {-1, 290}};
const Pieces answers = {{-1, 200}, {0, 70}, {0, 130}, {0, 3}};
const Pieces tree = {{-1, 50}, {0, 60}, {0, 5}, {1, 70}, {3, 1}, {2, 90}, {4, 220}, {-1, 33}, {7, 64}};

struct Case {
  std::string what;
  AttentionShape shape;
  Pieces spans;
};

std::vector<Case> cases_of(int64_t D) {
  return {{"one token", heads(2, 1, D), {{-1, 1}}},
          {"odd tail", heads(3, 3, D), {{-1, 333}}},
          {"whole blocks", heads(2, 1, D), {{-1, 512}}},
          {"group of 3", heads(6, 2, D), {{-1, 261}}},
          {"group of 4", heads(4, 1, D), {{-1, 391}}},
          {"group of 8", heads(8, 1, D), {{-1, 300}}},
          {"window of 1", heads(2, 1, D, 1), {{-1, 200}}},
          {"window", heads(2, 1, D, 70), {{-1, 601}}},
          {"window of a block", heads(4, 2, D, 128), {{-1, 400}}},
          {"packed", heads(2, 1, D), packed},
          {"packed, window", heads(4, 1, D, 33), packed},
          {"prompt with answers", heads(4, 2, D), answers},
          {"prompt with answers, window", heads(2, 2, D, 96), answers},
          {"deep tree", heads(2, 1, D), tree},
          {"deep tree, window, softcap", heads(4, 1, D, 75, 4.0F), tree},
          {"softcap", heads(2, 1, D, 0, 3.0F, 0.25F), {{-1, 300}}},
          {"large scores", heads(2, 1, D, 0, 0, 1.0F), {{-1, 257}}}};
}

struct Outputs {
  std::vector<double> o, lse;
};

// The rows [begin, begin + count) on the reference.
template <class T, class Round>
Outputs reference_rows(const AttentionProblem& p, int64_t begin, int64_t count, Round round) {
  const auto cast = [](const std::vector<float>& x) { return std::vector<T>(x.begin(), x.end()); };
  const auto q = cast({p.q.begin() + begin * p.wide(), p.q.begin() + (begin + count) * p.wide()});
  const auto k = cast(p.k), v = cast(p.v);
  std::vector<T> o(q.size()), lse(static_cast<size_t>(count * p.shape.num_heads));
  ref::attention_forward(p.shape, p.spans, begin, count, q.data(), k.data(), v.data(), o.data(), lse.data(), round);
  for (T& x : o) x = round(x);
  return {{o.begin(), o.end()}, {lse.begin(), lse.end()}};
}

// `rows`: first rows of the stretches of `count` that are compared.
void check_rows(const AttentionProblem& p, const AttentionRun& run, const std::vector<int64_t>& rows, int64_t count) {
  Outputs exact, plain, result;
  const auto append = [](Outputs& to, const Outputs& from) {
    to.o.insert(to.o.end(), from.o.begin(), from.o.end());
    to.lse.insert(to.lse.end(), from.lse.begin(), from.lse.end());
  };
  for (int64_t row : rows) {
    append(exact, reference_rows<double>(p, row, count, ref::Exact{}));
    append(plain, reference_rows<float>(p, row, count, RoundToBf16{}));
    append(result, {to_double(run.o.tensor.rows(row, count)), to_double(run.lse.tensor.rows(row, count))});
  }
  check_close(result.o, exact.o, plain.o, DType::bf16);
  check_close(result.lse, exact.lse, plain.lse, DType::f32);
}

std::string forward_bytes(Context& ctx, const AttentionProblem& p, int64_t tile) {
  AttentionRun run(p, DType::bf16);
  run.forward(ctx, p, tile);
  return bytes_of(run.o) + bytes_of(run.lse);
}

constexpr int64_t dims[] = {64, 80, 96, 128, 256, 512};

}  // namespace

TEST_CASE("attention_forward, CUDA: as close to f64 as plain loops with bf16 products") {
  if (!on_cuda()) return;
  TestContext context(Isa::avx2);
  for (int64_t D : dims) {
    for (const Case& c : cases_of(D)) {
      CAPTURE(D);
      CAPTURE(c.what);
      const AttentionProblem p = attention_problem(c.shape, Spans(c.spans));
      AttentionRun run(p, DType::bf16);
      run.forward(context, p);
      check_rows(p, run, {0}, p.N());
    }
  }
}

TEST_CASE("attention_forward, CUDA: every length around the blocks' edges") {
  if (!on_cuda()) return;
  TestContext context(Isa::avx2);
  for (int64_t D : dims) {
    for (int64_t N : {2,   15,  16,  17,  31,  33,  63,  64,  65,  79,  80,  81,  127,
                      128, 129, 159, 160, 161, 191, 193, 255, 257, 319, 321, 383, 385}) {
      CAPTURE(D);
      CAPTURE(N);
      const AttentionProblem p = attention_problem(heads(2, 1, D), Spans::one(N), static_cast<uint32_t>(N));
      AttentionRun run(p, DType::bf16);
      run.forward(context, p);
      const int64_t count = std::min<int64_t>(N, 40);
      check_rows(p, run, {N - count}, count);
    }
  }
}

TEST_CASE("attention_forward, CUDA: the bits do not depend on the tiling of the queries, nor on the run") {
  if (!on_cuda()) return;
  TestContext context(Isa::avx2);
  for (int64_t D : dims) {
    const Case cases[] = {{"causal", heads(4, 1, D), {{-1, 701}}},
                          {"pairs", heads(4, 2, D), {{-1, 450}}},
                          {"window", heads(2, 1, D, 200), {{-1, 640}}},
                          {"short window, softcap", heads(3, 1, D, 50, 5.0F), {{-1, 500}}},
                          {"forest", heads(2, 1, D), tree},
                          {"forest, window", heads(4, 1, D, 120), tree},
                          {"packed", heads(8, 1, D), packed}};
    for (const Case& c : cases) {
      CAPTURE(D);
      CAPTURE(c.what);
      const AttentionProblem p = attention_problem(c.shape, Spans(c.spans));
      const std::string bytes = forward_bytes(context, p, 0);
      for (int64_t tile : {0, 256, 300, 131, 64, 37}) {
        CAPTURE(tile);
        CHECK(forward_bytes(context, p, tile) == bytes);
      }
    }
  }
}

TEST_CASE("attention_forward, CUDA: what lies behind the last visible key is not read into any row") {
  if (!on_cuda()) return;
  TestContext context(Isa::avx2);
  for (int64_t D : dims) {
    for (const Pieces& pieces : {Pieces{{-1, 400}}, tree}) {
      CAPTURE(D);
      const AttentionProblem p = attention_problem(heads(2, 1, D), Spans(pieces));
      const int64_t rows = 217;
      AttentionRun run(p, DType::bf16), other(p, DType::bf16);
      for (const Buffer* x : {&other.k, &other.v})
        fill(x->tensor.rows(rows, p.N() - rows), std::numeric_limits<float>::quiet_NaN());
      for (AttentionRun* r : {&run, &other}) {
        attention_forward(context, {.shape = p.shape,
                                    .spans = p.spans,
                                    .query_begin = 0,
                                    .q = r->q.tensor.rows(0, rows),
                                    .k = r->k,
                                    .v = r->v,
                                    .o = r->o.tensor.rows(0, rows),
                                    .lse = r->lse.tensor.rows(0, rows)});
      }
      CHECK(bytes_of(run.o) == bytes_of(other.o));
      CHECK(bytes_of(run.lse) == bytes_of(other.lse));
      check_rows(p, run, {0}, rows);
      const auto rest = to_double(run.o.tensor.rows(rows, p.N() - rows));  // not written
      CHECK(std::all_of(rest.begin(), rest.end(), [](double x) { return std::isnan(x); }));
    }
  }
}

TEST_CASE("attention_forward, CUDA: more tiles than the device takes at once") {
  if (!on_cuda()) return;
  TestContext context(Isa::avx2);
  for (int64_t D : dims) {
    for (int64_t window : {0, 300}) {
      for (const Pieces& pieces : {Pieces{{-1, 2777}}, Pieces{{-1, 900}, {0, 700}, {0, 611}, {-1, 500}}}) {
        CAPTURE(D);
        CAPTURE(window);
        const AttentionProblem p = attention_problem(heads(16, 2, D, window), Spans(pieces));
        AttentionRun run(p, DType::bf16);
        run.forward(context, p);
        check_rows(p, run, {0, 130, 899, 1205, 1601, 2210, p.N() - 3}, 3);
        AttentionRun again(p, DType::bf16);
        for (int round = 0; round < 5; ++round) {
          again.forward(context, p);
          CHECK(bytes_of(run.o) == bytes_of(again.o));
          CHECK(bytes_of(run.lse) == bytes_of(again.lse));
        }
      }
    }
  }
}
