// How the linear layer's kernels cut their work. Nothing here changes a bit of a result: an element's value depends on its operands
// alone (ops/gemm/gemm.h), so cuts may follow the cache and the number of threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "core/context.h"
#include "core/weight.h"
#include "ops/gemm/gemm.h"

namespace sluice::linear_work {

constexpr int64_t panel_bytes = 4 << 20;     // of dequantised weight at a time: stays in L2/L3
constexpr int64_t max_block_cols = 512;      // a block of C, [row_chunk, 512] f32, is half of a 1 MiB L2
constexpr int64_t thin_rows = 128;           // rows of an item of the thin products x A^T and dy B
constexpr int64_t partial_bytes = 16 << 20;  // of partial sums of dA and dB at a time

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// [0, total) in pieces of `width`; the last may be shorter.
struct Cut {
  int64_t total, width;
  int64_t count() const { return ceil_div(total, width); }
  int64_t begin(int64_t i) const { return i * width; }
  int64_t size(int64_t i) const { return std::min(width, total - i * width); }
  std::array<int64_t, 2> sizes() const { return {size(0), size(count() - 1)}; }  // every size that occurs
};

// Columns in pieces of a multiple of `unit`, at most max_block_cols, so many that with `others` pieces of another kind there are
// two items for each thread.
inline Cut cut_columns(int64_t total, int64_t others, int threads, int64_t unit) {
  const int64_t pieces = std::max(ceil_div(total, max_block_cols), threads > 1 ? ceil_div(2 * threads, others) : 1);
  return {total, round_up(ceil_div(total, pieces), unit)};
}

// Whether the mapped bytes of a weight can be an operand as they are.
inline bool used_directly(const Weight& w, DType dtype) {
  const bool same = (w.format == WeightFormat::f32 && dtype == DType::f32) ||
                    (w.format == WeightFormat::bf16 && dtype == DType::bf16);
  return same && w.interleaved_head_dim == 0 &&
         reinterpret_cast<uintptr_t>(w.data) % static_cast<uintptr_t>(size_of(dtype)) == 0;
}

inline int64_t scratch_bytes(const Context& ctx, int64_t so_far, const Gemm& gemm) {
  return std::max(so_far, gemm_scratch_bytes(ctx, gemm));
}

// One piece of scratch for each thread.
class ThreadScratch {
 public:
  ThreadScratch(Context& ctx, int64_t bytes)
      : stride_(round_up(bytes, Arena::alignment)), base_(ctx.arena.bytes(stride_ * ctx.pool.num_threads())) {}
  std::byte* of(int worker) const { return base_ + worker * stride_; }
  template <class T>
  T* as(int worker) const {
    return reinterpret_cast<T*>(of(worker));
  }

 private:
  int64_t stride_;
  std::byte* base_;
};

}  // namespace sluice::linear_work
