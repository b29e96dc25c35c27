// What holds by bytes: the result depends neither on the threads, nor on the tiling of the queries, nor on what cannot be seen.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "support/attention_problem.h"

using namespace sluice;
using namespace sluice::test;

namespace {

AttentionShape heads(int64_t H, int64_t K, int64_t D, int64_t window = 0, float softcap = 0) {
  return {.num_heads = H,
          .num_kv_heads = K,
          .head_dim = D,
          .scale = 1 / std::sqrt(static_cast<float>(D)),
          .window = window,
          .softcap = softcap};
}

const Spans forest({{-1, 300}, {0, 150}, {0, 200}, {-1, 90}, {3, 40}, {1, 70}, {2, 33}, {-1, 1}});
const Spans one = Spans::one(901);

struct Case {
  const char* what;
  AttentionShape shape;
  const Spans& spans;
};
const Case cases[] = {{"causal", heads(3, 1, 64), one},
                      {"window", heads(2, 2, 32, 200), one},
                      {"window, head_dim 34, softcap", heads(2, 1, 34, 77, 5.0F), one},
                      {"forest", heads(4, 2, 16), forest},
                      {"forest, window", heads(2, 1, 64, 120), forest}};

std::string all_bytes(const AttentionRun& run) {
  std::string bytes;
  for (const Buffer* b : {&run.o, &run.lse, &run.dq, &run.dk, &run.dv}) bytes += bytes_of(*b);
  return bytes;
}

std::string run_all(Context& ctx, const AttentionProblem& p, DType dtype, int64_t tile) {
  AttentionRun run(p, dtype);
  run.forward(ctx, p, tile);
  run.backward(ctx, p);
  return all_bytes(run);
}

// Rows of the tokens for which `keep(span)` holds.
template <class Keep>
std::string rows_of(const Tensor& t, const Spans& spans, Keep keep) {
  std::string bytes;
  for (int64_t s = 0; s < spans.size(); ++s) {
    if (keep(s)) bytes += bytes_of(t.rows(spans[s].begin, spans[s].length));
  }
  return bytes;
}

bool descends(const Spans& spans, int64_t span, int64_t from) {
  const auto& line = spans.ancestors(span);
  return std::find(line.begin(), line.end(), from) != line.end();
}

}  // namespace

TEST_CASE("attention: the bits depend neither on the number of threads nor on the tiling of the queries") {
  for (const Case& c : cases) {
    CAPTURE(c.what);
    const AttentionProblem p = attention_problem(c.shape, c.spans);
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (Isa isa : built_isas()) {
        CAPTURE(to_string(dtype));
        CAPTURE(static_cast<int>(isa));
        TestContext single(isa, 1, 8 << 20), two(isa, 2, 8 << 20), three(isa, 3, 8 << 20);
        const std::string bytes = run_all(single, p, dtype, 0);
        CHECK(run_all(two, p, dtype, 0) == bytes);
        CHECK(run_all(three, p, dtype, 0) == bytes);
        for (int64_t tile : {256, 512, 300, 131}) {
          CAPTURE(tile);
          CHECK(run_all(two, p, dtype, tile) == bytes);
        }
      }
    }
  }
}

TEST_CASE("FieldD16_attention: nothing moves, to the bit, when the tokens of another root or sibling change") {
  for (int64_t window : {0, 64, 250}) {
    const AttentionProblem p = attention_problem(heads(2, 1, 32, window), forest);
    for (DType dtype : {DType::bf16, DType::f32}) {
      for (Isa isa : built_isas()) {
        TestContext context(isa, 2, 8 << 20);
        AttentionRun before(p, dtype);
        before.forward(context, p);
        before.backward(context, p);
        for (int64_t changed = 0; changed < forest.size(); ++changed) {
          CAPTURE(window);
          CAPTURE(changed);
          AttentionProblem other = p;
          const AttentionProblem noise = attention_problem(p.shape, forest, 99);
          const int64_t begin = forest[changed].begin, end = forest[changed].end();
          for (auto [x, y] :
               {std::pair{&other.q, &noise.q}, {&other.k, &noise.k}, {&other.v, &noise.v}, {&other.do_, &noise.do_}}) {
            const int64_t width = static_cast<int64_t>(x->size()) / p.N();
            std::copy(y->begin() + begin * width, y->begin() + end * width, x->begin() + begin * width);
          }
          AttentionRun after(other, dtype);
          after.forward(context, other);
          after.backward(context, other);
          // A query reads its ancestors; the gradient of a key sums over the queries below it, which read all of theirs.
          const auto query_apart = [&](int64_t s) { return !descends(forest, s, changed); };
          const auto key_apart = [&](int64_t s) {
            for (int64_t d = 0; d < forest.size(); ++d) {
              if (descends(forest, d, s) && descends(forest, d, changed)) return false;
            }
            return true;
          };
          for (auto [x, y] : {std::pair{&before.o, &after.o}, {&before.lse, &after.lse}, {&before.dq, &after.dq}}) {
            CHECK(rows_of(*x, forest, query_apart) == rows_of(*y, forest, query_apart));
          }
          for (auto [x, y] : {std::pair{&before.dk, &after.dk}, {&before.dv, &after.dv}}) {
            CHECK(rows_of(*x, forest, key_apart) == rows_of(*y, forest, key_apart));
          }
          CHECK(bytes_of(before.o) != bytes_of(after.o));
          CHECK(bytes_of(before.dv) != bytes_of(after.dv));
        }
      }
    }
  }
}

