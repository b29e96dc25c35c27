#include "core/weight.h"

namespace sluice {

std::string_view to_string(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return "f32";
    case WeightFormat::f16: return "f16";
    case WeightFormat::bf16: return "bf16";
    case WeightFormat::affine: return "affine";
    case WeightFormat::q4_0: return "q4_0";
    case WeightFormat::q4_1: return "q4_1";
    case WeightFormat::q5_0: return "q5_0";
    case WeightFormat::q5_1: return "q5_1";
    case WeightFormat::q8_0: return "q8_0";
    case WeightFormat::q4_k: return "q4_k";
    case WeightFormat::q5_k: return "q5_k";
    case WeightFormat::q6_k: return "q6_k";
  }
  return "?";
}

int64_t block_cols(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
    case WeightFormat::f16:
    case WeightFormat::bf16: return 1;
    case WeightFormat::affine: return 32;
    case WeightFormat::q4_0:
    case WeightFormat::q4_1:
    case WeightFormat::q5_0:
    case WeightFormat::q5_1:
    case WeightFormat::q8_0: return 32;
    case WeightFormat::q4_k:
    case WeightFormat::q5_k:
    case WeightFormat::q6_k: return 256;
  }
  return 1;
}

// Block layouts: ggml-common.h of llama.cpp (block_q4_0 … block_q6_K).
int64_t block_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return 4;
    case WeightFormat::f16:
    case WeightFormat::bf16: return 2;
    case WeightFormat::affine: return 0;  // 4 * bits; see row_bytes
    case WeightFormat::q4_0: return 18;
    case WeightFormat::q4_1: return 20;
    case WeightFormat::q5_0: return 22;
    case WeightFormat::q5_1: return 24;
    case WeightFormat::q8_0: return 34;
    case WeightFormat::q4_k: return 144;
    case WeightFormat::q5_k: return 176;
    case WeightFormat::q6_k: return 210;
  }
  return 0;
}

int64_t Weight::row_bytes() const {
  if (format == WeightFormat::affine) return cols / 32 * 4 * bits;
  return cols / block_cols(format) * block_bytes(format);
}

int64_t Weight::size_bytes() const {
  int64_t bytes = rows * row_bytes();
  if (format == WeightFormat::affine) bytes += 2 * rows * (cols / group_size) * size_of(scale_dtype);
  return bytes;
}

}  // namespace sluice
