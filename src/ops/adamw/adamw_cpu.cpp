#include <algorithm>
#include <cmath>

#include "ops/adamw/adamw.h"
#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr int64_t elements_per_item =
    16384;  // also the block of a partial sum: fixed, so the sum is the same for any threads

SLUICE_INLINE F32 square_root(F32 x) {
#if defined(SLUICE_ISA_AVX512)
  return (F32)__builtin_ia32_sqrtps512_mask(x, x, -1, 4);  // 4: rounding as the mode says
#else
  return (F32)__builtin_ia32_sqrtps256(x);
#endif
}

// The factors of an update that do not depend on the element, formed in float64.
struct Factors {
  float beta1, beta2, rest1, rest2, decay, step, root, eps;
  explicit Factors(const AdamW& a)
      : beta1(a.beta1),
        beta2(a.beta2),
        rest1(1 - a.beta1),
        rest2(1 - a.beta2),
        decay(static_cast<float>(1 - static_cast<double>(a.lr) * a.weight_decay)),
        step(static_cast<float>(a.lr / (1 - std::pow(static_cast<double>(a.beta1), static_cast<double>(a.t))))),
        root(static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(a.beta2), static_cast<double>(a.t))))),
        eps(a.eps) {}
};

SLUICE_INLINE void update(const Factors& f, F32 g, F32& p, F32& m, F32& v) {
  p *= f.decay;
  m = f.beta1 * m + f.rest1 * g;
  v = f.beta2 * v + f.rest2 * (g * g);
  p -= f.step * m / (square_root(v) * f.root + f.eps);
}

// Sum of squares of one block, in float64, lane by lane and then over the lanes.
void block_sum(const float* g, int64_t count, double* result) {
  double sum[lanes] = {};
  int64_t not_finite = 0;
  for (int64_t i = 0; i < count; i += lanes) {
    for (int64_t j = 0; j < std::min<int64_t>(lanes, count - i); ++j) {
      const float x = g[i + j];
      sum[j] += static_cast<double>(x) * static_cast<double>(x);
      not_finite += !(x - x == 0.0F);
    }
  }
  result[0] = 0;
  for (double s : sum) result[0] += s;
  result[1] = static_cast<double>(not_finite);
}

}  // namespace

void adamw(Context& ctx, const AdamW& args) {
  if (ctx.counting()) return;
  const int64_t n = args.p.numel();
  const Factors f(args);
  float *p = args.p.as<float>(), *m = args.m.as<float>(), *v = args.v.as<float>();
  const float* g = args.g.as<float>();
  ctx.pool.parallel_for((n + elements_per_item - 1) / elements_per_item, [&](int64_t item, int) {
    const int64_t end = std::min(n, (item + 1) * elements_per_item);
    for (int64_t i = item * elements_per_item; i < end; i += lanes) {
      const int64_t count = std::min<int64_t>(lanes, end - i);
      if (count == lanes) {
        F32 pi = load(p + i), mi = load(m + i), vi = load(v + i);
        update(f, load(g + i) * args.grad_scale, pi, mi, vi);
        store(p + i, pi), store(m + i, mi), store(v + i, vi);
      } else {
        F32 pi = load_part(p + i, count), mi = load_part(m + i, count), vi = load_part(v + i, count);
        update(f, load_part(g + i, count) * args.grad_scale, pi, mi, vi);
        store_part(p + i, pi, count), store_part(m + i, mi, count), store_part(v + i, vi, count);
      }
    }
  });
}

void sum_of_squares(Context& ctx, const SumOfSquares& args) {
  const int64_t n = args.g.numel(), items = (n + elements_per_item - 1) / elements_per_item;
  ArenaScope scope(ctx.arena);
  auto* partial = scope.array<double>(2 * items);
  if (ctx.counting()) return;
  const float* g = args.g.as<float>();
  ctx.pool.parallel_for(items, [&](int64_t item, int) {
    const int64_t begin = item * elements_per_item;
    block_sum(g + begin, std::min(elements_per_item, n - begin), partial + 2 * item);
  });
  double sum = 0, not_finite = 0;
  for (int64_t item = 0; item < items; ++item) {
    sum += partial[2 * item];
    not_finite += partial[2 * item + 1];
  }
  args.result[0] += sum;
  args.result[1] += not_finite;
}

}  // namespace sluice::SLUICE_CPU
