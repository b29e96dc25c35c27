// attention_backward on CUDA where it runs on tensor cores: bf16, head dimensions 40 to 512. o and lse come from the reference, so that
// nothing here depends on the forward pass.
#include <doctest/doctest.h>

#include "core/device.h"
#include "support/attention_problem.h"

using namespace sluice;
using namespace sluice::test;

namespace {

AttentionShape heads(int64_t H, int64_t K, int64_t D, float scale, int64_t window = 0, float softcap = 0) {
  return {.num_heads = H, .num_kv_heads = K, .head_dim = D, .scale = scale, .window = window, .softcap = softcap};
}

void give(const Tensor& to, const std::vector<float>& values) {
  REQUIRE(to.numel() == static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (to.dtype == DType::bf16) static_cast<bf16*>(to.data)[i] = bf16(values[i]);
    else static_cast<float*>(to.data)[i] = values[i];
  }
}

struct Case {
  const char* what;
  AttentionShape shape;
  std::vector<Spans::Piece> spans;
};

const Case cases[] = {
    {"D 64, odd tail, GQA", heads(6, 2, 64, 0.125F), {{-1, 333}}},
    {"D 64, whole blocks", heads(2, 2, 64, 0.125F), {{-1, 512}}},
    {"D 64, window", heads(2, 1, 64, 0.125F, 70), {{-1, 601}}},
    {"D 64, packing", heads(2, 1, 64, 0.125F), {{-1, 100}, {-1, 7}, {-1, 128}, {-1, 1}, {-1, 290}}},
    {"D 40, GQA", heads(4, 2, 40, 0.16F), {{-1, 300}}},
    {"D 72, packing, window", heads(2, 1, 72, 0.12F, 60), {{-1, 100}, {-1, 7}, {-1, 128}, {-1, 1}, {-1, 90}}},
    {"D 80, odd tail, GQA", heads(6, 2, 80, 0.112F), {{-1, 333}}},
    {"D 80, window, softcap", heads(2, 2, 80, 0.2F, 70, 3.0F), {{-1, 420}}},
    {"D 96, GQA 4", heads(4, 1, 96, 0.102F), {{-1, 391}}},
    {"D 96, deep tree, window",
     heads(2, 1, 96, 0.102F, 75),
     {{-1, 50}, {0, 60}, {0, 5}, {1, 70}, {3, 1}, {2, 90}, {4, 220}}},
    {"D 128, 127 tokens", heads(2, 1, 128, 0.0884F), {{-1, 127}}},
    {"D 128, 129 tokens", heads(2, 1, 128, 0.0884F), {{-1, 129}}},
    {"D 128, GQA 4", heads(8, 2, 128, 0.0884F), {{-1, 391}}},
    {"D 128, GQA 8, window", heads(8, 1, 128, 0.0884F, 200), {{-1, 450}}},
    {"D 128, prompt with answers", heads(4, 2, 128, 0.0884F), {{-1, 200}, {0, 70}, {0, 130}, {0, 3}}},
    {"D 128, deep tree, window",
     heads(2, 1, 128, 0.0884F, 75),
     {{-1, 50}, {0, 60}, {0, 5}, {1, 70}, {3, 1}, {2, 90}, {4, 220}}},
    {"D 128, siblings far behind their trunk",
     heads(4, 2, 128, 0.0884F),
     {{-1, 200}, {0, 330}, {0, 130}, {0, 3}, {1, 200}, {0, 170}}},
    {"D 64, siblings far behind their trunk",
     heads(2, 1, 64, 0.125F),
     {{-1, 200}, {0, 330}, {0, 130}, {0, 3}, {1, 200}, {0, 170}}},
    {"D 128, softcap", heads(2, 1, 128, 0.2F, 0, 3.0F), {{-1, 300}}},
    {"D 64, softcap, window", heads(2, 2, 64, 0.2F, 150, 3.0F), {{-1, 420}}},
    {"D 192", heads(2, 1, 192, 0.07F), {{-1, 260}}},
    {"D 256", heads(2, 1, 256, 0.0625F), {{-1, 385}}},
    {"D 256, window, GQA", heads(4, 2, 256, 0.0625F, 100), {{-1, 500}}},
    {"D 256, window of one block", heads(2, 1, 256, 0.0625F, 128), {{-1, 700}}},
    {"D 256, siblings in a window", heads(2, 1, 256, 0.0625F, 90), {{-1, 200}, {0, 70}, {0, 130}, {0, 3}, {1, 80}}},
    {"D 256, groups of three", heads(6, 2, 256, 0.0625F), {{-1, 290}}},
    {"D 512, groups of three, softcap", heads(3, 1, 512, 0.0442F, 0, 2.0F), {{-1, 260}}},
    {"D 512, GQA", heads(4, 1, 512, 0.0442F), {{-1, 300}}},
    {"D 512, scale 1", heads(2, 1, 512, 1.0F), {{-1, 257}}},
    {"D 512, forest", heads(2, 1, 512, 0.0442F), {{-1, 150}, {-1, 20}, {0, 100}, {1, 30}, {2, 90}}},
};

// Writes o and lse of the reference into the run.
AttentionValues<double> prepare(AttentionRun& run, const AttentionProblem& p, AttentionValues<float>& plain) {
  plain = reference_attention<float>(p, RoundToBf16{});
  give(run.o, plain.o), give(run.lse, plain.lse);
  return reference_attention<double>(p);
}

void check_backward(const AttentionProblem& p, Context& ctx) {
  AttentionRun run(p, DType::bf16);
  AttentionValues<float> plain;
  const auto exact = prepare(run, p, plain);
  run.backward(ctx, p);
  const std::string first = bytes_of(run.dq) + bytes_of(run.dk) + bytes_of(run.dv);
  check_close(to_double(run.dq), exact.dq, to_double(plain.dq), DType::f32);
  check_close(to_double(run.dk), exact.dk, to_double(plain.dk), DType::f32);
  check_close(to_double(run.dv), exact.dv, to_double(plain.dv), DType::f32);

  fill(run.dq, std::numeric_limits<float>::quiet_NaN());
  for (const Buffer* sum : {&run.dk, &run.dv}) fill(*sum, attention_gradient_before);
  run.backward(ctx, p);
  CHECK(bytes_of(run.dq) + bytes_of(run.dk) + bytes_of(run.dv) == first);
}

}  // namespace

