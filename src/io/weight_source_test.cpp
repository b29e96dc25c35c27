#include "io/weight_source.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "support/close.h"
#include "support/oracle.h"

namespace sluice {
namespace {

using test::Oracle;
using test::oracle_dir;
namespace fs = std::filesystem;

// Element [row, col] as core/weight.h and the oracle's README say it, without our kernels.
double element(const Weight& w, int64_t row, int64_t col) {
  auto at = [](const std::byte* p, DType dtype, int64_t i) {
    uint32_t bits = 0;
    std::memcpy(&bits, p + i * size_of(dtype), static_cast<size_t>(size_of(dtype)));
    if (dtype == DType::f32) return std::bit_cast<float>(bits);
    if (dtype == DType::f16) return f16_to_float(static_cast<uint16_t>(bits));
    return std::bit_cast<float>(bits << 16);
  };
  if (w.format != WeightFormat::affine) {
    const DType dtype = w.format == WeightFormat::f32   ? DType::f32
                        : w.format == WeightFormat::f16 ? DType::f16
                                                        : DType::bf16;
    return at(w.data, dtype, row * w.cols + col);
  }
  const int64_t per_word = 32 / w.bits;
  uint32_t word = 0;
  std::memcpy(&word, w.data + row * w.row_bytes() + col / per_word * 4, 4);
  const uint32_t code = (word >> (col % per_word * w.bits)) & ((1U << w.bits) - 1);
  const int64_t group = row * (w.cols / w.group_size) + col / w.group_size;
  return double{at(w.scales, w.scale_dtype, group)} * code + double{at(w.biases, w.scale_dtype, group)};
}

}  // namespace

TEST_CASE("open_model: every tensor of every oracle model reads as an independent reader has it") {
  int models = 0;
  for (const auto& folder : fs::directory_iterator(oracle_dir())) {
    if (!fs::exists(folder.path() / "model.safetensors")) continue;
    CAPTURE(folder.path().string());
    ++models;
    const auto source = open_model(folder.path().string());
    const auto tensors = test::load_oracle_tensors(folder.path() / "model.safetensors");
    for (const std::string& name : source->names()) {
      CAPTURE(name);
      const auto weight = source->find(name);
      REQUIRE(weight);
      if (weight->format == WeightFormat::affine) continue;
      const auto& expected = tensors.at(name);
      CHECK(*source->shape(name) == expected.shape);
      REQUIRE(weight->rows * weight->cols == static_cast<int64_t>(expected.values.size()));
      for (int64_t i : {int64_t{0}, weight->rows * weight->cols - 1}) {
        CHECK(element(*weight, i / weight->cols, i % weight->cols) == expected.values[static_cast<size_t>(i)]);
      }
      if (expected.shape.size() == 1) CHECK(test::to_double(source->read_vector(name)) == expected.values);
    }
    CHECK_FALSE(source->find("no.such.tensor"));
  }
  CHECK(models >= 18);
}

TEST_CASE("open_model: an affine module dequantises to the oracle's matrix") {
  for (const char* folder : {"llama-gqa-q4g32", "llama-gqa-q4g64", "llama-gqa-q8g64", "llama-gqa-mixed",
                             "minicpm5-like-q4g32", "gemma4-e4b-like-q4g64", "gemma4-e4b-like-mixed"}) {
    CAPTURE(folder);
    const Oracle oracle(folder);
    const auto source = open_model(oracle.path().string());
    CHECK(source->kind() == SourceKind::mlx);
    std::string name;
    for (const std::string& candidate : source->names()) {
      if (candidate.ends_with("layers.0.mlp.down_proj.weight")) name = candidate;
    }
    const Weight weight = source->need(name);
    REQUIRE(weight.format == WeightFormat::affine);
    const auto& expected = oracle.tensor("dequant/layers.0.mlp.down_proj");
    REQUIRE(expected.shape == std::vector<int64_t>{weight.rows, weight.cols});
    double worst = 0;
    for (int64_t i = 0; i < weight.rows * weight.cols; ++i) {
      worst = std::max(
          worst, std::abs(element(weight, i / weight.cols, i % weight.cols) - expected.values[static_cast<size_t>(i)]));
    }
    CHECK(worst < 1e-7);  // the oracle's values are stored in F32
  }
}

}  // namespace sluice
