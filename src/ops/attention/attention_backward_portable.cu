// The rounds of attention_backward by mma.sync, for every card from compute capability 8.0 on: bf16, head dimensions that are multiples of 8. Tiles in
// scratch are bf16, row-major. Blocks of four warps, two on a multiprocessor or more, so that one's epilogue hides behind the other's products.
#include "ops/attention/attention_backward_portable.cuh"

namespace sluice::cuda {

namespace {

constexpr int threads = portable_threads, stages = portable_stages, depth = portable_depth;

// ---- S and dP of 128 queries x 64 keys; P and dS to scratch ------------------------------------------------------------------------

constexpr int score_keys = portable_score_keys, key_parts = backward_block / score_keys;
constexpr int warp_rows = 64, warp_keys = 32;  // two warps by two

struct ScoreBlock {
  int first_query, first_key, head, kv_head;
};

// What a warp accumulates: warp_rows / 16 tiles of 16 rows, each warp_keys / 8 of mma's accumulators.
using Scores = float[warp_rows / 16][warp_keys / 2];

// The steps of both products, one after the other, through a ring of stages.
class ScoreSteps {
 public:
  __device__ ScoreSteps(const BackwardArgs& args, const ScoreBlock& block, uint32_t shared)
      : args_(args), block_(block), shared_(shared), steps_((args.head_dim + depth - 1) / depth) {
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) copy();
  }
  // acc += the next product: first q k^T, then dO v^T.
  __device__ void multiply(Scores& acc) {
    const int warp = static_cast<int>(threadIdx.x / 32);
    for (int i = 0; i < steps_; ++i) {
      copy_wait<stages - 2>();
      __syncthreads();
      copy();
      const uint32_t stage = shared_ + read_ * stage_bytes;
      const uint32_t a_at = lane_address<Quarters::below_first, depth>(stage + warp / 2 * warp_rows * row_bytes),
                     b_at = lane_address<Quarters::beside_first, depth>(
                         stage + (backward_block + warp % 2 * warp_keys) * row_bytes);
#pragma unroll
      for (int k = 0; k < depth / 16; ++k) {
        uint32_t b[warp_keys / 16][4];
#pragma unroll
        for (int n = 0; n < warp_keys / 16; ++n) ldmatrix_x4(b_at + n * 16 * row_bytes + k * 32, b[n]);
#pragma unroll
        for (int m = 0; m < warp_rows / 16; ++m) {
          uint32_t a[4];
          ldmatrix_x4(a_at + m * 16 * row_bytes + k * 32, a);
#pragma unroll
          for (int n = 0; n < warp_keys / 8; ++n)
            mma_16x8x16(acc[m] + 4 * n, a, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
      }
      read_ = read_ + 1 == stages ? 0 : read_ + 1;
    }
  }

 private:
  static constexpr uint32_t row_bytes = static_cast<uint32_t>(tile_row_bytes(depth)),
                            stage_bytes = (backward_block + score_keys) * row_bytes;
  __device__ void copy() {
    if (copied_ < 2 * steps_) {
      const bool second = copied_ >= steps_;
      const int column = (second ? copied_ - steps_ : copied_) * depth, D = args_.head_dim;
      const int64_t wide = static_cast<int64_t>(args_.num_heads) * D, narrow = wide / args_.group;
      const auto* const a = static_cast<const __nv_bfloat16*>(second ? args_.do_ : args_.q);
      const auto* const b = static_cast<const __nv_bfloat16*>(second ? args_.v : args_.k);
      const uint32_t stage = shared_ + write_ * stage_bytes;
      copy_tile<backward_block, depth, threads>(
          stage, {a + static_cast<int64_t>(block_.head) * D + column, wide, block_.first_query, args_.num_tokens},
          D - column);
      copy_tile<score_keys, depth, threads>(
          stage + backward_block * row_bytes,
          {b + static_cast<int64_t>(block_.kv_head) * D + column, narrow, block_.first_key, args_.num_tokens},
          D - column);
      write_ = write_ + 1 == stages ? 0 : write_ + 1;
      ++copied_;
    }
    copy_commit();
  }

  const BackwardArgs& args_;
  ScoreBlock block_;
  uint32_t shared_;
  int steps_;  // of one product
  int copied_ = 0, write_ = 0, read_ = 0;
};

__global__ void __launch_bounds__(threads) scores_kernel(const BackwardArgs args, const BackwardRound round) {
  extern __shared__ __align__(16) unsigned char shared[];
  int t = static_cast<int>(blockIdx.x);
  const int part = t % key_parts;
  t /= key_parts;
  const int q = t % round.q_count, k_block = round.base[q] + t / round.q_count % round.slots,
            head = t / round.q_count / round.slots;
  const Sight sight = sight_of(round, args.mask, q, k_block);
  if (sight == Sight::none) return;

  const int h = round.kv_begin * args.group + head, warp = static_cast<int>(threadIdx.x / 32),
            lane = static_cast<int>(threadIdx.x % 32);
  const ScoreBlock block{(round.q_begin + q) * backward_block, k_block * backward_block + part * score_keys, h,
                         h / args.group};
  ScoreSteps steps(args, block, shared_address(shared));
  Scores s = {}, dp = {};
  steps.multiply(s);
  steps.multiply(dp);

  const int first_row = warp / 2 * warp_rows + lane / 4, first_column = warp % 2 * warp_keys;
  TokenMask key[warp_keys / 8][2];
#pragma unroll
  for (int n = 0; n < warp_keys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      key[n][e] = args.mask.token(block.first_key + first_column + 8 * n + 2 * (lane % 4) + e);
  }
  const int64_t tile = static_cast<int64_t>(round.tile(head, q, k_block)) * backward_tile;
  auto* const p_tile = static_cast<__nv_bfloat16*>(args.p) + tile;
  auto* const ds_tile = static_cast<__nv_bfloat16*>(args.ds) + tile;
#pragma unroll
  for (int m = 0; m < warp_rows / 16; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + 16 * m + 8 * i;
      const int64_t at = static_cast<int64_t>(h) * args.padded + block.first_query + row;
      const float lse2 = args.lse2[at], delta = args.delta[at];
      const TokenMask query = args.mask.token(block.first_query + row);
      const auto each = [&](auto body) {
#pragma unroll
        for (int n = 0; n < warp_keys / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) body(s[m][4 * n + 2 * i + e], dp[m][4 * n + 2 * i + e], key[n][e]);
        }
      };
      if (args.softcap > 0)
        each([&](float& score, float& slope, const TokenMask&) { cap_pair(args, delta, score, slope); });
      if (sight == Sight::some)
        each(
            [&](float& score, float& slope, const TokenMask& k) { hide_pair(args.mask.sees(query, k), score, slope); });
      each([&](float& score, float& slope, const TokenMask&) { weigh_pair(args.factor, lse2, delta, score, slope); });
      const int64_t to = row * backward_block + part * score_keys + first_column;
      store_row(s[m], i, 1.0F, p_tile + to);
      store_row(dp[m], i, 1.0F, ds_tile + to);
    }
  }
}

// blockIdx.x: columns of one block of rows beside each other; dV and dK of each K/V head and block of keys, then dQ of each head and block
// of queries.
template <int columns>
__global__ void __launch_bounds__(threads) products_kernel(const BackwardArgs args, const BackwardRound round) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int D = args.head_dim, column_blocks = (D + columns - 1) / columns, num_kv = 2 * round.kv_count * round.k_count;
  int index = static_cast<int>(blockIdx.x) / column_blocks;
  const int column = static_cast<int>(blockIdx.x) % column_blocks * columns;
  const Product product = index >= num_kv ? Product::dq : static_cast<Product>(index % 2);
  const bool is_dq = product == Product::dq;
  index = is_dq ? index - num_kv : index / 2;
  const int blocks = is_dq ? round.q_count : round.k_count;
  const ProductBlock block{product, index % blocks, index / blocks, column};

