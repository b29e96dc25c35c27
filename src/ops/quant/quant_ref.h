// The storage formats as plain loops: the specification of what every code means (docs/math/quant.md). T is float or double.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/weight.h"

namespace sluice::ref {

inline uint32_t byte_at(const std::byte* p, int64_t i) { return std::to_integer<uint32_t>(p[i]); }
inline int32_t signed_byte_at(const std::byte* p, int64_t i) { return static_cast<int8_t>(byte_at(p, i)); }
inline uint16_t half_at(const std::byte* p, int64_t i) {
  return static_cast<uint16_t>(byte_at(p, i) | byte_at(p, i + 1) << 8);
}

// Element `index` of an array of f32, f16 or bf16 that may lie anywhere.
template <class T>
T float_at(const std::byte* p, DType dtype, int64_t index) {
  if (dtype == DType::f32) {
    float value;
    std::memcpy(&value, p + 4 * index, sizeof value);
    return T(value);
  }
  const uint16_t bits = half_at(p, 2 * index);
  if (dtype == DType::f16) return T(f16_to_float(bits));
  bf16 value;
  value.bits = bits;
  return T(static_cast<float>(value));
}

// MLX: code i of a row is bits [i * bits, (i + 1) * bits) of the row read as one little-endian number.
template <class T>
T affine_at(const Weight& w, int64_t row, int64_t col) {
  const std::byte* data = w.data + row * w.row_bytes();
  uint32_t code = 0;
  for (int b = 0; b < w.bits; ++b) {
    const int64_t position = col * w.bits + b;
    code |= ((byte_at(data, position / 8) >> (position % 8)) & 1U) << b;
  }
  const int64_t group = row * (w.cols / w.group_size) + col / w.group_size;
  return float_at<T>(w.scales, w.scale_dtype, group) * T(code) + float_at<T>(w.biases, w.scale_dtype, group);
}

// ggml's blocks of 32: d [, m] as f16 [, 32 fifth bits], then codes. Byte j of the codes holds weight j in its low and weight
// j + 16 in its high nibble.
inline uint32_t nibble(const std::byte* codes, int64_t j) {
  return j < 16 ? byte_at(codes, j) & 15U : byte_at(codes, j - 16) >> 4;
}
inline uint32_t fifth_bit(const std::byte* bits, int64_t j) { return ((byte_at(bits, j / 8) >> (j % 8)) & 1U) << 4; }

template <class T>
T block32_at(WeightFormat format, const std::byte* p, int64_t j) {
  const T d = T(f16_to_float(half_at(p, 0)));
  switch (format) {
    case WeightFormat::q4_0: return d * T(int32_t(nibble(p + 2, j)) - 8);
    case WeightFormat::q4_1: return d * T(nibble(p + 4, j)) + T(f16_to_float(half_at(p, 2)));
    case WeightFormat::q5_0: return d * T(int32_t(nibble(p + 6, j) | fifth_bit(p + 2, j)) - 16);
    case WeightFormat::q5_1: return d * T(nibble(p + 8, j) | fifth_bit(p + 4, j)) + T(f16_to_float(half_at(p, 2)));
    default: return d * T(signed_byte_at(p + 2, j));  // q8_0
  }
}

// ggml's blocks of 256. q4_k and q5_k: d, dmin as f16; 12 bytes with eight 6-bit scales and eight 6-bit minima; [32 bytes with the
// fifth bits: bit s of byte l belongs to weight 32 s + l;] 128 bytes of nibbles: byte 32 i + l holds weight 64 i + l (low) and
// 64 i + 32 + l (high).
inline void k_scale_min(const std::byte* packed, int64_t s, uint32_t& scale, uint32_t& min) {
  if (s < 4) {
    scale = byte_at(packed, s) & 63U;
    min = byte_at(packed, s + 4) & 63U;
  } else {
    scale = (byte_at(packed, s + 4) & 15U) | (byte_at(packed, s - 4) >> 6) << 4;
    min = (byte_at(packed, s + 4) >> 4) | (byte_at(packed, s) >> 6) << 4;
  }
}

template <class T>
T q45_k_at(WeightFormat format, const std::byte* p, int64_t j) {
  const int64_t s = j / 32, l = j % 32;
  uint32_t scale, min;
  k_scale_min(p + 4, s, scale, min);
  const bool five = format == WeightFormat::q5_k;
  const std::byte* codes = p + 16 + (five ? 32 : 0);
  uint32_t code = (byte_at(codes, 32 * (s / 2) + l) >> (4 * (s % 2))) & 15U;
  if (five) code |= ((byte_at(p + 16, l) >> s) & 1U) << 4;
  const T d = T(f16_to_float(half_at(p, 0))), dmin = T(f16_to_float(half_at(p, 2)));
  return d * T(scale) * T(code) - dmin * T(min);
}

// q6_k: 128 bytes with the low four bits, 64 bytes with the high two, 16 signed scales (one per 16 weights), d as f16. Each half
// of 128 weights is four runs of 32: run r takes nibble r / 2 of bytes 32 (r % 2) + l and bits 2 r, 2 r + 1 of high byte l.
template <class T>
T q6_k_at(const std::byte* p, int64_t j) {
  const int64_t half = j / 128, r = j % 128 / 32, l = j % 32;
  const uint32_t low = (byte_at(p, 64 * half + 32 * (r % 2) + l) >> (4 * (r / 2))) & 15U;
  const uint32_t high = (byte_at(p + 128, 32 * half + l) >> (2 * r)) & 3U;
  return T(f16_to_float(half_at(p, 208))) * T(signed_byte_at(p + 192, j / 16)) * T(int32_t(low | high << 4) - 32);
}

template <class T>
T weight_at(const Weight& w, int64_t row, int64_t col) {
  row = w.stored_row(row);
  if (w.format == WeightFormat::affine) return affine_at<T>(w, row, col);
  const std::byte* data = w.data + row * w.row_bytes();
  const std::byte* block = data + col / block_cols(w.format) * block_bytes(w.format);
  const int64_t j = col % block_cols(w.format);
  switch (w.format) {
    case WeightFormat::f32: return float_at<T>(data, DType::f32, col);
    case WeightFormat::f16: return float_at<T>(data, DType::f16, col);
    case WeightFormat::bf16: return float_at<T>(data, DType::bf16, col);
    case WeightFormat::q4_k:
    case WeightFormat::q5_k: return q45_k_at<T>(w.format, block, j);
    case WeightFormat::q6_k: return q6_k_at<T>(block, j);
    default: return block32_at<T>(w.format, block, j);
  }
}

// out [rows, cols]
template <class T>
void dequantize(const Weight& w, int64_t row_begin, int64_t rows, int64_t col_begin, int64_t cols, T* out) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) out[i * cols + j] = weight_at<T>(w, row_begin + i, col_begin + j);
  }
}

// x [N, in], y [N, out]
template <class T>
void weight_matvec(const Weight& w, int64_t N, const T* x, T* y) {
  for (int64_t n = 0; n < N; ++n) {
    for (int64_t o = 0; o < w.rows; ++o) {
      T sum = 0;
      for (int64_t i = 0; i < w.cols; ++i) sum += x[n * w.cols + i] * weight_at<T>(w, o, i);
      y[n * w.rows + o] = sum;
    }
  }
}

}  // namespace sluice::ref
