// The rounds of attention_backward by mma.sync where dK and dV fit in registers: bf16, head dimensions 64, 80, 96, 128. A block of threads
// holds some keys and values and walks the queries that see them, 32 at a time:
//
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q
//
// with keys as rows, so that P^T and dS^T are operands as they stand in registers. dS^T goes to scratch as [keys, queries]; a second kernel forms
// dQ = dS K of it. Five products, and of a pair of blocks 32 KiB written and read once.
#include "ops/attention/attention_backward_portable.cuh"

namespace sluice::cuda {

namespace {

constexpr int threads = portable_threads, queries = PortableBackwardNarrow::queries;

// 32 queries of a head, on their way through a stage.
struct QueryStep {
  int tile_head, q, part;  // counted from the round's first: head and query block; 32 queries of it
};

// What a pair needs of its query.
struct PairQuery {
  int token;
  float lse2, delta;
};

template <int head_dim>
struct Stages {
  static constexpr PortableBackwardNarrow plan = *portable_backward_narrow_of(head_dim);
  static constexpr uint32_t row_bytes = static_cast<uint32_t>(tile_row_bytes(head_dim)),
                            rows_bytes = queries * row_bytes;
  uint32_t shared;

  __device__ uint32_t q(int stage) const { return shared + 2 * stage * rows_bytes; }
  __device__ uint32_t do_(int stage) const { return q(stage) + rows_bytes; }
  __device__ uint32_t k() const { return shared + 4 * rows_bytes; }
  __device__ uint32_t v() const { return k() + plan.keys() * row_bytes; }
  __device__ uint32_t numbers(int stage) const { return v() + plan.keys() * row_bytes + stage * 2 * queries * 4; }