  float acc[2][columns / 2] = {};
  const uint32_t stages_at = shared_address(shared);
  if (product == Product::dq) form_product<columns, Product::dq, false>(args, round, block, stages_at, acc);
  else if (product == Product::dv) form_product<columns, Product::dv, true>(args, round, block, stages_at, acc);
  else form_product<columns, Product::dk, true>(args, round, block, stages_at, acc);

  store_product<columns>(args, round, block, acc);
}

template <int columns>
void run_products(const Context& ctx, const BackwardArgs& args, const BackwardRound& round) {
  constexpr int64_t bytes = portable_products_bytes(columns);
  static_assert(bytes == stages * ProductTile<columns>::stage_bytes);
  const int64_t blocks = static_cast<int64_t>(round.kv_count) * (2 * round.k_count + args.group * round.q_count) *
                         ceil_div(args.head_dim, columns);
  check_cuda(cudaFuncSetAttribute(products_kernel<columns>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "attention_backward");
  products_kernel<columns><<<static_cast<unsigned>(blocks), threads, bytes, stream_of(ctx)>>>(args, round);
  check_launch("attention_backward");
}

}  // namespace

void backward_portable(const Context& ctx, const BackwardArgs& args, const BackwardRound& round) {
  constexpr int64_t bytes = portable_scores_bytes();
  static_assert(bytes <= 48 << 10);  // more would have to be asked for
  const int64_t tiles = static_cast<int64_t>(round.kv_count) * args.group * round.q_count * round.slots;
  scores_kernel<<<static_cast<unsigned>(tiles * key_parts), threads, bytes, stream_of(ctx)>>>(args, round);
  check_launch("attention_backward");
  switch (portable_columns(args.head_dim)) {
    case 64: return run_products<64>(ctx, args, round);
    case 96: return run_products<96>(ctx, args, round);
    default: return run_products<128>(ctx, args, round);
  }
}

}  // namespace sluice::cuda
