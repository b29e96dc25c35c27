// What the portable kernels of attention_backward share: a pair's P and dS, and the products of tiles in scratch.
#pragma once

#include "ops/attention/attention_backward.cuh"
#include "ops/attention/attention_portable.cuh"
#include "ops/attention/attention_softmax.cuh"

namespace sluice::cuda {

constexpr int portable_threads = 32 * portable_warps;
static_assert(backward_block == 128 && portable_warps == 4);

// A pair's score s = q . k and dp = dO . v become P and dS in up to three passes, each over all of a thread's pairs, so that the last, which every
// pair takes, has no branch. First, with a softcap: s becomes the capped score, and dp - delta takes the cap's slope.
__device__ __forceinline__ void cap_pair(const BackwardArgs& args, float delta, float& s, float& dp) {
  const float tanh = tanhf(s * args.scale / args.softcap);
  s = args.softcap * tanh;
  dp = fmaf(dp - delta, 1 - tanh * tanh, delta);
}
// Where the mask is not all: P and dS of a hidden pair become zero, whatever its numbers are.
__device__ __forceinline__ void hide_pair(bool seen, float& s, float& dp) {
  s = seen ? s : minus_infinity, dp = seen ? dp : 0.0F;
}
__device__ __forceinline__ void weigh_pair(float factor, float lse2, float delta, float& s, float& dp) {
  s = exp2_approx(fmaf(s, factor, -lse2));
  dp = s * (dp - delta);
}

// Where a row of an accumulator goes: columns from `valid` on are left out.
struct GradientRow {
  float* to;
  int valid;
  bool set;  // else added to
};
// Row `row` (0 or 1) of an accumulator, times `scale`.
template <int count>
__device__ __forceinline__ void store_gradient(const float (&acc)[count], int row, float scale,
                                               const GradientRow& gradient) {
  auto* const to = reinterpret_cast<float2*>(gradient.to + 2 * (threadIdx.x % 4));
#pragma unroll
  for (int j = 0; j < count / 4; ++j) {
    if (8 * j >= gradient.valid) break;
    float2 x{scale * acc[4 * j + 2 * row], scale * acc[4 * j + 2 * row + 1]};
    if (!gradient.set) {
      const float2 before = to[4 * j];
      x.x += before.x, x.y += before.y;
    }
    to[4 * j] = x;
  }
}

// ---- dQ, dK and dV: 128 rows x `columns` of one of them, a sum over tiles ---------------------------------------------------------------

enum class Product : int { dv, dk, dq };

// The visible tiles that a block of rows is a sum over: heads of the group after one another, tokens ascending.
class TileWalk {
 public:
  __device__ TileWalk(const BackwardArgs& args, const BackwardRound& round, bool by_keys, int mine)
      : args_(args),
        round_(round),
        by_keys_(by_keys),
        mine_(mine),
        count_(by_keys ? round.k_count : round.q_count),
        groups_(by_keys ? 1 : args.group) {
    find();
  }
  __device__ bool done() const { return group_ == groups_; }
  __device__ int group() const { return group_; }
  __device__ int q() const { return by_keys_ ? mine_ : other_; }
  __device__ int k_block() const { return round_.k_begin + (by_keys_ ? other_ : mine_); }
  __device__ void next() {
    ++other_;
    find();
  }

 private:
  __device__ void find() {
    for (; group_ < groups_; ++group_, other_ = 0) {
      for (; other_ < count_; ++other_) {
        if (sight_of(round_, args_.mask, q(), k_block()) != Sight::none) return;
      }
    }
  }

