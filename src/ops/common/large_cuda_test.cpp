// Tensors just under and just over 2^31 elements, in every role, by value: the last rows of a large problem are compared with
// a small one over the same memory.
#include <array>
#include <string>
#include <vector>

#include "core/device.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/common/copy.h"
#include "ops/linear/linear.h"
#include "ops/rmsnorm/rmsnorm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr int64_t width = 16384, rest = 1024;

struct Large {
  Arena data, scratch;
  ThreadPool pool{2};
  Context ctx;
  uint64_t seed = 1;
  explicit Large(int64_t gib)
      : data(Arena::allocate(test_device(), gib << 30)),
        scratch(Arena::allocate(test_device(), int64_t{4} << 30)),
        ctx{.arena = scratch, .pool = pool, .device = test_device()} {}

  Tensor random(DType dtype, Shape shape, float scale = 1) {
    Tensor t = data.tensor(dtype, shape);
    device_random(ctx.device, t.data, dtype, t.numel(), seed++, scale);
    return t;
  }
  std::string bytes(const Tensor& t) {
    std::string host(static_cast<size_t>(t.size_bytes()), '\0');
    copy_to_host(ctx, {.tensor = t, .host = host.data()});
    return host;
  }
  std::vector<double> floats(const Tensor& t) {
    std::vector<float> host(static_cast<size_t>(t.numel()));
    copy_to_host(ctx, {.tensor = t, .host = host.data()});
    return {host.begin(), host.end()};
  }
};

bool has_room(int64_t gib) {
  if (!on_cuda()) return false;
  if (memory_of(test_device()).free_bytes > (gib + 4) << 30) return true;
  MESSAGE("not run: the device has less than ", gib + 4, " GiB free");
  return false;
}

Tensor last(const Tensor& t, int64_t count) { return t.rows(t.shape[0] - count, count); }

// Times width, just under and over 2^31; the small problem begins where every kernel cuts its blocks of keys (64, 80, 128).
constexpr int64_t lengths[] = {2 * rest + 640 * 201, 2 * rest + 640 * 202};

}  // namespace

TEST_CASE("large offsets: attention over just under and over 2^31 elements of q, k, v, o and their gradients") {
  if (!has_room(56)) return;
  for (int64_t N : lengths)
    for (int64_t D : {128, 256, 512}) {
      CAPTURE(N);
      CAPTURE(D);
      Large l(56);
      const AttentionShape shape{
          .num_heads = width / D, .num_kv_heads = width / D, .head_dim = D, .scale = 0.05F, .window = 256};
      const Spans all = Spans::one(N), few = Spans::one(2 * rest);
      Tensor q = l.random(DType::bf16, {N, width}), k = l.random(DType::bf16, {N, width}),
             v = l.random(DType::bf16, {N, width}), d = l.random(DType::bf16, {N, width});
      const auto run = [&](const Spans& spans, Tensor q, Tensor k, Tensor v, Tensor d, Tensor o, Tensor lse, Tensor dq,
                           Tensor dk, Tensor dv) {
        attention_forward(l.ctx, {.shape = shape, .spans = spans, .q = q, .k = k, .v = v, .o = o, .lse = lse});
        zero(l.ctx, {.tensor = dk});
        zero(l.ctx, {.tensor = dv});
        attention_backward(l.ctx, {.shape = shape,
                                   .spans = spans,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .o = o,
                                   .lse = lse,
                                   .do_ = d,
                                   .dq = dq,
                                   .dk = dk,
                                   .dv = dv});
      };
      const auto outputs = [&](int64_t rows) {
        return std::array{l.data.tensor(DType::bf16, {rows, width}), l.data.tensor(DType::f32, {rows, width / D}),
                          l.data.tensor(DType::f32, {rows, width}), l.data.tensor(DType::f32, {rows, width}),
                          l.data.tensor(DType::f32, {rows, width})};
      };
      const auto large = outputs(N), small = outputs(2 * rest);
      run(all, q, k, v, d, large[0], large[1], large[2], large[3], large[4]);
      run(few, last(q, 2 * rest), last(k, 2 * rest), last(v, 2 * rest), last(d, 2 * rest), small[0], small[1], small[2],
          small[3], small[4]);
      CHECK(l.bytes(last(large[0], rest)) == l.bytes(last(small[0], rest)));
      CHECK(l.bytes(last(large[1], rest)) == l.bytes(last(small[1], rest)));
      for (size_t i : {2, 3, 4}) {  // sums over blocks may be cut elsewhere
        const auto exact = l.floats(last(small[i], rest));
        CHECK(l2(exact) > 0);
        CHECK(relative_l2(l.floats(last(large[i], rest)), exact) < 1e-5);
      }
    }
}

