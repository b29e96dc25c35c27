// Both activations are z * sigmoid(k(z)): k = z for silu; and since (1 + tanh u) / 2 = sigmoid(2 u), k = 2 u for
// gelu_tanh.
#include <algorithm>

#include "ops/activation/activation.h"

#include "ops/common/cpu_simd.h"

namespace sluice::SLUICE_CPU {

namespace {

constexpr float two_sqrt_2_over_pi = 1.5957691216F, cubic = 0.044715F;

template <Activation activation>
SLUICE_INLINE F32 gate_argument(F32 z) {
  if constexpr (activation == Activation::silu) return z;
  else return two_sqrt_2_over_pi * z * (1.0F + cubic * z * z);
}
template <Activation activation>
SLUICE_INLINE F32 gate_slope(F32 z) {
  if constexpr (activation == Activation::silu) return splat(1.0F);
  // Beyond |z| = 20 the slope is multiplied by s (1 - s) = 0; the bound keeps it finite.
  else return two_sqrt_2_over_pi * (1.0F + 3 * cubic * min(z * z, splat(400.0F)));
}

template <Activation activation>
SLUICE_INLINE F32 forward_lanes(F32 a, F32 b) {
  return a * sigmoid(gate_argument<activation>(a)) * b;
}

struct Pair {
  F32 da, db;
};
template <Activation activation>
SLUICE_INLINE Pair backward_lanes(F32 a, F32 b, F32 dy) {
  const F32 e = exp(min(-gate_argument<activation>(a), splat(88.0F)));
  const F32 s = 1.0F / (1.0F + e), rest = e * s;  // rest = 1 - s, which would cancel
  const F32 value = a * s;
  const F32 derivative = s + value * rest * gate_slope<activation>(a);
  return {dy * b * derivative, dy * value};
}

template <class F>
void for_ranges(Context& ctx, int64_t count, F range) {
  constexpr int64_t per_item = 8192;
  ctx.pool.parallel_for((count + per_item - 1) / per_item,
                        [&](int64_t item, int) { range(item * per_item, std::min(count, (item + 1) * per_item)); });
}

template <class T, Activation activation>
void forward(Context& ctx, const GatedForward& args) {
  const T *a = args.a.as<T>(), *b = args.b.as<T>();
  T* y = args.y.as<T>();
  for_ranges(ctx, args.a.numel(), [=](int64_t i, int64_t end) {
    for (; i + lanes <= end; i += lanes) store(y + i, forward_lanes<activation>(load(a + i), load(b + i)));
    if (i < end) {
      store_part(y + i, forward_lanes<activation>(load_part(a + i, end - i), load_part(b + i, end - i)), end - i);
    }
  });
}

template <class T, Activation activation>
void backward(Context& ctx, const GatedBackward& args) {
  const T *a = args.a.as<T>(), *b = args.b.as<T>(), *dy = args.dy.as<T>();
  T *da = args.da.as<T>(), *db = args.db.as<T>();
  for_ranges(ctx, args.a.numel(), [=](int64_t i, int64_t end) {
    for (; i + lanes <= end; i += lanes) {
      const Pair g = backward_lanes<activation>(load(a + i), load(b + i), load(dy + i));
      store(da + i, g.da);
      if (db != nullptr) store(db + i, g.db);
    }
    if (const int64_t rest = end - i; rest > 0) {
      const Pair g =
          backward_lanes<activation>(load_part(a + i, rest), load_part(b + i, rest), load_part(dy + i, rest));
      store_part(da + i, g.da, rest);
      if (db != nullptr) store_part(db + i, g.db, rest);
    }
  });
}

}  // namespace

void gated_forward(Context& ctx, const GatedForward& args) {
  if (ctx.counting()) return;
  const bool is_bf16 = args.a.dtype == DType::bf16, is_silu = args.activation == Activation::silu;
  if (is_bf16 && is_silu) forward<bf16, Activation::silu>(ctx, args);
  else if (is_bf16) forward<bf16, Activation::gelu_tanh>(ctx, args);
  else if (is_silu) forward<float, Activation::silu>(ctx, args);
  else forward<float, Activation::gelu_tanh>(ctx, args);
}

void gated_backward(Context& ctx, const GatedBackward& args) {
  if (ctx.counting()) return;
  const bool is_bf16 = args.a.dtype == DType::bf16, is_silu = args.activation == Activation::silu;
  if (is_bf16 && is_silu) backward<bf16, Activation::silu>(ctx, args);
  else if (is_bf16) backward<bf16, Activation::gelu_tanh>(ctx, args);
  else if (is_silu) backward<float, Activation::silu>(ctx, args);
  else backward<float, Activation::gelu_tanh>(ctx, args);
}

}  // namespace sluice::SLUICE_CPU
