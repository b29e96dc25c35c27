// Widths that choose each layout of the CUDA kernels, and addresses that are not aligned.
#include "ops/rmsnorm/rmsnorm.h"

#include <doctest/doctest.h>

#include <cstring>

#include "ops/rmsnorm/rmsnorm_ref.h"
#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

constexpr float eps = 1e-5F;

template <class T>
std::vector<T> cast(const std::vector<float>& values) {
  return std::vector<T>(values.begin(), values.end());
}

// A tensor `skipped` elements into its buffer.
struct Shifted {
  Buffer buffer;
  Tensor tensor;
  Shifted(DType dtype, Shape shape, const std::vector<float>& values, int64_t skipped)
      : buffer(dtype, {shape.numel() + skipped}), tensor{.dtype = dtype, .shape = shape} {
    tensor.data = static_cast<std::byte*>(buffer.tensor.data) + skipped * size_of(dtype);
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::bf16) static_cast<bf16*>(tensor.data)[i] = bf16(values[i]);
      else static_cast<float*>(tensor.data)[i] = values[i];
    }
  }
};

struct Problem {
  int64_t N, G, C;
  std::vector<float> x, weight, residual, dy;
  Problem(int64_t N_, int64_t G_, int64_t C_)
      : N(N_),
        G(G_),
        C(C_),
        x(random_values(static_cast<size_t>(N * G * C), 1, 3)),
        weight(random_values(static_cast<size_t>(C), 2)),
        residual(random_values(x.size(), 3)),
        dy(random_values(x.size(), 4)) {}
  Shape shape() const { return {N, G * C}; }
  template <class T>
  std::vector<T> forward() const {
    std::vector<T> y(x.size());
    ref::rmsnorm_forward<T>(N * G, C, cast<T>(x).data(), cast<T>(weight).data(), cast<T>(residual).data(), 1,
                            static_cast<double>(eps), y.data());
    return y;
  }
  template <class T>
  std::vector<T> backward() const {  // added to residual
    std::vector<T> dx(x.size());
    ref::rmsnorm_backward<T>(N * G, C, cast<T>(x).data(), cast<T>(weight).data(), cast<T>(dy).data(), 1,
                             static_cast<double>(eps), dx.data());
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += T(residual[i]);
    return dx;
  }
  void check(int64_t skipped) const {
    for (DType dtype : {DType::f32, DType::bf16}) {
      TestContext ctx(Isa::avx2);
      const Shifted xt(dtype, shape(), x, skipped), wt(DType::f32, {C}, weight, 0),
          rt(dtype, shape(), residual, skipped), y(dtype, shape(), {}, skipped);
      rmsnorm_forward(ctx, {.x = xt.tensor,
                            .weight = wt.tensor,
                            .residual = rt.tensor,
                            .y = y.tensor,
                            .groups = G,
                            .eps = eps,
                            .offset = 1});
      check_close(to_double(y.tensor), forward<double>(), to_double(Buffer(dtype, shape(), forward<float>())), dtype);
      for (DType dy_dtype : {DType::f32, dtype})
        for (DType dx_dtype : {DType::f32, dtype}) {
          const Shifted dyt(dy_dtype, shape(), dy, skipped), dx(dx_dtype, shape(), residual, skipped);
          rmsnorm_backward(ctx, {.x = xt.tensor,
                                 .weight = wt.tensor,
                                 .dy = dyt.tensor,
                                 .dx = dx.tensor,
                                 .write = Write::add,
                                 .groups = G,
                                 .eps = eps,
                                 .offset = 1});
          check_close(to_double(dx.tensor), backward<double>(), to_double(Buffer(dx_dtype, shape(), backward<float>())),
                      dx_dtype);
        }
    }
  }
};

}  // namespace

TEST_CASE("rmsnorm on CUDA: every layout of a row") {
  if (!on_cuda()) return;
  for (int64_t C : {24, 128, 200, 256, 512, 1536, 2048, 2560, 4096, 5376, 8192, 8200, 12000, 20000}) {
    CAPTURE(C);
    Problem(C <= 512 ? 37 : 9, C <= 512 ? 5 : 1, C).check(0);
  }
}

TEST_CASE("rmsnorm on CUDA: addresses that are not aligned") {
  if (!on_cuda()) return;
  for (int64_t C : {128, 1536}) Problem(11, 2, C).check(1);
}

