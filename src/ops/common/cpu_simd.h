// Vectors of float for the CPU kernels, by GCC's vector extensions (the compiler is GCC). Include it LAST in a *_cpu.cpp file, never in a
// header: what follows is compiled for the instruction set of this pass (the build compiles each such file twice,
// with SLUICE_ISA_AVX512 and without), while everything included before keeps the baseline, so that no inline function of
// the standard library is built with instructions that the machine may lack.
//
//   namespace sluice::SLUICE_CPU { void rmsnorm_forward(Context& ctx, const RmsNormForward& args) { … } }
//   F32 x = load(p);  store(q, x * x + y);            // p, q: float* or bf16*; bf16 is rounded to nearest even
//   float s = reduce_add(x);                           // fixed order, the same for every call
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

#if defined(SLUICE_ISA_AVX512)
#define SLUICE_CPU cpu_avx512
#define SLUICE_SIMD_BYTES 64
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2")
#else
#define SLUICE_CPU cpu_avx2
#define SLUICE_SIMD_BYTES 32
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#endif

namespace sluice::SLUICE_CPU {
namespace {

constexpr int lanes = SLUICE_SIMD_BYTES / 4;
using F32 = float __attribute__((vector_size(SLUICE_SIMD_BYTES)));
using I32 = int32_t __attribute__((vector_size(SLUICE_SIMD_BYTES)));
using U32 = uint32_t __attribute__((vector_size(SLUICE_SIMD_BYTES)));
using U16 = uint16_t __attribute__((vector_size(SLUICE_SIMD_BYTES / 2)));
using I16 = int16_t __attribute__((vector_size(SLUICE_SIMD_BYTES / 2)));
using I8 = int8_t __attribute__((vector_size(SLUICE_SIMD_BYTES / 4)));
using U8 = uint8_t __attribute__((vector_size(SLUICE_SIMD_BYTES / 4)));

#define SLUICE_INLINE [[maybe_unused]] static inline __attribute__((always_inline))

SLUICE_INLINE F32 splat(float value) { return F32{} + value; }

template <class V, class T>
SLUICE_INLINE V load_raw(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
SLUICE_INLINE F32 load(const float* p) { return load_raw<F32>(p); }
SLUICE_INLINE F32 load(const bf16* p) { return (F32)(__builtin_convertvector(load_raw<U16>(p), U32) << 16); }
SLUICE_INLINE void store(float* p, F32 v) { std::memcpy(p, &v, sizeof v); }
SLUICE_INLINE void store(bf16* p, F32 v) {
  const U32 u = (U32)v;
  const U32 rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  const U32 quiet = (u >> 16) | 0x40U;  // NaN stays NaN
  const U16 h = __builtin_convertvector(v != v ? quiet : rounded, U16);
  std::memcpy(p, &h, sizeof h);
}
// The tail of a row: the first `count` < lanes elements; missing ones read as zero and are not written.
template <class T>
SLUICE_INLINE F32 load_part(const T* p, int64_t count) {
  T part[lanes] = {};
  std::memcpy(part, p, static_cast<size_t>(count) * sizeof(T));
  return load(part);
}
template <class T>
SLUICE_INLINE void store_part(T* p, F32 v, int64_t count) {
  T part[lanes];
  store(part, v);
  std::memcpy(p, part, static_cast<size_t>(count) * sizeof(T));
}

SLUICE_INLINE F32 max(F32 a, F32 b) { return a > b ? a : b; }
SLUICE_INLINE F32 min(F32 a, F32 b) { return a < b ? a : b; }

SLUICE_INLINE float reduce_add(F32 v) {
  float part[lanes];
  store(part, v);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  }
  return part[0];
}
SLUICE_INLINE float reduce_max(F32 v) {
  float part[lanes];
  store(part, v);
  for (int width = lanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] = part[i] > part[i + width] ? part[i] : part[i + width];
  }
  return part[0];
}

// exp with a relative error below 2 units in the last place for x in [-87, 88]; 0 below, inf above, NaN for NaN.
// Range reduction x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor polynomial of degree 7 of exp(r), whose remainder
// r^8 / 8! is below 5e-9.
SLUICE_INLINE F32 exp(F32 x) {
  const F32 clamped = min(max(x, splat(-87.3F)), splat(88.7F));
  const F32 shifted = clamped * 1.44269504F + 12582912.0F;  // 1.5 * 2^23: rounds to an integer in the low bits
  const I32 n = (I32)shifted - 0x4b400000;
  const F32 nf = shifted - 12582912.0F;
  F32 r = clamped - nf * 0.693145752F;  // ln 2 in two parts
  r = r - nf * 1.42860677e-6F;
  F32 p = splat(1.0F / 5040);
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const F32 scaled = p * (F32)((n + 127) << 23);
  const F32 low = x < -87.3F ? F32{} : scaled;
  const F32 high = x > 88.7F ? splat(__builtin_inff()) : low;
  return x != x ? x : high;
}

SLUICE_INLINE F32 sigmoid(F32 x) { return 1.0F / (1.0F + exp(-x)); }
SLUICE_INLINE F32 tanh(F32 x) {  // odd, by exp of -2|x|; small |x| by its series, where the difference would cancel
  const F32 a = max(x, -x);
  const F32 e = exp(-2.0F * a);
  const F32 big = (1.0F - e) / (1.0F + e);
  const F32 s = a * a;
  const F32 small = a * (1.0F + s * (-1.0F / 3 + s * (2.0F / 15 + s * (-17.0F / 315))));
  const F32 t = a < 0.06F ? small : big;
  const F32 signed_t = x < 0.0F ? -t : t;
  return x != x ? x : signed_t;
}

}  // namespace
}  // namespace sluice::SLUICE_CPU
