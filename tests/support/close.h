// How near is near enough: tolerances are measured, never typed by hand.
//
//   check_close(result, exact, plain);   // |result - exact| <= 2 |plain - exact| + rounding, as relative L2 norms and at worst
//
// `exact` is the reference in double, `plain` the same reference as plain loops in the precision under test (float, or float with
// inputs and outputs rounded to bf16).
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"

namespace sluice::test {

inline std::vector<double> to_double(const Tensor& t) {
  std::vector<double> values(static_cast<size_t>(t.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = t.dtype == DType::bf16 ? static_cast<double>(static_cast<float>(static_cast<bf16*>(t.data)[i]))
                                       : static_cast<double>(static_cast<float*>(t.data)[i]);
  }
  return values;
}

template <class T>
std::vector<double> to_double(const std::vector<T>& values) {
  std::vector<double> out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = static_cast<double>(static_cast<float>(values[i]));
  return out;
}
inline std::vector<double> to_double(const std::vector<double>& values) { return values; }

inline double l2(const std::vector<double>& v) {
  double sum = 0;
  for (double x : v) sum += x * x;
  return std::sqrt(sum);
}

inline double relative_l2(const std::vector<double>& a, const std::vector<double>& exact) {
  REQUIRE(a.size() == exact.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - exact[i]) * (a[i] - exact[i]);
  const double norm = l2(exact);
  return norm > 0 ? std::sqrt(sum) / norm : std::sqrt(sum);
}

inline double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);  // a NaN is kept
  }
  return worst;
}

// Rounding: one unit of the output's own dtype, in the same norm, and what the hardware's own sums add to it.
inline void check_close(const std::vector<double>& result, const std::vector<double>& exact,
                        const std::vector<double>& plain, DType out_dtype, double of_hardware = 0) {
  const double unit = (out_dtype == DType::bf16 ? 0x1p-8 : 0x1p-22) + of_hardware;
  const double bound_l2 = 2 * relative_l2(plain, exact) + unit;
  CHECK(relative_l2(result, exact) <= bound_l2);
  double largest = 0;
  for (double x : exact) largest = std::max(largest, std::abs(x));
  CHECK(max_difference(result, exact) <= 2 * max_difference(plain, exact) + 2 * unit * largest);
}

// Values that bf16 holds exactly, so that every precision starts from the same input. Normal, times `scale`.
inline std::vector<float> random_values(size_t count, uint32_t seed, float scale = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(bf16(normal(engine)));
  return values;
}

// A tensor over its own memory.
struct Buffer {
  std::vector<std::byte> memory;
  Tensor tensor;
  Buffer(DType dtype, Shape shape) : memory(static_cast<size_t>(shape.numel() * size_of(dtype)) + 64) {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    tensor = {.data = memory.data() + (64 - address % 64) % 64, .dtype = dtype, .shape = shape};
  }
  Buffer(DType dtype, Shape shape, const std::vector<float>& values) : Buffer(dtype, shape) {
    REQUIRE(static_cast<int64_t>(values.size()) == shape.numel());
    for (size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::bf16) static_cast<bf16*>(tensor.data)[i] = bf16(values[i]);
      else static_cast<float*>(tensor.data)[i] = values[i];
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  operator Tensor() const { return tensor; }
};

inline void fill(const Tensor& t, float value) {
  for (int64_t i = 0; i < t.numel(); ++i) {
    if (t.dtype == DType::bf16) static_cast<bf16*>(t.data)[i] = bf16(value);
    else static_cast<float*>(t.data)[i] = value;
  }
}

}  // namespace sluice::test
