// What the forward and the backward kernels share: the adapter in the operands' dtype, the dropout mask and the thin products
// x A^T and dy B. Include it after ops/common/cpu_simd.h: what is here is compiled for the instruction set of the pass.
#pragma once

#include <cmath>

#include "core/rng.h"
#include "ops/dora/dora.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_work.h"

namespace sluice::SLUICE_CPU {

namespace {

using namespace linear_work;

// The adapter in the operands' dtype. `factor` = scale / (1 - p) multiplies the thin products in f32 before they are rounded, so
// that neither the adapter's weights nor x are rounded for it.
template <class T>
struct Adapter {
  int64_t R, in, out;
  int64_t ld;  // of the thin products as they lie
  float factor;
  T* a = nullptr;           // [R, in]
  T* b = nullptr;           // [out, R]
  uint8_t* keep = nullptr;  // [N, in] 1 where dropout keeps, or null
  float* ratio = nullptr;   // [out] magnitude / norm, or null

  template <class Args>
  Adapter(Arena& arena, const Args& args, int64_t N)
      : R(args.lora_a.empty() ? 0 : args.lora_a.shape[0]),
        in(args.weight.cols),
        out(args.weight.rows),
        ld(xa_columns(R)),
        factor(args.scale / (1 - args.dropout.p)) {
    if (R == 0) return;
    a = arena.array<T>(R * in);
    b = arena.array<T>(out * R);
    if (args.dropout.p > 0) keep = arena.array<uint8_t>(N * in);
    if (!args.magnitude.empty()) ratio = arena.array<float>(out);
  }
};

template <class T>
void convert(int64_t count, const float* from, T* to) {
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(to + i, load(from + i));
  if (i < count) store_part(to + i, load_part(from + i, count - i), count - i);
}

// 64-bit products of the even 32-bit elements.
SLUICE_INLINE U32 multiply_even(U32 a, uint32_t b) {
#if defined(SLUICE_ISA_AVX512)
  // The unmasked form reads an undefined vector in GCC 12's header, which -Wmaybe-uninitialized reports.
  return (U32)_mm512_maskz_mul_epu32(0xff, (__m512i)a, _mm512_set1_epi32(static_cast<int>(b)));
#else
  return (U32)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi32(static_cast<int>(b)));
#endif
}

// The upper and the lower halves of a * b, element by element.
SLUICE_INLINE void multiply_wide(U32 a, uint32_t b, U32& high, U32& low) {
  using U64 = uint64_t __attribute__((vector_size(SLUICE_SIMD_BYTES)));
  const U64 even = (U64)multiply_even(a, b), odd = (U64)multiply_even((U32)((U64)a >> 32), b);
  high = (U32)((even >> 32) | (odd & 0xffffffff00000000ULL));
  low = (U32)((even & 0xffffffffULL) | (odd << 32));
}

// core/rng.h's philox for `lanes` consecutive blocks: 4 * lanes numbers as bytes, 1 where (number >> 8) >= threshold.
SLUICE_INLINE void draw_blocks(const Dropout& d, uint64_t block, uint32_t threshold, uint8_t* keep) {
  alignas(SLUICE_SIMD_BYTES) uint32_t low[lanes], high[lanes];
  for (int i = 0; i < lanes; ++i) {
    low[i] = static_cast<uint32_t>(block + static_cast<uint64_t>(i));
    high[i] = static_cast<uint32_t>((block + static_cast<uint64_t>(i)) >> 32);
  }
  U32 c0 = load_raw<U32>(low), c1 = load_raw<U32>(high);
  U32 c2 = U32{} + static_cast<uint32_t>(d.stream), c3 = U32{} + static_cast<uint32_t>(d.stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(d.seed), k1 = static_cast<uint32_t>(d.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    U32 high0, low0, high1, low1;
    multiply_wide(c0, 0xD2511F53U, high0, low0);
    multiply_wide(c2, 0xCD9E8D57U, high1, low1);
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9E3779B9U, k1 += 0xBB67AE85U;
  }
  const auto kept = [&](U32 words) { return (U32)((words >> 8) >= threshold) & 1U; };
  const U32 bytes = kept(c0) | kept(c1) << 8 | kept(c2) << 16 | kept(c3) << 24;
  std::memcpy(keep, &bytes, sizeof bytes);
}

void draw_row(const Dropout& d, int64_t in, int64_t row, uint8_t* keep) {
  const auto threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(d.p) * 0x1p24));
  const uint64_t begin = static_cast<uint64_t>(d.row_begin + row) * static_cast<uint64_t>(in);
  for (int64_t i = 0; i < in;) {
    const uint64_t index = begin + static_cast<uint64_t>(i);
    if (index % 4 == 0 && i + 4 * lanes <= in) {
      draw_blocks(d, index / 4, threshold, keep + i);
      i += 4 * lanes;
    } else {
      keep[i++] = (random_bits(d.seed, d.stream, index) >> 8) >= threshold;
    }
  }
}

