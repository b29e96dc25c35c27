// What attention's forward kernels on tensor cores share: the blocks of keys that a tile of queries walks, and the softmax of a block.
//
// A tile walks the blocks of keys that it may see in ascending order. Scores lie in registers as mma.sync and wgmma leave them: a thread holds two
// rows, and in s[4 j + e] column 8 j + 2 (t % 4) + e % 2 of row e / 2.
//
// Bits do not depend on the tiles: a block that a row does not see at all leaves the row's maximum, sum (+ 0) and output (x 1, + 0 v) as
// they are.
#pragma once

#include <cmath>

#include "ops/attention/attention_mask.cuh"
#include "ops/common/cuda_utils.cuh"
#include "ops/common/sm90.cuh"

namespace sluice::cuda {

// A block of keys on a tile's walk.
struct KeyBlock {
  int32_t code;  // index, masked, last
  __device__ int32_t index() const { return code >> 2; }
  __device__ bool masked() const { return (code & 2) != 0; }
  __device__ bool last() const { return (code & 1) != 0; }
};

// The walk of a tile whose queries are the tokens [first, last], by a whole warp. plain: the mask is of a single root.
template <int keys, bool plain>
class KeyBlocks {
 public:
  __device__ KeyBlocks(const AttentionMask& mask, int32_t first, int32_t last)
      : mask_(mask), first_(first), last_(last), end_(last / keys + 1) {
    if (plain || mask_.single) {
      next_ = max(0, first_ - mask_.window + 1) / keys;
    } else {
      range_ = range_of_tokens(mask_, first_, last_ - first_ + 1);
      scan();
    }
  }
  // Not after the last.
  __device__ KeyBlock next() {
    if (plain || mask_.single) {
      const int32_t b = next_++, begin = b * keys;
      const bool all = begin + keys - 1 <= first_ && last_ - begin < mask_.window;
      return {b << 2 | (all ? 0 : 2) | (next_ == end_ ? 1 : 0)};
    }
    const int32_t bit = __ffs(static_cast<int>(seen_)) - 1, b = next_ - 32 + bit;
    const bool all = (all_ >> bit & 1) != 0;
    seen_ &= seen_ - 1;
    if (seen_ == 0) scan();
    return {b << 2 | (all ? 0 : 2) | (seen_ == 0 ? 1 : 0)};
  }

 private:
  __device__ void scan() {
    while (seen_ == 0 && next_ < end_) {
      const int32_t b = next_ + static_cast<int32_t>(threadIdx.x % 32);
      const Sight sight = b < end_ ? mask_.sight(range_, blocks_around(mask_, b * keys, keys)) : Sight::none;
      seen_ = __ballot_sync(0xffffffffU, sight != Sight::none);
      all_ = __ballot_sync(0xffffffffU, sight == Sight::all);
      next_ += 32;
    }
  }

  const AttentionMask& mask_;
  BlockMask range_;              // of the queries
  int32_t first_, last_;         // query tokens
  int32_t end_, next_ = 0;       // blocks
  uint32_t seen_ = 0, all_ = 0;  // of the 32 blocks before next_
};

constexpr float minus_infinity = -INFINITY;
constexpr float log2_e = 1.44269504F, ln_2 = 0.693147181F;

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Hidden scores become -inf. plain: the mask is of a single root.
template <bool plain, int count>
__device__ __forceinline__ void hide_scores(float (&s)[count], const AttentionMask& mask, const TokenMask (&query)[2],
                                            int32_t first_key) {
  const int32_t column = first_key + 2 * static_cast<int32_t>(threadIdx.x % 4);
  if (plain || mask.single) {
    const auto window = static_cast<uint32_t>(mask.window);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int32_t distance = query[row].position - column;
#pragma unroll
      for (int j = 0; j < count / 4; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * row + e];
          x = static_cast<uint32_t>(distance - (8 * j + e)) < window ? x : minus_infinity;
        }
      }
    }
  } else {
#pragma unroll
    for (int j = 0; j < count / 4; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const TokenMask key = mask.token(column + 8 * j + e);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          float& x = s[4 * j + 2 * row + e];
          x = mask.sees(query[row], key) ? x : minus_infinity;
        }
      }
    }
  }
}

template <int count>
__device__ __forceinline__ void cap_scores(float (&s)[count], float scale, float softcap) {
#pragma unroll
  for (int i = 0; i < count; ++i) s[i] = softcap * tanhf(s[i] * scale / softcap);
}

// The softmax of a thread's two rows. Exponentials are exp2(c s - base), base = c top; `top` is the maximum so far, or less than it by at
// most lazy / c: the output is rescaled only when it must be.
struct SoftmaxRows {
  static constexpr float lazy = 8;
  float top[2] = {minus_infinity, minus_infinity};
  float sum[2] = {0, 0};  // of this thread's columns
  float base[2] = {0, 0};
  float factor[2] = {1, 1};  // what the output must take before the next block is added

