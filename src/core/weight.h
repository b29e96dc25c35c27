// A frozen weight exactly as it lies in the mapped file: [rows, cols] with rows = outputs, cols = inputs
// (y = x W^T), in one of the storage formats people have. A view; it owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"
#include "core/error.h"

namespace sluice {

// affine is MLX's: w = scale * code + bias per group; the q… are GGUF blocks (32 weights for _0/_1, 256 for _k).
enum class WeightFormat : uint8_t { f32, f16, bf16, affine, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k };

std::string_view to_string(WeightFormat format);

struct Weight {
  WeightFormat format = WeightFormat::f32;
  int64_t rows = 0, cols = 0;
  const std::byte* data = nullptr;  // rows * row_bytes() bytes, mapped; no alignment promised
  // affine only
  const std::byte* scales = nullptr;  // [rows, cols / group_size] of scale_dtype
  const std::byte* biases = nullptr;  // the same
  DType scale_dtype = DType::bf16;    // f32, f16 or bf16
  int bits = 0;                       // 2, 3, 4, 6, 8
  int group_size = 0;                 // 32, 64, 128
  // llama.cpp stores q and k of Llama with the rows of each head interleaved. When > 0, row r here (Hugging Face
  // order) is row stored_row(r) of the file.
  int64_t interleaved_head_dim = 0;

  bool empty() const { return data == nullptr; }
  int64_t row_bytes() const;   // bytes of one row of data
  int64_t size_bytes() const;  // data, scales and biases together
  int64_t stored_row(int64_t row) const {
    if (interleaved_head_dim == 0) return row;
    const int64_t half = interleaved_head_dim / 2, in_head = row % interleaved_head_dim;
    return row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
  }
};

// Weights per block of a format (1 for f32, f16, bf16; group_size does not count) and bytes per block.
int64_t block_cols(WeightFormat format);
int64_t block_bytes(WeightFormat format);

}  // namespace sluice
