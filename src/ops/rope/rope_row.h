// The rotation of one head on the CPU. For *_cpu.cpp files, after ops/common/cpu_simd.h.
#pragma once

namespace sluice::SLUICE_CPU {
namespace {

// One pair of vectors: `count` pairs of which both halves are read before either is written, so y may be x.
template <class T, class U>
SLUICE_INLINE void rotate_some(const T* x, const float* table, U* y, int64_t half, float sign, int64_t count) {
  const bool whole = count == lanes;
  const F32 cosine = whole ? load(table) : load_part(table, count);
  const F32 sine = (whole ? load(table + half) : load_part(table + half, count)) * sign;
  const F32 a = whole ? load(x) : load_part(x, count), b = whole ? load(x + half) : load_part(x + half, count);
  const F32 first = a * cosine - b * sine, second = b * cosine + a * sine;
  if (whole) {
    store(y, first);
    store(y + half, second);
  } else {
    store_part(y, first, count);
    store_part(y + half, second, count);
  }
}

// x, y [D]; table: a token's D/2 cosines, then D/2 sines; sign -1 turns back.
template <class T, class U>
SLUICE_INLINE void rotate_row(const T* x, const float* table, U* y, int64_t D, float sign) {
  const int64_t half = D / 2;
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) rotate_some(x + i, table + i, y + i, half, sign, lanes);
  if (i < half) rotate_some(x + i, table + i, y + i, half, sign, half - i);
}

}  // namespace
}  // namespace sluice::SLUICE_CPU