  __device__ void copy(const BackwardArgs& args, const BackwardRound& round, const QueryStep& step, int stage) const {
    const int h = round.kv_begin * args.group + step.tile_head,
              first = (round.q_begin + step.q) * backward_block + step.part * queries;
    const int64_t wide = static_cast<int64_t>(args.num_heads) * head_dim, at = static_cast<int64_t>(h) * head_dim;
    copy_tile<queries, head_dim, threads>(
        q(stage), {static_cast<const __nv_bfloat16*>(args.q) + at, wide, first, args.num_tokens}, head_dim);
    copy_tile<queries, head_dim, threads>(
        do_(stage), {static_cast<const __nv_bfloat16*>(args.do_) + at, wide, first, args.num_tokens}, head_dim);
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < 2 * queries / 4) {
      const float* const from = (thread < queries / 4 ? args.lse2 : args.delta) + static_cast<int64_t>(h) * args.padded;
      copy_async_part_16(numbers(stage) + thread * 16, from + first + thread % (queries / 4) * 4, 16);
    }
    copy_commit();
  }
};

template <int head_dim>
__global__ void __launch_bounds__(threads, 2) keys_kernel(const BackwardArgs args, const BackwardRound round) {
  using Room = Stages<head_dim>;
  constexpr PortableBackwardNarrow plan = Room::plan;
  constexpr int keys = plan.keys(), row_tiles = plan.keys_of_warp / 16, parts = backward_block / keys;
  constexpr int span = row_tiles == 1 ? 32 : 16;  // queries whose scores are in registers at once
  constexpr uint32_t row_bytes = Room::row_bytes;
  extern __shared__ __align__(16) unsigned char shared[];
  const Room room{shared_address(shared)};

  const int part = static_cast<int>(blockIdx.x) % parts, kv = static_cast<int>(blockIdx.x) / parts % round.kv_count,
            mine = static_cast<int>(blockIdx.x) / parts / round.kv_count;
  const int first_key = (round.k_begin + mine) * backward_block + part * keys;
  TileWalk walk(args, round, false, mine);
  if (walk.done()) return;
  int next_part = 0;
  const auto take = [&] {
    const QueryStep step{kv * args.group + walk.group(), walk.q(), next_part};
    if (++next_part == backward_block / queries) next_part = 0, walk.next();
    return step;
  };

  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t narrow = static_cast<int64_t>(args.num_heads / args.group) * head_dim,
                column = static_cast<int64_t>(round.kv_begin + kv) * head_dim;
  copy_tile<keys, head_dim, threads>(
      room.k(), {static_cast<const __nv_bfloat16*>(args.k) + column, narrow, first_key, args.num_tokens}, head_dim);
  copy_tile<keys, head_dim, threads>(
      room.v(), {static_cast<const __nv_bfloat16*>(args.v) + column, narrow, first_key, args.num_tokens}, head_dim);
  const uint32_t k_at = lane_address<Quarters::below_first, head_dim>(room.k() + warp * plan.keys_of_warp * row_bytes);
  constexpr uint32_t to_v = keys * row_bytes;

  TokenMask key[row_tiles][2];
#pragma unroll
  for (int m = 0; m < row_tiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      key[m][i] = args.mask.token(first_key + warp * plan.keys_of_warp + 16 * m + 8 * i + lane / 4);
  }
  float dk[row_tiles][head_dim / 2] = {}, dv[row_tiles][head_dim / 2] = {};
  QueryStep now = take();
  room.copy(args, round, now, 0);
  for (int stage = 0;; stage ^= 1) {
    copy_wait<0>();
    __syncthreads();  // this step is here, and the one before it is read
    const bool more = !walk.done();
    QueryStep next{};
    if (more) {
      next = take();
      room.copy(args, round, next, stage ^ 1);
    }

    const auto* const numbers =
        reinterpret_cast<const float2*>(shared + (room.numbers(stage) - room.shared)) + lane % 4;
    const int first_query = (round.q_begin + now.q) * backward_block + now.part * queries;
    const bool some = sight_of(round, args.mask, now.q, round.k_begin + mine) == Sight::some;
    auto* const tile = static_cast<__nv_bfloat16*>(args.ds) +
                       static_cast<int64_t>(round.tile(now.tile_head, now.q, round.k_begin + mine)) * backward_tile +
                       now.part * queries;
    // As rows of a right operand, and as its columns.
    const uint32_t q_rows = lane_address<Quarters::beside_first, head_dim>(room.q(stage)),
                   q_columns = lane_address<Quarters::below_first, head_dim>(room.q(stage));
    constexpr uint32_t to_do = Room::rows_bytes;
#pragma unroll 1
    for (int from = 0; from < queries; from += span) {
      const uint32_t below = from * row_bytes;
      float s[row_tiles][span / 2] = {}, dp[row_tiles][span / 2] = {};
#pragma unroll
      for (int step = 0; step < head_dim / 16; ++step) {
        uint32_t q[span / 16][4], d[span / 16][4];
#pragma unroll
        for (int n = 0; n < span / 16; ++n) {
          ldmatrix_x4(q_rows + below + n * 16 * row_bytes + step * 32, q[n]);
          ldmatrix_x4(q_rows + to_do + below + n * 16 * row_bytes + step * 32, d[n]);
        }
#pragma unroll
        for (int m = 0; m < row_tiles; ++m) {
          uint32_t k[4], v[4];
          ldmatrix_x4(k_at + m * 16 * row_bytes + step * 32, k);
          ldmatrix_x4(k_at + to_v + m * 16 * row_bytes + step * 32, v);
#pragma unroll
          for (int n = 0; n < span / 8; ++n) {
            mma_16x8x16(s[m] + 4 * n, k, q[n / 2][n % 2 * 2], q[n / 2][n % 2 * 2 + 1]);
            mma_16x8x16(dp[m] + 4 * n, v, d[n / 2][n % 2 * 2], d[n / 2][n % 2 * 2 + 1]);
          }
        }
      }

      const auto each = [&](auto body) {
#pragma unroll
        for (int j = 0; j < span / 8; ++j) {
          const float2 delta = numbers[queries / 2 + from / 2 + 4 * j], lse2 = numbers[from / 2 + 4 * j];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const PairQuery query{first_query + from + 8 * j + 2 * (lane % 4) + e, e == 0 ? lse2.x : lse2.y,
                                  e == 0 ? delta.x : delta.y};
#pragma unroll
            for (int m = 0; m < row_tiles; ++m) {
#pragma unroll
              for (int i = 0; i < 2; ++i) body(query, key[m][i], s[m][4 * j + 2 * i + e], dp[m][4 * j + 2 * i + e]);
            }
          }
        }
      };
      if (args.softcap > 0)
        each([&](const PairQuery& query, const TokenMask&, float& score, float& slope) {
          cap_pair(args, query.delta, score, slope);
        });
      if (some)
        each([&](const PairQuery& query, const TokenMask& key, float& score, float& slope) {
          hide_pair(args.mask.sees(args.mask.token(query.token), key), score, slope);
        });
      each([&](const PairQuery& query, const TokenMask&, float& score, float& slope) {
        weigh_pair(args.factor, query.lse2, query.delta, score, slope);
      });

      uint32_t p[row_tiles][span / 16][4], ds[row_tiles][span / 16][4];
#pragma unroll
      for (int m = 0; m < row_tiles; ++m) {
        pack_operand<span / 16>(s[m], p[m]);
        pack_operand<span / 16>(dp[m], ds[m]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = part * keys + warp * plan.keys_of_warp + 16 * m + 8 * i + lane / 4;
          store_row(dp[m], i, 1.0F, tile + row * backward_block + from);
        }
      }
#pragma unroll
      for (int step = 0; step < span / 16; ++step) {
#pragma unroll
        for (int j = 0; j < head_dim / 8; j += 2) {
          uint32_t d[4], q[4];
          ldmatrix_x4<true>(q_columns + to_do + below + step * 16 * row_bytes + j * 16, d);
          ldmatrix_x4<true>(q_columns + below + step * 16 * row_bytes + j * 16, q);
#pragma unroll
          for (int m = 0; m < row_tiles; ++m) {
            mma_16x8x16(dv[m] + 4 * j, p[m][step], d[0], d[1]);
            mma_16x8x16(dv[m] + 4 * j + 4, p[m][step], d[2], d[3]);
            mma_16x8x16(dk[m] + 4 * j, ds[m][step], q[0], q[1]);
            mma_16x8x16(dk[m] + 4 * j + 4, ds[m][step], q[2], q[3]);
          }
        }
      }
    }
    if (!more) break;
    now = next;
  }

#pragma unroll
  for (int m = 0; m < row_tiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_key + warp * plan.keys_of_warp + 16 * m + 8 * i + lane / 4;
      if (row >= args.num_tokens) continue;
      const int64_t at = row * narrow + column;
      store_gradient(dk[m], i, args.scale, {args.dk + at, head_dim, false});
      store_gradient(dv[m], i, 1.0F, {args.dv + at, head_dim, false});
    }
  }
}

