// Weights in every storage format, from random bytes with scales of ordinary size, for tests of what reads them.
//
//   RandomWeight w({.format = WeightFormat::q4_1}, 7, 64, /*seed=*/1);   // w.weight, valid as long as w lives
//   for (const WeightKind& kind : all_weight_kinds()) { CAPTURE(kind.name()); … kind.columns() … }
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/weight.h"

namespace sluice::test {

struct WeightKind {
  WeightFormat format = WeightFormat::f32;
  int bits = 0, group_size = 0;  // affine only
  DType scale_dtype = DType::bf16;

  std::string name() const {
    std::string text(to_string(format));
    if (format == WeightFormat::affine)
      text += " " + std::to_string(bits) + " bit, group " + std::to_string(group_size) + ", " +
              std::string(to_string(scale_dtype));
    return text;
  }
  int64_t column_multiple() const { return format == WeightFormat::affine ? group_size : block_cols(format); }
};

inline std::vector<WeightKind> all_weight_kinds() {
  std::vector<WeightKind> kinds;
  for (WeightFormat format : {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::q4_0,
                              WeightFormat::q4_1, WeightFormat::q5_0, WeightFormat::q5_1, WeightFormat::q8_0,
                              WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k}) {
    kinds.push_back({.format = format});
  }
  for (int bits : {2, 3, 4, 6, 8}) {
    kinds.push_back({.format = WeightFormat::affine, .bits = bits, .group_size = 32, .scale_dtype = DType::bf16});
    kinds.push_back({.format = WeightFormat::affine, .bits = bits, .group_size = 64, .scale_dtype = DType::f16});
    kinds.push_back({.format = WeightFormat::affine, .bits = bits, .group_size = 128, .scale_dtype = DType::f32});
  }
  return kinds;
}

// The bits of a float of magnitude in [size, 2 size) and random sign, as f16 where it is normal.
inline uint16_t random_half(std::mt19937& engine, int exponent) {
  return static_cast<uint16_t>((engine() & 0x8000U) | static_cast<uint32_t>(exponent + 15) << 10 | (engine() & 0x3ffU));
}

struct RandomWeight {
  std::vector<std::byte> data, scales, biases;  // exactly as long as the format says
  Weight weight;

  RandomWeight(const WeightKind& kind, int64_t rows, int64_t cols, uint32_t seed) {
    weight = {.format = kind.format,
              .rows = rows,
              .cols = cols,
              .scale_dtype = kind.scale_dtype,
              .bits = kind.bits,
              .group_size = kind.group_size};
    std::mt19937 engine(seed);
    data.resize(static_cast<size_t>(rows * weight.row_bytes()));
    for (std::byte& b : data) b = static_cast<std::byte>(engine() & 0xffU);
    weight.data = data.data();
    if (kind.format == WeightFormat::affine) {
      fill(scales, rows * cols / kind.group_size, kind.scale_dtype, engine, -3);
      fill(biases, rows * cols / kind.group_size, kind.scale_dtype, engine, 0);
      weight.scales = scales.data();
      weight.biases = biases.data();
    } else {
      set_scales(engine);
    }
  }
  RandomWeight(const RandomWeight&) = delete;
  RandomWeight& operator=(const RandomWeight&) = delete;

 private:
  static void put(std::byte* p, DType dtype, uint16_t half) {
    const float value = f16_to_float(half);
    if (dtype == DType::f32) std::memcpy(p, &value, 4);
    else if (dtype == DType::f16) std::memcpy(p, &half, 2);
    else {
      const bf16 rounded(value);
      std::memcpy(p, &rounded, 2);
    }
  }
  static void fill(std::vector<std::byte>& out, int64_t count, DType dtype, std::mt19937& engine, int exponent) {
    out.resize(static_cast<size_t>(count * size_of(dtype)));
    for (int64_t i = 0; i < count; ++i) put(out.data() + i * size_of(dtype), dtype, random_half(engine, exponent));
  }
  void set_scales(std::mt19937& engine) {
    const int64_t bytes = block_bytes(weight.format);
    for (int64_t at = 0; at + bytes <= static_cast<int64_t>(data.size()); at += bytes) {
      std::byte* block = data.data() + at;
      switch (weight.format) {
        case WeightFormat::f32: put(block, DType::f32, random_half(engine, -1)); break;
        case WeightFormat::f16: put(block, DType::f16, random_half(engine, -1)); break;
        case WeightFormat::bf16: put(block, DType::bf16, random_half(engine, -1)); break;
        case WeightFormat::q4_1:
        case WeightFormat::q5_1:
        case WeightFormat::q4_k:
        case WeightFormat::q5_k:
          put(block + 2, DType::f16, random_half(engine, block_cols(weight.format) == 32 ? 0 : -6));
          [[fallthrough]];
        case WeightFormat::q4_0:
        case WeightFormat::q5_0:
          put(block, DType::f16, random_half(engine, block_cols(weight.format) == 32 ? -3 : -9));
          break;
        case WeightFormat::q8_0: put(block, DType::f16, random_half(engine, -7)); break;
        default: put(block + 208, DType::f16, random_half(engine, -12)); break;  // q6_k
      }
    }
  }
};

}  // namespace sluice::test