  const BackwardArgs& args_;
  const BackwardRound& round_;
  bool by_keys_;
  int mine_, count_, groups_;
  int group_ = 0, other_ = 0;
};

template <int columns>
struct ProductTile {
  static constexpr uint32_t left_row = static_cast<uint32_t>(tile_row_bytes(portable_depth)),  // dq: 128 rows
      turned_row = static_cast<uint32_t>(tile_row_bytes(backward_block)),                      // dv, dk: 32 rows
      right_row = static_cast<uint32_t>(tile_row_bytes(columns));                              // 32 rows
  static constexpr uint32_t left_bytes =
      backward_block * left_row > portable_depth *turned_row ? backward_block *left_row : portable_depth *turned_row,
                            stage_bytes = left_bytes + portable_depth * right_row;
};

// acc [32 rows of each warp, columns] += a stage's product.
template <int columns, bool turned>
__device__ __forceinline__ void multiply_stage(uint32_t stage, float (&acc)[2][columns / 2]) {
  using Tile = ProductTile<columns>;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t a_at = turned
                            ? lane_address<Quarters::beside_first, backward_block>(stage + warp * 64)
                            : lane_address<Quarters::below_first, portable_depth>(stage + warp * 32 * Tile::left_row),
                 b_at = lane_address<Quarters::below_first, columns>(stage + Tile::left_bytes);
#pragma unroll
  for (int k = 0; k < portable_depth / 16; ++k) {
    uint32_t a[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
      ldmatrix_x4<turned>(a_at + (turned ? k * 16 * Tile::turned_row + m * 32 : m * 16 * Tile::left_row + k * 32),
                          a[m]);
#pragma unroll
    for (int j = 0; j < columns / 8; j += 2) {
      uint32_t b[4];
      ldmatrix_x4<true>(b_at + k * 16 * Tile::right_row + j * 16, b);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma_16x8x16(acc[m] + 4 * j, a[m], b[0], b[1]);
        mma_16x8x16(acc[m] + 4 * j + 4, a[m], b[2], b[3]);
      }
    }
  }
}

// What a block of threads forms.
struct ProductBlock {
  Product product;
  int mine;    // block of keys or queries, counted from the round's first
  int head;    // dq: query head, else K/V head, counted from the round's first
  int column;  // first
};

// acc = the product of a block. turned: the tiles' rows are what is summed over.
template <int columns, Product product, bool turned>
__device__ void form_product(const BackwardArgs& args, const BackwardRound& round, const ProductBlock& block,
                             uint32_t shared, float (&acc)[2][columns / 2]) {
  using Tile = ProductTile<columns>;
  constexpr bool by_keys = product == Product::dq;
  const int D = args.head_dim, H = args.num_heads, K = H / args.group;
  const auto* const tiles = static_cast<const __nv_bfloat16*>(product == Product::dv ? args.p : args.ds);
  const auto* const right = static_cast<const __nv_bfloat16*>(product == Product::dq   ? args.k
                                                              : product == Product::dv ? args.do_
                                                                                       : args.q);
  const int64_t stride = static_cast<int64_t>(by_keys ? K : H) * D;
  TileWalk walk(args, round, by_keys, block.mine);
  int part = 0, copied = 0, write = 0;
  const auto copy = [&] {
    if (!walk.done()) {
      const int tile_head = by_keys ? block.head : block.head * args.group + walk.group();
      const int right_head =
          by_keys ? round.kv_begin + block.head / args.group : round.kv_begin * args.group + tile_head;
      const __nv_bfloat16* tile =
          tiles + static_cast<int64_t>(round.tile(tile_head, walk.q(), walk.k_block())) * backward_tile;
      const uint32_t stage = shared + write * Tile::stage_bytes;
      if constexpr (!turned)
        copy_tile<backward_block, portable_depth, portable_threads>(
            stage, {tile + part * portable_depth, backward_block, 0, backward_block}, portable_depth);
      else
        copy_tile<portable_depth, backward_block, portable_threads>(
            stage, {tile + part * portable_depth * backward_block, backward_block, 0, portable_depth}, backward_block);
      const int first = (by_keys ? walk.k_block() : round.q_begin + walk.q()) * backward_block + part * portable_depth;
      copy_tile<portable_depth, columns, portable_threads>(
          stage + Tile::left_bytes,
          {right + static_cast<int64_t>(right_head) * D + block.column, stride, first, args.num_tokens},
          D - block.column);
      if (++part == backward_block / portable_depth) part = 0, walk.next();
      write = write + 1 == portable_stages ? 0 : write + 1;
      ++copied;
    }
    copy_commit();
  };
#pragma unroll 1
  for (int i = 0; i < portable_stages - 1; ++i) copy();
  int read = 0;
#pragma unroll 1
  for (int i = 0; i < copied; ++i) {
    copy_wait<portable_stages - 2>();
    __syncthreads();
    copy();
    multiply_stage<columns, turned>(shared + read * Tile::stage_bytes, acc);
    read = read + 1 == portable_stages ? 0 : read + 1;
  }
}

// The block's rows of dQ, dK or dV: set, or added to.
template <int columns>
__device__ void store_product(const BackwardArgs& args, const BackwardRound& round, const ProductBlock& block,
                              const float (&acc)[2][columns / 2]) {
  const bool is_dq = block.product == Product::dq, set = is_dq && round.set_dq != 0;
  float* const out = is_dq ? args.dq : block.product == Product::dv ? args.dv : args.dk;
  const float scale = block.product == Product::dv ? 1 : args.scale;
  const int D = args.head_dim, head = is_dq ? round.kv_begin * args.group + block.head : round.kv_begin + block.head,
            lane = static_cast<int>(threadIdx.x % 32);
  const int64_t stride = static_cast<int64_t>(is_dq ? args.num_heads : args.num_heads / args.group) * D;
  const int first_row = ((is_dq ? round.q_begin : round.k_begin) + block.mine) * backward_block +
                        static_cast<int>(threadIdx.x / 32) * 32 + lane / 4;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + 16 * m + 8 * i;
      if (row >= args.num_tokens) continue;
      float* const to = out + row * stride + static_cast<int64_t>(head) * D + block.column;
      store_gradient(acc[m], i, scale, {to, D - block.column, set});
    }
  }
}

}  // namespace sluice::cuda