TEST_CASE("FieldL15_attention: around the window's length the result is that of a dense mask") {
  constexpr int64_t W = 70, H = 2, D = 16;
  for (int64_t L : {W - 1, W, W + 1, 2 * W + 3, 5 * W}) {
    CAPTURE(L);
    const AttentionProblem p = attention_problem(heads(H, H, D, W), Spans::one(L));
    std::vector<double> exact(p.q.size());
    for (int64_t i = 0; i < L; ++i) {
      for (int64_t h = 0; h < H; ++h) {
        std::vector<double> weight(static_cast<size_t>(L));
        double sum = 0;
        for (int64_t j = 0; j < L; ++j) {
          double s = 0;
          for (int64_t d = 0; d < D; ++d)
            s += static_cast<double>(p.q[static_cast<size_t>((i * H + h) * D + d)]) *
                 p.k[static_cast<size_t>((j * H + h) * D + d)];
          sum += weight[static_cast<size_t>(j)] = j <= i && i - j < W ? std::exp(s * p.shape.scale) : 0;
        }
        for (int64_t j = 0; j < L; ++j) {
          for (int64_t d = 0; d < D; ++d)
            exact[static_cast<size_t>((i * H + h) * D + d)] +=
                weight[static_cast<size_t>(j)] / sum * p.v[static_cast<size_t>((j * H + h) * D + d)];
        }
      }
    }
    for (Isa isa : built_isas()) {
      TestContext context(isa, 2, 8 << 20);
      AttentionRun run(p, DType::f32);
      run.forward(context, p);
      CHECK(max_difference(to_double(run.o), exact) < 1e-5);
      AttentionProblem none = p, wide = p;
      none.shape.window = 0, wide.shape.window = L;
      CHECK(run_all(context, none, DType::bf16, 0) == run_all(context, wide, DType::bf16, 0));
    }
  }
}

TEST_CASE(
    "FieldM8_attention: scratch at a fixed window doubles at most when the length doubles, and so it does without a "
    "window") {
  for (int64_t window : {0, 512}) {
    int64_t forward[3], backward[3];
    for (int i = 0; i < 3; ++i) {
      const Spans spans = Spans::one(int64_t{8192} << i);
      const AttentionShape shape = heads(4, 2, 64, window);
      const int64_t N = spans.num_tokens(), wide = 4 * 64, narrow = 2 * 64;
      Arena arena = Arena::counting(test_device());
      ThreadPool pool(2);
      Context ctx{.arena = arena, .pool = pool, .device = test_device()};
      const auto peak = [&](auto call) {
        const int64_t before = arena.used();
        arena.reset_peak();
        call();
        CHECK(arena.used() == before);
        return arena.peak() - before;
      };
      const auto tensor = [&](DType dtype, int64_t width) { return arena.tensor(dtype, {N, width}); };
      const Tensor q = tensor(DType::bf16, wide), k = tensor(DType::bf16, narrow), lse = tensor(DType::f32, 4);
      const Tensor dq = tensor(DType::f32, wide), dk = tensor(DType::f32, narrow);
      forward[i] = peak([&] {
        attention_forward(ctx, {.shape = shape, .spans = spans, .q = q, .k = k, .v = k, .o = q, .lse = lse});
      });
      backward[i] = peak([&] {
        attention_backward(ctx, {.shape = shape,
                                 .spans = spans,
                                 .q = q,
                                 .k = k,
                                 .v = k,
                                 .o = q,
                                 .lse = lse,
                                 .do_ = q,
                                 .dq = dq,
                                 .dk = dk,
                                 .dv = dk});
      });
    }
    for (int i = 1; i < 3; ++i) {
      CHECK(forward[i] <= 2 * forward[i - 1]);
      CHECK(backward[i] <= 2 * backward[i - 1]);
    }
    CHECK(backward[2] < 32768 * 4 * 64);  // less than one byte for each element of q
  }
}

TEST_CASE("attention: the planned scratch is the used scratch, to the byte") {
  const AttentionProblem p = attention_problem(heads(4, 2, 16, 120), forest);
  AttentionRun run(p, DType::bf16);
  ThreadPool pool(2);
  Arena planner = Arena::counting(test_device());
  Context planning{.arena = planner, .pool = pool, .device = test_device()};
  run.forward(planning, p);
  run.backward(planning, p);
  Arena arena = test_arena(planner.peak());
  Context ctx{.arena = arena, .pool = pool, .device = test_device()};
  run.forward(ctx, p);
  run.backward(ctx, p);
  CHECK(arena.peak() == planner.peak());
}

TEST_SUITE("full") {
  TEST_CASE("FieldL18_attention_backward: 200 runs give the same bits while another thread keeps the cores busy") {
    const AttentionProblem p = attention_problem(heads(4, 2, 64, 0), Spans({{-1, 500}, {0, 300}, {0, 211}}));
    TestContext context(detect_isa(), 3, 16 << 20);
    std::atomic<bool> stop{false};
    std::thread noise([&] {
      ThreadPool pool(2);
      std::vector<double> sink(2);
      while (!stop)
        pool.parallel_for(2, [&](int64_t i, int) {
          for (int n = 0; n < 300000; ++n) sink[static_cast<size_t>(i)] += n;
        });
    });
    AttentionRun run(p, DType::bf16);
    run.forward(context, p);
    std::string first;
    for (int round = 0; round < 200; ++round) {
      for (const Buffer* sum : {&run.dk, &run.dv}) fill(*sum, attention_gradient_before);
      fill(run.dq, std::numeric_limits<float>::quiet_NaN());
      run.backward(context, p);
      const std::string bytes = all_bytes(run);
      if (round == 0) first = bytes;
      CHECK(bytes == first);
    }
    stop = true;
    noise.join();
  }
}