TEST_CASE("large offsets: linear, norms, RoPE, activations and rows over just under and over 2^31 elements") {
  if (!has_room(56)) return;
  for (int64_t N : lengths) {
    CAPTURE(N);
    Large l(56);
    Tensor x = l.random(DType::bf16, {N, width}), y = l.data.tensor(DType::bf16, {N, width}),
           dx = l.data.tensor(DType::f32, {N, width}), small = l.data.tensor(DType::bf16, {rest, width}),
           small_f32 = l.data.tensor(DType::f32, {rest, width});
    const auto same = [&](const Tensor& large, const Tensor& part) {
      return l.bytes(last(large, rest)) == l.bytes(part);
    };
    Tensor w = l.random(DType::bf16, {width, width}, 0.02F), a = l.random(DType::f32, {16, width}, 0.02F),
           b = l.random(DType::f32, {width, 16}), da = l.data.tensor(DType::f32, {16, width}),
           db = l.data.tensor(DType::f32, {width, 16});
    for (Tensor t : {da, db}) zero(l.ctx, {.tensor = t});
    const Weight weight{
        .format = WeightFormat::bf16, .rows = width, .cols = width, .data = static_cast<const std::byte*>(w.data)};
    const auto forward = [&](Tensor from, Tensor to) {
      linear_forward(l.ctx, {.weight = weight, .lora_a = a, .lora_b = b, .x = from, .y = to});
    };
    const auto backward = [&](Tensor from, Tensor to) {
      linear_backward(
          l.ctx,
          {.weight = weight, .lora_a = a, .lora_b = b, .x = from, .dy = from, .dx = to, .dlora_a = da, .dlora_b = db});
    };
    forward(x, y), forward(last(x, rest), small);
    CHECK(same(y, small));
    backward(x, dx), backward(last(x, rest), small_f32);
    CHECK(same(dx, small_f32));

    Tensor norm = l.random(DType::f32, {width});
    rmsnorm_forward(l.ctx, {.x = x, .weight = norm, .y = y});
    rmsnorm_forward(l.ctx, {.x = last(x, rest), .weight = norm, .y = small});
    CHECK(same(y, small));
    rmsnorm_backward(l.ctx, {.x = x, .weight = norm, .dy = dx, .dx = dx});
    rmsnorm_backward(l.ctx, {.x = last(x, rest), .weight = norm, .dy = small_f32, .dx = small_f32});
    CHECK(same(dx, small_f32));
    gated_forward(l.ctx, {.a = x, .b = y, .y = y});
    gated_forward(l.ctx, {.a = last(x, rest), .b = small, .y = small});
    CHECK(same(y, small));
    Tensor table = l.random(DType::f32, {N, 128});
    rope(l.ctx, {.x = y, .table = table, .y = y, .head_dim = 128});
    rope(l.ctx, {.x = small, .table = last(table, rest), .y = small, .head_dim = 128});
    CHECK(same(y, small));
    scale_into(l.ctx, {.x = y, .y = dx, .scale = 0.5F});
    scale_into(l.ctx, {.x = small, .y = small_f32, .scale = 0.5F});
    CHECK(same(dx, small_f32));
  }
}
