// The specification of the linear layer with LoRA as plain loops. T is float, double or std::complex<double>.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::ref {

struct Exact {
  template <class T>
  T operator()(T value) const {
    return value;
  }
};

// weight [out, in], lora_a [R, in], lora_b [out, R], row-major; R may be 0. `keep` [N, in] is 1 where dropout keeps an
// element, 0 elsewhere. The norm is a constant of the backward. `Round` is what storing a thin product in the operands' dtype does to it.
template <class T, class Round = Exact>
struct Linear {
  int64_t N, in, out;
  const T* weight;
  int64_t R = 0;
  const T *lora_a = nullptr, *lora_b = nullptr;
  double scale = 1, dropout_p = 0;
  const int* keep = nullptr;                      // null: all
  const T *magnitude = nullptr, *norm = nullptr;  // [out] both, or null: no DoRA
  Round round = {};

  T dropped(const T* x, int64_t n, int64_t i) const {
    if (keep != nullptr && keep[n * in + i] == 0) return T(0);
    return x[n * in + i] / T(1 - dropout_p);
  }

  // scale * dropout(x) A^T, one row
  std::vector<T> xa(const T* x, int64_t n) const {
    std::vector<T> low(static_cast<size_t>(R));
    for (int64_t r = 0; r < R; ++r) {
      T sum = 0;
      for (int64_t i = 0; i < in; ++i) sum += dropped(x, n, i) * lora_a[r * in + i];
      low[static_cast<size_t>(r)] = round(T(scale) * sum);
    }
    return low;
  }

  // scale * dy B, one row
  std::vector<T> dyb(const T* dy, int64_t n) const {
    std::vector<T> low(static_cast<size_t>(R));
    for (int64_t r = 0; r < R; ++r) {
      T sum = 0;
      for (int64_t o = 0; o < out; ++o) sum += dy[n * out + o] * lora_b[o * R + r];
      low[static_cast<size_t>(r)] = round(T(scale) * sum);
    }
    return low;
  }

  // x W^T + low B^T, one element
  T adapted(const T* x, int64_t n, int64_t o, const std::vector<T>& low) const {
    T sum = 0;
    for (int64_t i = 0; i < in; ++i) sum += x[n * in + i] * weight[o * in + i];
    for (int64_t r = 0; r < R; ++r) sum += low[static_cast<size_t>(r)] * lora_b[o * R + r];
    return sum;
  }

  // bias [out] and residual [N, out] may be null
  void forward(const T* x, const T* bias, const T* residual, T* y) const {
    for (int64_t n = 0; n < N; ++n) {
      const std::vector<T> low = xa(x, n);
      for (int64_t o = 0; o < out; ++o) {
        T sum = adapted(x, n, o, low);
        if (magnitude != nullptr) sum *= magnitude[o] / norm[o];
        if (bias != nullptr) sum += bias[o];
        if (residual != nullptr) sum += residual[n * out + o];
        y[n * out + o] = sum;
      }
    }
  }

  // Adds to dm [out] and gives dy' = (magnitude / norm) dy.
  std::vector<T> magnitude_backward(const T* x, const T* dy, T* dm) const {
    std::vector<T> scaled(static_cast<size_t>(N * out));
    for (int64_t n = 0; n < N; ++n) {
      const std::vector<T> low = xa(x, n);
      for (int64_t o = 0; o < out; ++o) {
        dm[o] += dy[n * out + o] * round(adapted(x, n, o, low)) / norm[o];
        scaled[static_cast<size_t>(n * out + o)] = round(magnitude[o] / norm[o] * dy[n * out + o]);
      }
    }
    return scaled;
  }

  // dx is overwritten; da and db are added to. With a magnitude dy is what magnitude_backward gave.
  void backward(const T* x, const T* dy, T* dx, T* da, T* db) const {
    for (int64_t n = 0; n < N; ++n) {
      const std::vector<T> low_x = xa(x, n), low_dy = dyb(dy, n);
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t i = 0; i < in; ++i) da[r * in + i] += low_dy[static_cast<size_t>(r)] * dropped(x, n, i);
        for (int64_t o = 0; o < out; ++o) db[o * R + r] += dy[n * out + o] * low_x[static_cast<size_t>(r)];
      }
      for (int64_t i = 0; i < in; ++i) {
        T sum = 0, low = 0;
        for (int64_t o = 0; o < out; ++o) sum += dy[n * out + o] * weight[o * in + i];
        for (int64_t r = 0; r < R; ++r) low += low_dy[static_cast<size_t>(r)] * lora_a[r * in + i];
        if (keep == nullptr || keep[n * in + i] != 0) sum += low / T(1 - dropout_p);
        dx[n * in + i] = sum;
      }
    }
  }
};

}  // namespace sluice::ref