TEST_CASE(
    "attention_backward on CUDA: bf16 at head dimensions 64 to 512 is as close to f64 as plain loops, twice the same") {
  if (!on_cuda()) return;
  TestContext context(detect_isa());
  for (const Case& c : cases) {
    CAPTURE(c.what);
    check_backward(attention_problem(c.shape, Spans(c.spans)), context);
  }
}

TEST_CASE("attention_backward on CUDA: any number of tokens") {
  if (!on_cuda()) return;
  TestContext context(detect_isa());
  for (int64_t N : {2, 17, 63, 64, 65, 128, 191, 255, 256, 257, 449, 511, 700}) {
    CAPTURE(N);
    check_backward(attention_problem(heads(2, 1, 64, 0.125F, N % 2 == 0 ? 0 : N / 2 + 1), Spans::one(N)), context);
  }
  for (int64_t D : {80, 128, 256, 512}) {
    for (int64_t N : {17, 257, 449}) {
      CAPTURE(D);
      CAPTURE(N);
      check_backward(attention_problem(heads(2, 1, D, 0.06F, N == 257 ? 100 : 0), Spans::one(N)), context);
    }
  }
}

// dP and delta are the same sum in two orders, so what should be zero is their rounding, and plain loops happen to have none.
TEST_CASE(
    "attention_backward on CUDA: a token that sees itself only has a gradient of v, and of q and k but rounding") {
  if (!on_cuda()) return;
  TestContext context(detect_isa());
  for (int64_t D : {64, 80, 128, 256, 512}) {
    const AttentionProblem p = attention_problem(heads(2, 2, D, 0.1F), Spans({{-1, 1}, {-1, 1}}));
    AttentionRun run(p, DType::bf16);
    AttentionValues<float> plain;
    const auto exact = prepare(run, p, plain);
    run.backward(context, p);
    check_close(to_double(run.dv), exact.dv, to_double(plain.dv), DType::f32);
    CHECK(max_difference(to_double(run.dq), exact.dq) < 1e-5);
    CHECK(max_difference(to_double(run.dk), exact.dk) < 1e-5);
  }
}

// At head dimensions 64 and 128 blocks of keys take turns to add to dq, and parts of a group of heads to add to dk and dv.
TEST_CASE("attention_backward on CUDA: however the blocks are scheduled, the bits are the same") {
  if (!on_cuda()) return;
  const Case problems[] = {
      {"causal, heads in parts", heads(16, 2, 128, 0.0884F), {{-1, 3000}}},
      {"a trunk and its branches", heads(8, 2, 128, 0.0884F), {{-1, 1500}, {0, 900}, {0, 700}, {1, 300}, {-1, 200}}},
      {"D 64, window", heads(16, 8, 64, 0.125F, 300), {{-1, 4001}}},
  };
  for (const Case& c : problems) {
    CAPTURE(c.what);
    const AttentionProblem p = attention_problem(c.shape, Spans(c.spans));
    AttentionRun run(p, DType::bf16);
    give(run.o, random_values(p.q.size(), 7));
    give(run.lse, std::vector<float>(static_cast<size_t>(p.N() * c.shape.num_heads), 5.0F));
    TestContext context(detect_isa());
    std::string first;
    for (int round = 0; round < 20; ++round) {
      fill(run.dq, std::numeric_limits<float>::quiet_NaN());
      for (const Buffer* sum : {&run.dk, &run.dv}) fill(*sum, attention_gradient_before);
      run.backward(context, p);
      const std::string bytes = bytes_of(run.dq) + bytes_of(run.dk) + bytes_of(run.dv);
      if (round == 0) first = bytes;
      CHECK(bytes == first);
    }
  }
}