TEST_CASE("rmsnorm on CUDA: a row's bytes do not depend on the rows beside it") {
  if (!on_cuda()) return;
  for (int64_t C : {64, 128, 256, 1536, 4096}) {
    CAPTURE(C);
    const Problem p(261, 1, C);
    for (DType dtype : {DType::f32, DType::bf16}) {
      TestContext ctx(Isa::avx2);
      Buffer x(dtype, p.shape(), p.x), y(dtype, p.shape()), tiled(dtype, p.shape());
      rmsnorm_forward(ctx, {.x = x, .y = y});
      for (auto [begin, count] : {std::pair<int64_t, int64_t>{0, 256}, {256, 4}, {260, 1}}) {
        rmsnorm_forward(ctx, {.x = x.tensor.rows(begin, count), .y = tiled.tensor.rows(begin, count)});
      }
      CHECK(std::memcmp(y.tensor.data, tiled.tensor.data, static_cast<size_t>(y.tensor.size_bytes())) == 0);
    }
  }
}

TEST_CASE("rmsnorm with RoPE on CUDA: heads of every layout, few and many, aligned and not") {
  if (!on_cuda()) return;
  for (int64_t C : {32, 64, 96, 128, 256, 512, 1024, 2048})
    for (int64_t G : {1, 2, 5, 33})
      for (int64_t skipped : {0, 1}) {
        CAPTURE(C);
        CAPTURE(G);
        CAPTURE(skipped);
        const Problem p(7, G, C);
        const std::vector<float> table = random_values(static_cast<size_t>(p.N * C), 5);
        Buffer tb(DType::f32, {p.N, C}, table), wb(DType::f32, {C}, p.weight);
        const auto forward = [&]<class T>(T) {
          std::vector<T> y(p.x.size());
          ref::rmsnorm_rope_forward(p.N, G, C, cast<T>(p.x).data(), cast<T>(p.weight).data(), table.data(), 1,
                                    static_cast<double>(eps), y.data());
          return y;
        };
        const auto backward = [&]<class T>(T) {
          std::vector<T> dx(p.x.size());
          ref::rmsnorm_rope_backward(p.N, G, C, cast<T>(p.x).data(), cast<T>(p.weight).data(), table.data(),
                                     cast<T>(p.dy).data(), 1, static_cast<double>(eps), dx.data());
          for (size_t i = 0; i < dx.size(); ++i) dx[i] += T(p.residual[i]);
          return dx;
        };
        for (DType dtype : {DType::f32, DType::bf16}) {
          TestContext ctx(Isa::avx2);
          const Shifted x(dtype, p.shape(), p.x, skipped), y(dtype, p.shape(), {}, skipped);
          rmsnorm_forward(
              ctx, {.x = x.tensor, .weight = wb, .table = tb, .y = y.tensor, .groups = G, .eps = eps, .offset = 1});
          check_close(to_double(y.tensor), forward(double{}), to_double(Buffer(dtype, p.shape(), forward(float{}))),
                      dtype);
          Buffer rows(dtype, p.shape());
          for (int64_t n = 0; skipped == 0 && n < p.N; ++n) {
            rmsnorm_forward(ctx, {.x = x.tensor.rows(n, 1),
                                  .weight = wb,
                                  .table = tb.tensor.rows(n, 1),
                                  .y = rows.tensor.rows(n, 1),
                                  .groups = G,
                                  .eps = eps,
                                  .offset = 1});
          }
          if (skipped == 0) CHECK(to_double(rows.tensor) == to_double(y.tensor));
          for (DType dx_dtype : {DType::f32, dtype}) {
            const Shifted dy(DType::f32, p.shape(), p.dy, skipped), dx(dx_dtype, p.shape(), p.residual, skipped);
            rmsnorm_backward(ctx, {.x = x.tensor,
                                   .weight = wb,
                                   .table = tb,
                                   .dy = dy.tensor,
                                   .dx = dx.tensor,
                                   .write = Write::add,
                                   .groups = G,
                                   .eps = eps,
                                   .offset = 1});
            check_close(to_double(dx.tensor), backward(double{}),
                        to_double(Buffer(dx_dtype, p.shape(), backward(float{}))), dx_dtype);
          }
        }
      }
}
