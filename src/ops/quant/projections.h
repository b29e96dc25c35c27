// The linear layers of a decoding step that read one x, in one pass over their weights.
//
//   x' = x, or with a norm x / sqrt(mean(x^2) + eps) * (offset + weight)
//   y_i (+)= x' W_iᵀ for each part i          with a gate y (+)= act(x' W_0ᵀ) * (x' W_1ᵀ)
//
// For few rows, as weight_matvec (ops/quant/quant.h). On CUDA neighbouring parts of one format go by one kernel, and the
// norm too where they lie in tiles. A row's result does not depend on the other rows. Deterministic.
#pragma once

#include <optional>
#include <vector>

#include "ops/activation/activation.h"
#include "ops/quant/quant.h"

namespace sluice {

struct Projections {
  struct Part {
    const Weight* weight;  // [out, in], out > 0
    Tensor y;              // [N, out] f32, by `write`; with a gate the first part's is what is written
  };
  struct Norm {
    Tensor weight;  // [in] f32, in; may be empty: factor 1
    float eps = 1e-6F, offset = 0;
  };
  Tensor x;  // [N, in] f32, in
  std::optional<Norm> norm;
  std::vector<Part> parts;  // with a gate two, of as many rows
  std::optional<Activation> gate;
  Write write = Write::set;
};
void projections(Context& ctx, const Projections& args);

// Whether a matrix lies as the tensor cores' kernel on CUDA (matvec_tiles.cuh) copies it. From the weight alone, so that
// all its products are of one kind.
inline bool lies_in_tiles(const Weight& w) {
  const auto lies_at = [](const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  if (w.cols == 0 || !lies_at(w.data, 16)) return false;
  switch (w.format) {
    case WeightFormat::q4_1:
    case WeightFormat::q4_k:
    case WeightFormat::q5_k:
    case WeightFormat::q6_k: return true;
    case WeightFormat::q4_0:
    case WeightFormat::q8_0: return w.cols % 64 == 0;
    case WeightFormat::affine:
      return (w.bits == 4 || w.bits == 8) && w.scale_dtype != DType::f32 && w.cols / w.group_size % 2 == 0 &&
             lies_at(w.scales, 4) && lies_at(w.biases, 4);
    default: return false;
  }
}
// How many matrices a kernel on CUDA takes together.
constexpr int most_parts_of_kernel = 3;

namespace cuda {
// Parts of one format, no more than most_parts_of_kernel, that all lie in tiles or none, then without a norm. x may be bf16, and y.
void projections(Context& ctx, const Projections& args);
}  // namespace cuda

}  // namespace sluice
