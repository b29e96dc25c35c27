// What the head's CPU kernels share: the vocabulary in panels and units, the weight as an operand of products, and the
// softmax over a unit. For the *_cpu.cpp files of this folder; include it after <immintrin.h> and
// ops/common/cpu_simd.h.
//
// A unit is `unit_columns` of the vocabulary: each row keeps the maximum and the sum of exponentials of every unit. A
// panel is a run of units, as much of the weight as stays in cache; it is dequantised at once. Both depend on the
// weight's shape only, and so does the order of every sum.
#pragma once

#include "core/weight.h"
#include "ops/gemm/gemm.h"
#include "ops/quant/quant.h"

namespace sluice::SLUICE_CPU {
namespace {

constexpr int64_t unit_columns = 256;
constexpr int64_t panel_elements = int64_t{1} << 20;
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
  SLUICE_CPU::dequantize(
      here, {.weight = weight, .row_begin = begin, .out = {out, dtype_of<T>::value, {count, weight.cols}}});
}

// Operands are packed: products read those in place (ops/gemm/gemm.h).  z [m, n] = h [m, C] W^T, of n rows of the
// weight.
template <class T>
Gemm logits_product(int64_t m, int64_t n, int64_t C, const T* h, const T* w, float* z) {
  return {.m = m,
          .n = n,
          .k = C,
          .dtype = dtype_of<T>::value,
          .a = h,
          .lda = C,
          .b = w,
          .ldb = C,
          .transpose_b = true,
          .c_dtype = DType::f32,
          .c = z,
          .ldc = n};
}
// dh [m, n] (+)= coefficients [m, k] W [k, n]; w and dh have rows of C.
template <class T>
Gemm gradient_product(int64_t m, int64_t n, int64_t k, int64_t C, const T* coefficients, const T* w, float* dh,
                      Write write) {
  return {.m = m,
          .n = n,
          .k = k,
          .dtype = dtype_of<T>::value,
          .a = coefficients,
          .lda = k,
          .b = w,
          .ldb = C,
          .c_dtype = DType::f32,
          .c = dh,
          .ldc = C,
          .write = write};
}

// The lanes that lie beyond `count` are -inf: a token of probability zero.
SLUICE_INLINE F32 load_logits(const float* z, int64_t count) {
  if (count >= lanes) return load(z);
  float part[lanes];
  for (int64_t i = 0; i < lanes; ++i) part[i] = i < count ? z[i] : -__builtin_inff();
  return load(part);
}

SLUICE_INLINE void cap_logits(float* z, int64_t count, float softcap) {
  const float inverse = 1.0F / softcap;
  int64_t c = 0;
  for (; c + lanes <= count; c += lanes) store(z + c, tanh(load(z + c) * inverse) * softcap);
  if (c < count) store_part(z + c, tanh(load_part(z + c, count - c) * inverse) * softcap, count - c);
}
// dl/dz of the soft cap (1 without: inverse_softcap 0); never below zero, so that l = -inf gives zero.
SLUICE_INLINE F32 cap_slope(F32 l, float inverse_softcap) {
  const F32 t = l * inverse_softcap;
  return max(1.0F - t * t, F32{});
}

// Half precision for what is between 0 and 1.
struct Half {
  uint16_t bits;
};
#if defined(SLUICE_ISA_AVX512)
// Masked with a full mask: the plain forms make GCC 12 warn (GCC bug 105593).
SLUICE_INLINE void store(Half* p, F32 v) {
  const __m256i h = _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(p, &h, sizeof h);
}
SLUICE_INLINE F32 load(const Half* p) { return (F32)_mm512_maskz_cvtph_ps(0xffff, load_raw<__m256i>(p)); }
#else
SLUICE_INLINE void store(Half* p, F32 v) {
  const __m128i h = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(p, &h, sizeof h);
}
SLUICE_INLINE F32 load(const Half* p) { return (F32)_mm256_cvtph_ps(load_raw<__m128i>(p)); }
#endif

// The maximum of the logits l of one unit and the sum of exp(l - max). `keep` (whole vectors, may be null) receives
// exp(l - max) dl/dz: a coefficient but for a factor that is known when lse is.
struct UnitSum {
  float max, sum;
};
template <class Kept>
SLUICE_INLINE UnitSum unit_sum(const float* l, int64_t count, float inverse_cap, Kept* keep) {
  F32 largest = load_logits(l, count);
  for (int64_t c = lanes; c < count; c += lanes) largest = max(load_logits(l + c, count - c), largest);
  const float top = reduce_max(largest);
  F32 sum = {};
  for (int64_t c = 0; c < count; c += lanes) {
    const F32 v = load_logits(l + c, count - c), e = exp(v - top);
    if (keep != nullptr) store(keep + c, inverse_cap > 0 ? e * cap_slope(v, inverse_cap) : e);
    sum = sum + e;
  }
  return {top, reduce_add(sum)};
}

// What each row keeps of its logits: maximum and sum of every unit, the target's logit and its dl/dz.
struct UnitSums {
  int64_t stride;                            // of max and sum: units, rounded up to whole vectors
  float *max, *sum, *target, *target_slope;  // [rows, stride], [rows, stride], [rows], [rows]
};
SLUICE_INLINE UnitSums make_unit_sums(Arena& arena, int64_t rows, const Panels& panels) {
  const int64_t stride = round_up(panels.units(), 16);
  return {stride, arena.array<float>(rows * stride), arena.array<float>(rows * stride), arena.array<float>(rows),
          arena.array<float>(rows)};
}

// A row's logits z of the columns [begin, begin + count): whole units, but for the end of the vocabulary.
template <class Kept>
SLUICE_INLINE void reduce_logits(float* z, int64_t begin, int64_t count, float softcap, int64_t target, int64_t row,
                                 const UnitSums& to, Kept* keep) {
  const float inverse_cap = softcap > 0 ? 1.0F / softcap : 0.0F;
  if (softcap > 0) cap_logits(z, count, softcap);
  if (target >= begin && target < begin + count) {
    to.target[row] = z[target - begin];
    to.target_slope[row] = cap_slope(splat(z[target - begin]), inverse_cap)[0];
  }
  for (int64_t u = 0; u < count; u += unit_columns) {
    const UnitSum s =
        unit_sum(z + u, at_most(unit_columns, count - u), inverse_cap, keep != nullptr ? keep + u : nullptr);
    to.max[row * to.stride + (begin + u) / unit_columns] = s.max;
    to.sum[row * to.stride + (begin + u) / unit_columns] = s.sum;
  }
}

SLUICE_INLINE void check_targets(const Tensor& targets, int64_t V) {
  for (int64_t m = 0; m < targets.shape[0]; ++m)
    SLUICE_ASSERT(targets.as<int32_t>()[m] >= 0 && targets.as<int32_t>()[m] < V);
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

// Where the results of a row go; hit may be null.
struct RowResults {
  float *lse, *logp, *hit;
};
SLUICE_INLINE RowResults results_of(const Tensor& lse, const Tensor& logp, const Tensor& hit, int64_t row) {
  return {lse.as<float>() + row, logp.as<float>() + row, hit.empty() ? nullptr : hit.as<float>() + row};
}

// All units of a row together: lse, logp and hit. The maxima are replaced by the factor that turns a unit's exp(z - max)
// into a probability.
SLUICE_INLINE void finish_row(const UnitSums& units, int64_t num_units, int64_t row, const RowResults& to) {
  float *max = units.max + row * units.stride, *sum = units.sum + row * units.stride;
  for (int64_t u = num_units; u < units.stride; ++u) max[u] = -__builtin_inff(), sum[u] = 0;
  F32 largest = load(max);
  for (int64_t u = lanes; u < units.stride; u += lanes) largest = SLUICE_CPU::max(load(max + u), largest);
  const float top = reduce_max(largest);
  double total = 0;
  for (int64_t u = 0; u < units.stride; u += lanes) {
    const F32 weight = exp(load(max + u) - top);
    float part[lanes];
    store(part, weight * load(sum + u));
    store(max + u, weight);
    for (int i = 0; i < lanes; ++i) total += static_cast<double>(part[i]);
  }
  const double exact = static_cast<double>(top) + __builtin_log(total);
  const double target = static_cast<double>(units.target[row]) - exact;
  *to.lse = static_cast<float>(exact);
  *to.logp = static_cast<float>(target > 0 ? 0.0 : target);  // rounding of the sum could leave it above zero
  if (to.hit != nullptr) *to.hit = units.target[row] >= top ? 1.0F : 0.0F;
  const float inverse = static_cast<float>(1.0 / total);
  for (int64_t u = 0; u < units.stride; u += lanes) store(max + u, load(max + u) * inverse);
}

}  // namespace

// logp and lse of all rows without a gradient: by_blocks, and by_rows for evaluation.
void log_probabilities(Context& ctx, const LinearCrossEntropyByBlocks& args);

}  // namespace sluice::SLUICE_CPU
