// A tensor is a view: a pointer, a dtype and a row-major, contiguous shape. It owns nothing.
//
//   Tensor x = arena.tensor(DType::bf16, {N, C});
//   Tensor tile = x.rows(begin, count);          // [count, C], shares memory
//   float* p = lse.as<float>();                  // asserts the dtype
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace sluice {

class Shape {
 public:
  static constexpr int max_rank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) {
    SLUICE_ASSERT(extents.size() <= max_rank);
    for (int64_t extent : extents) extents_[rank_++] = extent;
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const {
    SLUICE_ASSERT(i >= 0 && i < rank_);
    return extents_[i];
  }
  int64_t& operator[](int i) {
    SLUICE_ASSERT(i >= 0 && i < rank_);
    return extents_[i];
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= extents_[i];
    return n;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, max_rank> extents_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "[4, 128]"

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  bool empty() const { return data == nullptr; }
  int64_t numel() const { return empty() ? 0 : shape.numel(); }
  int64_t size_bytes() const { return numel() * size_of(dtype); }

  template <class T>
  T* as() const {
    SLUICE_ASSERT(empty() || dtype == dtype_of<T>::value);
    return static_cast<T*>(data);
  }

  // Rows [begin, begin + count) of the outermost dimension.
  Tensor rows(int64_t begin, int64_t count) const {
    SLUICE_ASSERT(begin >= 0 && count >= 0 && begin + count <= shape[0]);
    Tensor part = *this;
    if (shape[0] > 0 && !empty()) {
      part.data = static_cast<std::byte*>(data) + begin * (shape.numel() / shape[0]) * size_of(dtype);
    }
    part.shape[0] = count;
    return part;
  }
};

}  // namespace sluice
