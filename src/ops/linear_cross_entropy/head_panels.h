// What the head's CPU kernels share: the vocabulary in panels and units, the weight as an operand of products, and the softmax over
// a unit. For the *_cpu.cpp files of this folder; include it after ops/common/cpu_simd.h.
//
// A unit is `unit_columns` of the vocabulary: each row keeps the maximum and the sum of exponentials of every unit. A panel
// is a run of units, as much of the weight as stays in cache; it is dequantised at once. Both depend on the
// weight's shape only, and so does the order of every sum.
#pragma once

#include "core/weight.h"
#include "ops/gemm/gemm.h"
#include "ops/quant/quant.h"

namespace sluice::SLUICE_CPU {
namespace {

constexpr int64_t unit_columns = 256;
constexpr int64_t panel_elements = int64_t{1} << 20;
// Rows are padded to a multiple of this, so that few shapes of products (and primitives) exist, whatever the batch.
constexpr int64_t row_granule = 16;

SLUICE_INLINE int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
SLUICE_INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
SLUICE_INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

struct Panels {
  int64_t V, C, width, count;
  int64_t begin(int64_t p) const { return p * width; }
  int64_t columns(int64_t p) const { return at_most(width, V - p * width); }
  int64_t units() const { return (V + unit_columns - 1) / unit_columns; }
};

SLUICE_INLINE Panels panels_of(const Weight& weight, int64_t elements = panel_elements) {
  const int64_t fits = elements / at_least(1, weight.cols) / unit_columns * unit_columns;
  const int64_t width = at_most(at_least(fits, unit_columns), round_up(weight.rows, unit_columns));
  return {.V = weight.rows, .C = weight.cols, .width = width, .count = (weight.rows + width - 1) / width};
}

// A product's rows and columns cut into tiles.
struct Tile {
  int64_t row, rows, col, cols;
};
struct Grid {
  int64_t rows, row_step, cols, col_step;
  int64_t across() const { return (cols + col_step - 1) / col_step; }
  int64_t count() const { return (rows + row_step - 1) / row_step * across(); }
  Tile at(int64_t i) const {
    const int64_t row = i / across() * row_step, col = i % across() * col_step;
    return {row, at_most(row_step, rows - row), col, at_most(col_step, cols - col)};
  }
};

// True when products may read the stored weight itself.
SLUICE_INLINE bool usable_in_place(const Weight& weight, DType dtype) {
  const bool same = (weight.format == WeightFormat::bf16 && dtype == DType::bf16) ||
                    (weight.format == WeightFormat::f32 && dtype == DType::f32);
  const bool aligned = reinterpret_cast<uintptr_t>(weight.data) % static_cast<uintptr_t>(size_of(dtype)) == 0;
  return same && aligned && weight.interleaved_head_dim == 0;
}

// Rows [begin, begin + count) of the weight into out [count, C], on the calling thread.
template <class T>
void dequantize_rows(const Context& ctx, const Weight& weight, int64_t begin, int64_t count, T* out) {
  static thread_local ThreadPool alone(1);
  Context here{.arena = ctx.arena, .pool = alone, .device = ctx.device, .isa = ctx.isa};
  SLUICE_CPU::dequantize(here, {.weight = weight, .row_begin = begin, .out = {out, dtype_of<T>::value, {count, weight.cols}}});
}

// A [m, k] with rows of `lda` elements, times W^T of a panel: z [m, n].
template <class T>
Gemm logits_product(int64_t m, int64_t n, int64_t C, const T* h, const T* w, float* z, int64_t ldz) {
  return {.m = m, .n = n, .k = C, .dtype = dtype_of<T>::value, .a = h, .lda = C, .b = w, .ldb = C, .transpose_b = true,
          .c_dtype = DType::f32, .c = z, .ldc = ldz};
}
// Coefficients [m, k] times a part of a panel [k, n]: dh [m, n].
template <class T>
Gemm gradient_product(int64_t m, int64_t n, int64_t k, int64_t C, const T* a, int64_t lda, const T* w, float* dh, Write write) {
  return {.m = m, .n = n, .k = k, .dtype = dtype_of<T>::value, .a = a, .lda = lda, .b = w, .ldb = C,
          .c_dtype = DType::f32, .c = dh, .ldc = C, .write = write};
}

// Rows of logits in memory: whole vectors, and an odd number of cache lines so that rows do not fall on one cache set.
SLUICE_INLINE int64_t logits_stride(int64_t columns) { return round_up(columns, 32) + 16; }

SLUICE_INLINE void cap_logits(float* z, int64_t count, float softcap) {
  const float inverse = 1.0F / softcap;
  for (int64_t c = 0; c < count; c += lanes) store(z + c, tanh(load(z + c) * inverse) * softcap);
}
// d l / d z of the soft cap; never below zero, so that a padding of -inf gives zero.
SLUICE_INLINE F32 cap_slope(F32 l, float inverse_softcap) {
  const F32 t = l * inverse_softcap;
  return max(1.0F - t * t, F32{});
}

// The logits z of one unit are capped and padded to whole vectors with -inf; the target's (when in this unit, else -1) is kept. Then the maximum and
// the sum of exp(l - max). Without a cap the exponentials replace the logits: they are all that the backward needs.
struct UnitSum {
  float max, sum;
};
SLUICE_INLINE UnitSum unit_sum(float* z, int64_t count, float softcap, int64_t target, float* target_logit) {
  if (softcap > 0) cap_logits(z, count, softcap);
  const int64_t whole = round_up(count, lanes);
  for (int64_t c = count; c < whole; ++c) z[c] = -__builtin_inff();
  if (target >= 0) *target_logit = z[target];
  F32 largest = load(z);
  for (int64_t c = lanes; c < whole; c += lanes) largest = max(load(z + c), largest);
  const float top = reduce_max(largest);
  F32 sum = {};
  for (int64_t c = 0; c < whole; c += lanes) {
    const F32 e = exp(load(z + c) - top);
    if (softcap == 0) store(z + c, e);
    sum = sum + e;
  }
  return {top, reduce_add(sum)};
}

SLUICE_INLINE void check_targets(const Tensor& targets, int64_t V) {
  for (int64_t m = 0; m < targets.shape[0]; ++m) SLUICE_ASSERT(targets.as<int32_t>()[m] >= 0 && targets.as<int32_t>()[m] < V);
}

// Rows of sums to their place, rounded once.
SLUICE_INLINE void store_rows(const Tensor& to, const float* from) {
  const int64_t count = to.numel();
  if (to.dtype == DType::f32) {
    __builtin_memcpy(to.data, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  bf16* out = to.as<bf16>();
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(out + i, load(from + i));
  if (i < count) store_part(out + i, load_part(from + i, count - i), count - i);
}

// All units of a row together: lse and logp. `max` is replaced by the factor that turns a unit's exp(l - max) into a probability.
// Both arrays have room for whole vectors.
SLUICE_INLINE void reduce_units(float* max, float* sum, int64_t units, float target_logit, float* lse, float* logp) {
  const int64_t whole = round_up(units, lanes);
  for (int64_t u = units; u < whole; ++u) max[u] = -__builtin_inff(), sum[u] = 0;
  F32 largest = load(max);
  for (int64_t u = lanes; u < whole; u += lanes) largest = SLUICE_CPU::max(load(max + u), largest);
  const float top = reduce_max(largest);
  double total = 0;
  for (int64_t u = 0; u < whole; u += lanes) {
    const F32 weight = exp(load(max + u) - top);
    float part[lanes];
    store(part, weight * load(sum + u));
    store(max + u, weight);
    for (int i = 0; i < lanes; ++i) total += static_cast<double>(part[i]);
  }
  const double exact = static_cast<double>(top) + __builtin_log(total);
  const double target = static_cast<double>(target_logit) - exact;
  *lse = static_cast<float>(exact);
  *logp = static_cast<float>(target > 0 ? 0.0 : target);  // rounding of the sum could leave it above zero
  const float inverse = static_cast<float>(1.0 / total);
  for (int64_t u = 0; u < whole; u += lanes) store(max + u, load(max + u) * inverse);
}

}  // namespace

// logp and lse of all rows without a gradient: by_blocks, and by_rows for evaluation.
void log_probabilities(Context& ctx, const LinearCrossEntropyByBlocks& args);

}  // namespace sluice::SLUICE_CPU
