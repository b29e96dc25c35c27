#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "core/device.h"
#include "ops/linear/linear.h"
#include "ops/rows/rows.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

// x = 2 x, `times` times over.
void double_it(Context& ctx, Tensor x, int times) {
  for (int i = 0; i < times; ++i) scale_into(ctx, {.x = x, .y = x, .scale = 2});
}

Tensor ones(Arena& arena, int64_t count) {
  Tensor t = arena.tensor(DType::f32, {1, count});
  std::fill_n(t.as<float>(), count, 1.0F);
  return t;
}

bool all_are(const Tensor& t, float value) {
  return std::all_of(t.as<float>(), t.as<float>() + t.numel(), [=](float x) { return x == value; });
}

}  // namespace

TEST_CASE("graph on CUDA: other tensors, sizes and numbers of ops give what they give one by one") {
  if (!on_cuda()) return;
  TestContext test(Isa::avx2);
  Context& ctx = test;
  for (int round = 0; round < 3; ++round) {
    for (const int times : {1, 3, 8}) {
      for (const int64_t count : {5, 1000, 100'000}) {
        CAPTURE(times);
        CAPTURE(count);
        ArenaScope scope(ctx.arena);
        const Tensor x = ones(ctx.arena, count);
        GraphCapture graph(ctx, 1);
        double_it(ctx, x, times);
        CHECK(all_are(x, 1));  // nothing has run
        graph.launch();
        CHECK(all_are(x, static_cast<float>(1 << times)));
      }
    }
  }
}

TEST_CASE("graph on CUDA: what is not launched does not run, and the stream goes on") {
  if (!on_cuda()) return;
  TestContext test(Isa::avx2);
  Context& ctx = test;
  ArenaScope scope(ctx.arena);
  const Tensor x = ones(ctx.arena, 100);
  CHECK_THROWS_AS(
      [&] {
        const GraphCapture graph(ctx, 1);
        double_it(ctx, x, 2);
        throw Error(ErrorCode::device, "a kernel was refused");
      }(),
      Error);
  CHECK(all_are(x, 1));
  double_it(ctx, x, 1);
  CHECK(all_are(x, 2));
}

TEST_CASE("graph on CUDA: more kinds of graphs than are held") {
  if (!on_cuda()) return;
  TestContext test(Isa::avx2);
  Context& ctx = test;
  for (int round = 0; round < 2; ++round) {
    for (int times = 1; times <= 40; ++times) {
      ArenaScope scope(ctx.arena);
      const Tensor x = ones(ctx.arena, 10);
      GraphCapture graph(ctx, 1);
      double_it(ctx, x, times);
      graph.launch();
      CHECK(all_are(x, static_cast<float>(int64_t{1} << times)));
    }
  }
}

// cudaGraphExecUpdate takes kernels in other clusters without a word and launches the old ones.
TEST_CASE("graph on CUDA: kernels whose clusters depend on the rows are not mixed up") {
  if (!on_cuda()) return;
  TestContext test(Isa::avx2);
  Context& ctx = test;
  constexpr int64_t in = 256, out = 512;
  const Buffer w(DType::bf16, {out, in}, random_values(out * in, 1, 0.1F));
  const Weight weight{
      .format = WeightFormat::bf16, .rows = out, .cols = in, .data = static_cast<const std::byte*>(w.tensor.data)};
  for (int round = 0; round < 4; ++round) {
    for (const int64_t rows : {100, 200, 600, 100}) {
      CAPTURE(rows);
      const Buffer x(DType::bf16, {rows, in}, random_values(static_cast<size_t>(rows * in), 2)),
          one_by_one(DType::bf16, {rows, out}), together(DType::bf16, {rows, out});
      linear_forward(ctx, {.weight = weight, .x = x.tensor, .y = one_by_one.tensor});
      GraphCapture graph(ctx, rows);
      linear_forward(ctx, {.weight = weight, .x = x.tensor, .y = together.tensor});
      graph.launch();
      CHECK(std::memcmp(one_by_one.tensor.data, together.tensor.data,
                        static_cast<size_t>(together.tensor.size_bytes())) == 0);
    }
  }
}