// blockIdx.x: columns of one block of queries beside each other.
template <int columns>
__global__ void __launch_bounds__(threads) dq_kernel(const BackwardArgs args, const BackwardRound round) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int column_blocks = args.head_dim / columns, index = static_cast<int>(blockIdx.x) / column_blocks;
  const ProductBlock block{Product::dq, index % round.q_count, index / round.q_count,
                           static_cast<int>(blockIdx.x) % column_blocks * columns};
  float acc[2][columns / 2] = {};
  form_product<columns, Product::dq, true>(args, round, block, shared_address(shared), acc);
  store_product<columns>(args, round, block, acc);
}

template <int head_dim>
void run(const Context& ctx, const BackwardArgs& args, const BackwardRound& round) {
  constexpr PortableBackwardNarrow plan = Stages<head_dim>::plan;
  constexpr int64_t bytes = plan.shared_bytes(), dq_bytes = portable_products_bytes(plan.dq_columns);
  static_assert(dq_bytes == portable_stages * ProductTile<plan.dq_columns>::stage_bytes);
  const auto keys = keys_kernel<head_dim>;
  const auto dq = dq_kernel<plan.dq_columns>;
  check_cuda(cudaFuncSetAttribute(keys, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "attention_backward");
  check_cuda(cudaFuncSetAttribute(dq, cudaFuncAttributeMaxDynamicSharedMemorySize, dq_bytes), "attention_backward");
  const int64_t key_blocks = static_cast<int64_t>(round.kv_count) * round.k_count * (backward_block / plan.keys());
  const int64_t dq_blocks =
      static_cast<int64_t>(round.kv_count) * args.group * round.q_count * (head_dim / plan.dq_columns);
  keys<<<static_cast<unsigned>(key_blocks), threads, bytes, stream_of(ctx)>>>(args, round);
  check_launch("attention_backward");
  dq<<<static_cast<unsigned>(dq_blocks), threads, dq_bytes, stream_of(ctx)>>>(args, round);
  check_launch("attention_backward");
}

}  // namespace

void backward_narrow_portable(const Context& ctx, const BackwardArgs& args, const BackwardRound& round) {
  switch (args.head_dim) {
    case 64: return run<64>(ctx, args, round);
    case 80: return run<80>(ctx, args, round);
    case 96: return run<96>(ctx, args, round);
    default: SLUICE_ASSERT(args.head_dim == 128); return run<128>(ctx, args, round);
  }
}

}  // namespace sluice::cuda