  // The maxima of a block, over the four threads of a row.
  template <int count>
  __device__ __forceinline__ static void maxima(const float (&s)[count], float (&most)[2]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float a = s[2 * row], b = s[2 * row + 1];
#pragma unroll
      for (int j = 1; j < count / 4; ++j) {
        a = fmaxf(a, s[4 * j + 2 * row]);
        b = fmaxf(b, s[4 * j + 2 * row + 1]);
      }
      a = fmaxf(a, b);
      a = fmaxf(a, __shfl_xor_sync(0xffffffffU, a, 1));
      most[row] = fmaxf(a, __shfl_xor_sync(0xffffffffU, a, 2));
    }
  }
  __device__ __forceinline__ void raise(const float (&most)[2], float c) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float raised = fmaxf(top[row], most[row]);
      const bool keep = (raised - top[row]) * c <= lazy;
      const float before = __fmul_rn(top[row], c);  // not fused with the subtraction: the base that was used
      top[row] = keep ? top[row] : raised;
      base[row] = top[row] == minus_infinity ? 0.0F : __fmul_rn(top[row], c);
      factor[row] = keep ? 1.0F : exp2_approx(before - base[row]);
      sum[row] = __fmul_rn(sum[row], factor[row]);  // never fused with a sum: the bits of every block's code must agree
    }
  }
  // Columns 8 first_j … 8 end_j - 1 become exponentials.
  template <int first_j, int end_j, int count>
  __device__ __forceinline__ void exponentials(float (&s)[count], float c) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float a = 0, b = 0;
#pragma unroll
      for (int j = first_j; j < end_j; ++j) {
        float &x = s[4 * j + 2 * row], &y = s[4 * j + 2 * row + 1];
        x = exp2_approx(fmaf(x, c, -base[row]));
        y = exp2_approx(fmaf(y, c, -base[row]));
        a += x, b += y;
      }
      sum[row] = __fadd_rn(sum[row], a + b);
    }
  }
  template <int count>
  __device__ __forceinline__ void rescale(float (&o)[count]) {
    if (__any_sync(0xffffffffU, factor[0] != 1.0F || factor[1] != 1.0F)) {
#pragma unroll
      for (int i = 0; i < count; ++i) o[i] *= factor[i / 2 % 2];
    }
  }
  __device__ __forceinline__ static float over_row(float x) {
    x += __shfl_xor_sync(0xffffffffU, x, 1);
    return x + __shfl_xor_sync(0xffffffffU, x, 2);
  }
  // total: the row's sum. scale: of the scores as they were given to maxima().
  __device__ __forceinline__ float lse(int row, float total, float scale, float c) const {
    const float rest = fmaf(top[row], c, -base[row]);  // base is rounded
    return fmaf(top[row], scale, logf(total) - rest * ln_2);
  }
};

// Scores (exponentials) of a block as operand A of the next product.
template <int steps>
__device__ __forceinline__ void pack_operand(const float (&s)[steps * 8], uint32_t (&p)[steps][4]) {
#pragma unroll
  for (int k = 0; k < steps; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}
// Row `row` (0 or 1) of an accumulator, times `factor`, to `to` (the row's first column): four threads exchange 4 x 4 pairs so that each
// writes 16 bytes; what is left of 32 columns goes by 4 bytes. `to` may be null: nothing is written.
template <int count>
__device__ __forceinline__ void store_row(const float (&o)[count], int row, float factor, __nv_bfloat16* to) {
  const uint32_t lane = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < count / 16; ++i) {
    uint32_t u[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      u[j] = pack_bf16(o[16 * i + 4 * j + 2 * row] * factor, o[16 * i + 4 * j + 2 * row + 1] * factor);
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const uint32_t other = __shfl_xor_sync(0xffffffffU, lane & 1 ? u[j] : u[j + 1], 1);
      u[j] = lane & 1 ? other : u[j];
      u[j + 1] = lane & 1 ? u[j + 1] : other;
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t other = __shfl_xor_sync(0xffffffffU, lane & 2 ? u[j] : u[j + 2], 2);
      u[j] = lane & 2 ? other : u[j];
      u[j + 2] = lane & 2 ? u[j + 2] : other;
    }
    if (to != nullptr) *reinterpret_cast<uint4*>(to + 32 * i + 8 * lane) = make_uint4(u[0], u[1], u[2], u[3]);
  }
#pragma unroll
  for (int j = count / 16 * 4; j < count / 4; ++j) {
    if (to != nullptr)
      *reinterpret_cast<uint32_t*>(to + 8 * j + 2 * lane) =
          pack_bf16(o[4 * j + 2 * row] * factor, o[4 * j + 2 * row + 1] * factor);
  }
}

}  // namespace sluice::cuda