// More tiles than scratch holds: several rounds. o and lse may be anything; a few rows are compared with plain loops in double.
TEST_CASE("attention_backward on CUDA: long sequences, in rounds") {
  if (!on_cuda()) return;
  struct Long {
    AttentionShape shape;
    std::vector<Spans::Piece> spans;
  };
  const Long problems[] = {
      {heads(32, 8, 128, 0.0884F), {{-1, 2600}}},
      {heads(32, 4, 64, 0.125F), {{-1, 1400}, {0, 500}, {0, 600}, {-1, 300}}},
      {heads(32, 8, 96, 0.102F, 700), {{-1, 2600}}},
      {heads(32, 16, 256, 0.0625F, 300), {{-1, 2501}}},
      {heads(32, 4, 256, 0.0625F), {{-1, 2100}}},
      {heads(32, 8, 512, 0.0442F), {{-1, 2060}}},
  };
  for (const Long& problem : problems) {
    const AttentionProblem p = attention_problem(problem.shape, Spans(problem.spans));
    const int64_t N = p.N(), H = p.shape.num_heads, K = p.shape.num_kv_heads, D = p.shape.head_dim, G = H / K;
    CAPTURE(D);
    AttentionRun run(p, DType::bf16);
    const auto o = random_values(p.q.size(), 7);
    std::vector<float> lse = random_values(static_cast<size_t>(N * H), 8);
    for (float& x : lse) x = 4 + std::abs(x);
    give(run.o, o), give(run.lse, lse);
    TestContext context(detect_isa());
    run.backward(context, p);

    const auto dot = [&](const std::vector<float>& a, int64_t at, const std::vector<float>& b, int64_t bt) {
      double sum = 0;
      for (int64_t d = 0; d < D; ++d)
        sum += static_cast<double>(a[static_cast<size_t>(at + d)]) * b[static_cast<size_t>(bt + d)];
      return sum;
    };
    // P and dS of one pair.
    const auto weights = [&](int64_t i, int64_t j, int64_t h) {
      const int64_t row = (i * H + h) * D, col = (j * K + h / G) * D;
      const double w =
          std::exp(p.shape.scale * dot(p.q, row, p.k, col) - static_cast<double>(lse[static_cast<size_t>(i * H + h)]));
      return std::pair{w, w * (dot(p.do_, row, p.v, col) - dot(p.do_, row, o, row))};
    };
    const auto near = [&](const float* result, const std::vector<double>& exact) {
      double error = 0, norm = 0;
      for (int64_t d = 0; d < D; ++d) {
        const double e = exact[static_cast<size_t>(d)];
        error += (result[d] - e) * (result[d] - e), norm += e * e;
      }
      CHECK(std::sqrt(error) <= 0x1p-7 * std::sqrt(norm));
    };
    for (int64_t token : {int64_t{0}, int64_t{130}, N / 2 + 3, N - 129, N - 1}) {
      CAPTURE(token);
      for (int64_t h : {int64_t{0}, H / 2 + 1, H - 1}) {
        std::vector<double> dq(static_cast<size_t>(D));
        for (int64_t j = 0; j <= token; ++j) {
          if (!ref::visible(p.spans, p.shape.window, token, j)) continue;
          const double ds = weights(token, j, h).second * p.shape.scale;
          for (int64_t d = 0; d < D; ++d)
            dq[static_cast<size_t>(d)] += ds * p.k[static_cast<size_t>((j * K + h / G) * D + d)];
        }
        near(run.dq.tensor.as<float>() + (token * H + h) * D, dq);
      }
      const int64_t kv = K - 1;
      std::vector<double> dk(static_cast<size_t>(D), attention_gradient_before), dv = dk;
      for (int64_t i = token; i < N; ++i) {
        if (!ref::visible(p.spans, p.shape.window, i, token)) continue;
        for (int64_t h = kv * G; h < (kv + 1) * G; ++h) {
          const auto [weight, ds] = weights(i, token, h);
          for (int64_t d = 0; d < D; ++d) {
            dk[static_cast<size_t>(d)] += ds * p.shape.scale * p.q[static_cast<size_t>((i * H + h) * D + d)];
            dv[static_cast<size_t>(d)] += weight * p.do_[static_cast<size_t>((i * H + h) * D + d)];
          }
        }
      }
      near(run.dk.tensor.as<float>() + (token * K + kv) * D, dk);
      near(run.dv.tensor.as<float>() + (token * K + kv) * D, dv);
    }
  }
}