// Fills a, b, keep and ratio.
template <class T, class Args>
void prepare(Context& ctx, const Args& args, int64_t N, const Adapter<T>& ad) {
  const float* a = args.lora_a.template as<float>();
  const float* b = args.lora_b.template as<float>();
  const Cut b_rows{ad.out, 256};
  ctx.pool.parallel_for(ad.R + b_rows.count(), [&](int64_t item, int) {
    if (item < ad.R) return convert(ad.in, a + item * ad.in, ad.a + item * ad.in);
    const int64_t first = b_rows.begin(item - ad.R) * ad.R;
    convert(b_rows.size(item - ad.R) * ad.R, b + first, ad.b + first);
  });
  for (int64_t o = 0; ad.ratio != nullptr && o < ad.out; ++o)
    ad.ratio[o] = magnitude_ratio(args.magnitude.template as<float>()[o], args.norm.template as<float>()[o]);
  if (ad.keep == nullptr) return;
  const Cut rows{N, 16};
  ctx.pool.parallel_for(rows.count(), [&](int64_t item, int) {
    for (int64_t n = rows.begin(item); n < rows.begin(item) + rows.size(item); ++n)
      draw_row(args.dropout, ad.in, n, ad.keep + n * ad.in);
  });
}

template <class T>
void select(int64_t count, const T* x, const uint8_t* keep, T* xd) {
  for (int64_t i = 0; i < count; ++i) xd[i] = keep[i] != 0 ? x[i] : T(0.0F);
}

// out = round(factor * x op(w)): x [N, k], out [N, R] with rows xa_columns(R) apart; w is A [R, k] (transposed) or B [k, R]. With `keep` x is masked first.
template <class T>
struct ThinProduct {
  int64_t N, k, R;
  bool transpose_w;
  float factor;

  int64_t item_rows;

  ThinProduct(const Context& ctx, int64_t N_, int64_t k_, int64_t R_, bool transpose_w_, float factor_)
      : N(N_),
        k(k_),
        R(R_),
        transpose_w(transpose_w_),
        factor(factor_),
        item_rows(std::clamp<int64_t>(round_up(ceil_div(N, ctx.pool.num_threads()), 16), 16, thin_rows)) {}

  Cut rows() const { return {N, item_rows}; }
  Gemm gemm(int64_t m) const {
    return {.m = m,
            .n = R,
            .k = k,
            .dtype = dtype_of<T>::value,
            .lda = k,
            .ldb = transpose_w ? k : R,
            .transpose_b = transpose_w,
            .ldc = R};
  }
  int64_t scratch(const Context& ctx, bool masked) const {
    int64_t bytes = 0;
    for (int64_t m : rows().sizes()) bytes = scratch_bytes(ctx, bytes, gemm(m));
    return bytes + c_bytes() + (masked ? masked_bytes() : 0);
  }
  void run_item(const Context& ctx, int64_t item, const T* x, const uint8_t* keep, const T* w, T* out,
                std::byte* at) const {
    const Cut cut = rows();
    const int64_t first = cut.begin(item), m = cut.size(item);
    auto* c = reinterpret_cast<float*>(at);
    at += c_bytes();
    Gemm g = gemm(m);
    g.a = x + first * k;
    if (keep != nullptr) {
      select(m * k, x + first * k, keep + first * k, reinterpret_cast<T*>(at));
      g.a = at;
      at += masked_bytes();
    }
    g.b = w;
    g.c = c;
    gemm_on_this_thread(ctx, g, at);
    for (int64_t i = 0; i < m; ++i) {
      T* const to = out + (first + i) * xa_columns(R);
      for (int64_t r = 0; r < R; r += lanes) {
        const int64_t count = std::min<int64_t>(lanes, R - r);
        store_part(to + r, load_part(c + i * R + r, count) * factor, count);
      }
    }
  }

 private:
  int64_t c_bytes() const { return round_up(item_rows * R * 4, 256); }
  int64_t masked_bytes() const { return round_up(item_rows * k * size_of(dtype_of<T>::value), 256); }
};

}  // namespace

}  // namespace sluice::SLUICE_CPU
