// Both activations are z * sigmoid(k(z)): k = z for silu; and since (1 + tanh u) / 2 = sigmoid(2 u), k = 2 u for
// gelu_tanh.
#include "ops/activation/activation.h"

#include <algorithm>

#include "ops/common/cuda_utils.cuh"
#include "ops/common/pack.cuh"

namespace sluice::cuda {

namespace {

constexpr int block = 256;
constexpr int elements_per_thread = 16;  // of each tensor in flight
constexpr int64_t elements_per_block = int64_t{block} * elements_per_thread;

constexpr float two_sqrt_2_over_pi = 1.5957691216F, cubic = 0.044715F;

// Sums of products are spelled out as fmaf, so that an element has the same bits wherever it stands.
template <Activation activation>
__device__ float gate_argument(float z) {
  if constexpr (activation == Activation::silu) return z;
  else return two_sqrt_2_over_pi * z * fmaf(cubic * z, z, 1.0F);
}
template <Activation activation>
__device__ float gate_slope(float z) {
  if constexpr (activation == Activation::silu) return 1.0F;
  // Beyond |z| = 20 the slope is multiplied by s (1 - s) = 0; the bound keeps it finite.
  else return two_sqrt_2_over_pi * fmaf(3 * cubic, fminf(z * z, 400.0F), 1.0F);
}
// 1 / x by the unit's instruction: off by one unit in the last place at most.
__device__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <Activation activation>
__device__ float gated(float a, float b) {
  return a * reciprocal(__fadd_rn(1.0F, expf(-gate_argument<activation>(a)))) * b;
}

struct Pair {
  float da, db;
};
template <Activation activation>
__device__ Pair gated_derivatives(float a, float b, float dy) {
  const float e = expf(fminf(-gate_argument<activation>(a), 88.0F));
  const float s = reciprocal(__fadd_rn(1.0F, e)), rest = __fmul_rn(e, s);  // rest = 1 - s, which would cancel
  const float value = __fmul_rn(a, s);
  const float derivative = fmaf(__fmul_rn(value, rest), gate_slope<activation>(a), s);
  return {dy * b * derivative, dy * value};
}

// Whole blocks by packs; the last, and what is not aligned, by elements.
template <class T, Activation activation>
__global__ __launch_bounds__(block) void forward(const T* a, const T* b, T* y, int64_t count, bool packed) {
  const int64_t begin = blockIdx.x * elements_per_block, end = min(count, begin + elements_per_block);
  if (!packed || begin + elements_per_block > count) {
    for (int64_t i = begin + threadIdx.x; i < end; i += block)
      y[i] = from_float<T>(gated<activation>(to_float(a[i]), to_float(b[i])));
    return;
  }
  constexpr int n = pack_size<T>, packs = elements_per_thread / n;
  Pack<T, n> as[packs], bs[packs];
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int64_t i = begin + (k * block + threadIdx.x) * n;
    as[k] = load_pack<n>(a + i);
    bs[k] = load_pack<n>(b + i);
  }
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    float av[n], bv[n];
    unpack(as[k], av);
    unpack(bs[k], bv);
#pragma unroll
    for (int j = 0; j < n; ++j) av[j] = gated<activation>(av[j], bv[j]);
    store_pack(y + begin + (k * block + threadIdx.x) * n, av);
  }
}

template <class T, Activation activation>
__global__ __launch_bounds__(block) void backward(const T* a, const T* b, const T* dy, T* da, T* db, int64_t count,
                                                  bool packed) {
  const int64_t begin = blockIdx.x * elements_per_block, end = min(count, begin + elements_per_block);
  if (!packed || begin + elements_per_block > count) {
    for (int64_t i = begin + threadIdx.x; i < end; i += block) {
      const Pair g = gated_derivatives<activation>(to_float(a[i]), to_float(b[i]), to_float(dy[i]));
      da[i] = from_float<T>(g.da);
      if (db != nullptr) db[i] = from_float<T>(g.db);
    }
    return;
  }
  constexpr int n = pack_size<T>, packs = elements_per_thread / n;
  Pack<T, n> as[packs], bs[packs], dys[packs];
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int64_t i = begin + (k * block + threadIdx.x) * n;
    as[k] = load_pack<n>(a + i);
    bs[k] = load_pack<n>(b + i);
    dys[k] = load_pack<n>(dy + i);
  }
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int64_t i = begin + (k * block + threadIdx.x) * n;
    float av[n], bv[n], dyv[n];
    unpack(as[k], av);
    unpack(bs[k], bv);
    unpack(dys[k], dyv);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const Pair g = gated_derivatives<activation>(av[j], bv[j], dyv[j]);
      av[j] = g.da, bv[j] = g.db;
    }
    store_pack(da + i, av);
    if (db != nullptr) store_pack(db + i, bv);
  }
}

// Calls f.template operator()<T, activation>().
template <class F>
void with_variant(DType dtype, Activation activation, F f) {
  with_type(dtype, [&]<class T>() {
    if (activation == Activation::silu) f.template operator()<T, Activation::silu>();
    else f.template operator()<T, Activation::gelu_tanh>();
  });
}

}  // namespace

void gated_forward(Context& ctx, const GatedForward& args) {
  const int64_t count = args.a.numel();
  if (ctx.counting() || count == 0) return;
  const bool packed = aligned_to_packs({args.a.data, args.b.data, args.y.data});
  const cudaStream_t stream = stream_of(ctx);
  with_variant(args.a.dtype, args.activation, [&]<class T, Activation activation>() {
    forward<T, activation><<<ceil_div(count, elements_per_block), block, 0, stream>>>(
        data_of<T>(args.a), data_of<T>(args.b), data_of<T>(args.y), count, packed);
  });
  check_launch("gated_forward");
}

void gated_backward(Context& ctx, const GatedBackward& args) {
  const int64_t count = args.a.numel();
  if (ctx.counting() || count == 0) return;
  const bool packed = aligned_to_packs({args.a.data, args.b.data, args.dy.data, args.da.data, args.db.data});
  const cudaStream_t stream = stream_of(ctx);
  with_variant(args.a.dtype, args.activation, [&]<class T, Activation activation>() {
    backward<T, activation><<<ceil_div(count, elements_per_block), block, 0, stream>>>(
        data_of<T>(args.a), data_of<T>(args.b), data_of<T>(args.dy), data_of<T>(args.da), data_of<T>(args.db), count,
        packed);
  });
  check_launch("gated_backward");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(gated_forward, GatedForward)
SLUICE_CUDA_ENTRY(gated_backward, GatedBackward)
