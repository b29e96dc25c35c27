// Several elements at a time by accesses of up to 16 bytes, kept in registers as they are stored. For kernels that are bound by memory.
//
//   constexpr int n = pack_size<TX, TY>;
//   Pack<TX, n> p = load_pack<n>(x + i);   float v[n];   unpack(p, v);   …   store_pack(y + i, v);    // i % n == 0; x, y aligned to 16
//
// Eight when all are bf16; four when a float is among them, so that the threads of a warp access neighbouring bytes of each tensor (eight
// floats as two accesses would write half sectors).
#pragma once

#include <initializer_list>
#include <type_traits>

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

template <class... T>
constexpr int pack_size = (std::is_same_v<T, float> || ...) ? 4 : 8;

template <class T, int n>
struct Pack;
template <>
struct Pack<__nv_bfloat16, 8> {
  uint4 pairs;
};
template <>
struct Pack<__nv_bfloat16, 4> {
  uint2 pairs;
};
template <>
struct Pack<float, 4> {
  float4 values;
};
template <>
struct Pack<float, 8> {
  float4 low, high;
};

// Plain loads, since outputs may be inputs: read before write is what makes that safe.
template <int n>
__device__ Pack<__nv_bfloat16, n> load_pack(const __nv_bfloat16* p) {
  return *reinterpret_cast<const Pack<__nv_bfloat16, n>*>(p);
}
template <int n>
__device__ Pack<float, n> load_pack(const float* p) {
  return *reinterpret_cast<const Pack<float, n>*>(p);
}
// Of memory that the kernel does not write.
template <int n>
__device__ Pack<float, n> load_constant_pack(const float* p) {
  const auto* q = reinterpret_cast<const float4*>(p);
  if constexpr (n == 4) return {__ldg(q)};
  else return {__ldg(q), __ldg(q + 1)};
}

__device__ inline void unpack_pair(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000U);
}
__device__ inline void unpack(const Pack<__nv_bfloat16, 8>& p, float (&v)[8]) {
  unpack_pair(p.pairs.x, v[0], v[1]);
  unpack_pair(p.pairs.y, v[2], v[3]);
  unpack_pair(p.pairs.z, v[4], v[5]);
  unpack_pair(p.pairs.w, v[6], v[7]);
}
__device__ inline void unpack(const Pack<__nv_bfloat16, 4>& p, float (&v)[4]) {
  unpack_pair(p.pairs.x, v[0], v[1]);
  unpack_pair(p.pairs.y, v[2], v[3]);
}
__device__ inline void unpack(const Pack<float, 4>& p, float (&v)[4]) {
  v[0] = p.values.x, v[1] = p.values.y, v[2] = p.values.z, v[3] = p.values.w;
}
__device__ inline void unpack(const Pack<float, 8>& p, float (&v)[8]) {
  v[0] = p.low.x, v[1] = p.low.y, v[2] = p.low.z, v[3] = p.low.w;
  v[4] = p.high.x, v[5] = p.high.y, v[6] = p.high.z, v[7] = p.high.w;
}

__device__ inline uint32_t pack_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline void store_pack(__nv_bfloat16* p, const float (&v)[8]) {
  *reinterpret_cast<uint4*>(p) = {pack_pair(v[0], v[1]), pack_pair(v[2], v[3]), pack_pair(v[4], v[5]),
                                  pack_pair(v[6], v[7])};
}
__device__ inline void store_pack(__nv_bfloat16* p, const float (&v)[4]) {
  *reinterpret_cast<uint2*>(p) = {pack_pair(v[0], v[1]), pack_pair(v[2], v[3])};
}
__device__ inline void store_pack(float* p, const float (&v)[4]) {
  *reinterpret_cast<float4*>(p) = {v[0], v[1], v[2], v[3]};
}

// Whether packs may be read and written at these addresses; null is.
inline bool aligned_to_packs(std::initializer_list<const void*> addresses) {
  uintptr_t bits = 0;
  for (const void* p : addresses) bits |= reinterpret_cast<uintptr_t>(p);
  return bits % 16 == 0;
}

template <class T>
T* data_of(const Tensor& t) {
  return static_cast<T*>(t.data);
}

}  // namespace sluice::cuda
