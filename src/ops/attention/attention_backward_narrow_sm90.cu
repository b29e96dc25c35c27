// Backward of attention with head dimensions 64 and 128 on Hopper: one kernel for dQ, one for dK and dV.
//
// Both keep their sums in registers, two warpgroups of 64 rows each, and walk what their block sees in ascending order; a third warpgroup's
// first warp copies. In a step a warpgroup queues S and dP, computes P while the tensor cores do dP, and queues the products with P and dS
// (from registers) together with S and dP of the next step; meanwhile the other warpgroup's products run.
#include <algorithm>

#include "ops/attention/attention_backward_sm90.cuh"

namespace sluice::cuda {

namespace {

using namespace backward;

constexpr int info_end = -1;

struct NarrowMaps {
  CUtensorMap q, k, v, do_;
};

// The A operand of step k of a product whose k are the columns of d: 16 of them, rounded to bf16.
template <int count>
__device__ __forceinline__ void pack_columns(const float (&d)[count], uint32_t (&a)[count / 8][4]) {
#pragma unroll
  for (int k = 0; k < count / 8; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = pack_bf16(d[8 * k + 2 * i], d[8 * k + 2 * i + 1]);
  }
}

// The row of its block that this thread's accumulators begin with, the other being 8 further.
__device__ __forceinline__ int row_here() {
  const int thread = thread_here();
  return (thread / 128 - 1) * 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
}

// ---- dQ --------------------------------------------------------------------------------------------------------------------------------

template <int D>
struct QueryTiles {
  static constexpr int k_stages = 3, v_stages = 2;
  static constexpr int tile = D / 64 * 2 * slab_bytes;  // 128 rows
  static constexpr int shared_bytes = 1024 + (2 + k_stages + v_stages) * tile;
};

template <int D>
__global__ void __launch_bounds__(threads, 1)
    dq_kernel(const __grid_constant__ BackwardArgs args, const __grid_constant__ NarrowMaps maps) {
#ifdef SLUICE_SM90A
  using Tiles = QueryTiles<D>;
  constexpr int k_stages = Tiles::k_stages, v_stages = Tiles::v_stages, tile = Tiles::tile;
  __shared__ Ring<k_stages> k_ring;
  __shared__ Ring<v_stages> v_ring;
  __shared__ uint64_t query_full;
  const int num_blocks = args.padded / backward_block;
  const int q_block = num_blocks - 1 - static_cast<int>(blockIdx.x) / args.num_heads,
            head = static_cast<int>(blockIdx.x) % args.num_heads;
  const uint32_t q_tile = shared_begin(), do_tile = q_tile + tile, k_tiles = do_tile + tile,
                 v_tiles = k_tiles + k_stages * tile;
  if (threadIdx.x == 0) barrier_init(&query_full, 1);
  init_ring(k_ring);
  init_ring(v_ring);
  Turn k_turn, v_turn;

  if (threadIdx.x < 128) {
    registers_dealloc<40>();
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x, kv_head = head / args.group;
    if (lane == 0) {
      barrier_expect_bytes(&query_full, 2 * tile);
#pragma unroll
      for (int c = 0; c < D / 64; ++c) {
        tma_load_slab(q_tile + c * 2 * slab_bytes, &maps.q, &query_full, 64 * c, head, q_block * backward_block);
        tma_load_slab(do_tile + c * 2 * slab_bytes, &maps.do_, &query_full, 64 * c, head, q_block * backward_block);
      }
    }
    const BlockMask queries = merge(args.mask.block(2 * q_block), args.mask.block(2 * q_block + 1));
    for (int first = 0; first <= q_block; first += 32) {
      const int mine = first + lane;
      Sight sight = Sight::none;
      if (mine <= q_block)
        sight = args.mask.sight(queries, merge(args.mask.block(2 * mine), args.mask.block(2 * mine + 1)));
      const unsigned all = __ballot_sync(0xffffffffU, sight == Sight::all);
      for (unsigned left = __ballot_sync(0xffffffffU, sight != Sight::none); left != 0; left &= left - 1) {
        const int bit = __ffs(static_cast<int>(left)) - 1, k_block = first + bit;
        barrier_wait(&k_ring.empty[k_turn.stage], k_turn.parity ^ 1);
        if (lane == 0) {
          uint64_t* full = &k_ring.full[k_turn.stage];
          k_ring.info[k_turn.stage] = 2 * k_block + static_cast<int>((all >> bit) & 1);
          barrier_expect_bytes(full, tile);
#pragma unroll
          for (int c = 0; c < D / 64; ++c)
            tma_load_slab(k_tiles + k_turn.stage * tile + c * 2 * slab_bytes, &maps.k, full, 64 * c, kv_head,
                          k_block * backward_block);
        }
        k_turn.next<k_stages>();
        barrier_wait(&v_ring.empty[v_turn.stage], v_turn.parity ^ 1);
        if (lane == 0) {
          uint64_t* full = &v_ring.full[v_turn.stage];
          barrier_expect_bytes(full, tile);
#pragma unroll
          for (int c = 0; c < D / 64; ++c)
            tma_load_slab(v_tiles + v_turn.stage * tile + c * 2 * slab_bytes, &maps.v, full, 64 * c, kv_head,
                          k_block * backward_block);
        }
        v_turn.next<v_stages>();
      }
    }
    barrier_wait(&k_ring.empty[k_turn.stage], k_turn.parity ^ 1);
    if (lane == 0) {
      k_ring.info[k_turn.stage] = info_end;
      barrier_arrive(&k_ring.full[k_turn.stage]);
    }
    return;
  }

  registers_alloc<232>();
  const int half = threadIdx.x / 128 - 1;
  const bool leader = threadIdx.x % 32 == 0;
  const int64_t at = static_cast<int64_t>(head) * args.padded + q_block * backward_block + row_here();
  const float lse2[2] = {__ldg(args.lse2 + at), __ldg(args.lse2 + at + 8)},
              delta[2] = {__ldg(args.delta + at), __ldg(args.delta + at + 8)};
  const uint32_t q_rows = q_tile + half * slab_bytes, do_rows = do_tile + half * slab_bytes;

  float dq[D / 2], s[64], dp[64];
  uint32_t a[8][4];
  barrier_wait(&query_full, 0);
  int held = -1;  // the stage of K that dQ of the step before reads
  while (true) {
    barrier_wait(&k_ring.full[k_turn.stage], k_turn.parity);
    const int info = *static_cast<volatile int*>(&k_ring.info[k_turn.stage]);
    if (info == info_end) break;
    const uint32_t q = here(low_k(q_rows)), k_scores = here(low_k(k_tiles + k_turn.stage * tile));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint32_t offset = (k / 4 * 2 * slab_bytes + k % 4 * 32) / 16;
      wgmma_ss<128, Major::k, Major::k>(s, descriptor(q + offset), descriptor(k_scores + offset), k);
    }
    wgmma_commit();
    wgmma_wait<1>();  // dQ of the step before is done, and its registers free
    if (held >= 0 && leader) barrier_arrive(&k_ring.empty[held]);
    barrier_wait(&v_ring.full[v_turn.stage], v_turn.parity);
    const uint32_t do_ = here(low_k(do_rows)), v_tile = here(low_k(v_tiles + v_turn.stage * tile));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const uint32_t offset = (k / 4 * 2 * slab_bytes + k % 4 * 32) / 16;
      wgmma_ss<128, Major::k, Major::k>(dp, descriptor(do_ + offset), descriptor(v_tile + offset), k);
    }
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_fence_registers(s);
    const bool masked = info % 2 == 0;
    uint32_t seen[2] = {~0U, ~0U};  // of a row's 32 columns here
    if (masked) {
      seen[0] = seen[1] = 0;
      const int row = q_block * backward_block + row_here(), key = info / 2 * backward_block + 2 * (thread_here() % 4);
      const TokenMask query[2] = {args.mask.token(row), args.mask.token(row + 8)};
#pragma unroll 2
      for (int i = 0; i < 32; ++i) {
        const TokenMask token = args.mask.token(key + 8 * (i / 2) + i % 2);
#pragma unroll
        for (int r = 0; r < 2; ++r) seen[r] |= static_cast<uint32_t>(args.mask.sees(query[r], token)) << i;
      }
    }
    const auto weights = [&]<bool capped> {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        float slope;
        const float weight = weigh<capped>(args, s[i], lse2[i / 2 % 2], slope);
        s[i] = weight * slope;
      }
    };
    if (args.softcap > 0) weights.template operator()<true>();
    else weights.template operator()<false>();
    wgmma_wait<0>();
    wgmma_fence_registers(dp);
    if (leader) barrier_arrive(&v_ring.empty[v_turn.stage]);
    v_turn.next<v_stages>();
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= dp[i] - delta[i / 2 % 2];
    if (masked) {
#pragma unroll
      for (int i = 0; i < 64; ++i) s[i] = (seen[i / 2 % 2] >> (i / 4 * 2 + i % 2)) & 1 ? s[i] : 0;
    }
    pack_columns(s, a);

    const uint32_t k_tile = here(low_mn(k_tiles + k_turn.stage * tile, 2 * slab_bytes));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k)
      wgmma_rs<D, Major::mn>(dq, a[k], descriptor(k_tile + 2048 / 16 * k), k > 0 || held >= 0);
    wgmma_commit();
    held = k_turn.stage;
    k_turn.next<k_stages>();
  }
  wgmma_wait<0>();
  wgmma_fence_registers(dq);

  const int64_t stride = static_cast<int64_t>(args.num_heads) * D;
  const int row = q_block * backward_block + row_here();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= args.num_tokens) continue;
    float* to = args.dq + (row + 8 * r) * stride + static_cast<int64_t>(head) * D + 2 * (thread_here() % 4);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      *reinterpret_cast<float2*>(to + 8 * j) = {args.scale * dq[4 * j + 2 * r], args.scale * dq[4 * j + 2 * r + 1]};
  }
#endif
}

// ---- dK, dV ----------------------------------------------------------------------------------------------------------------------------

template <int D>
struct KeyTiles {
  static constexpr int stages = 4;
  static constexpr int tile = D / 64 * 2 * slab_bytes;  // 128 keys
  static constexpr int step = D / 64 * slab_bytes;      // 64 queries
  static constexpr int shared_bytes = 1024 + 2 * tile + stages * 2 * step;
};

// to[row, column] += scale d, in two halves of the reads in flight.
template <int D>
__device__ __forceinline__ void add_rows(float* to, const float (&d)[D / 2], int r, float scale) {
  constexpr int batch = 8;
#pragma unroll
  for (int first = 0; first < D / 8; first += batch) {
    float2 before[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) before[j] = *reinterpret_cast<const float2*>(to + 8 * (first + j));
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int e = 4 * (first + j) + 2 * r;
      *reinterpret_cast<float2*>(to + 8 * (first + j)) = {before[j].x + scale * d[e], before[j].y + scale * d[e + 1]};
    }
  }
}

template <int D>
__global__ void __launch_bounds__(threads, 1)
    dkv_kernel(const __grid_constant__ BackwardArgs args, const __grid_constant__ NarrowMaps maps) {
#ifdef SLUICE_SM90A
  using Tiles = KeyTiles<D>;
  constexpr int stages = Tiles::stages, tile = Tiles::tile, step = Tiles::step;
  __shared__ Ring<stages> ring;
  __shared__ uint64_t key_full;
  __shared__ alignas(128) float row_lse2[stages][64], row_delta[stages][64];
  const int num_kv = args.num_heads / args.group, k_block = static_cast<int>(blockIdx.x) / num_kv,
            kv_head = static_cast<int>(blockIdx.x) % num_kv;
  const uint32_t k_tile = shared_begin(), v_tile = k_tile + tile, ring_tiles = v_tile + tile;
  if (threadIdx.x == 0) barrier_init(&key_full, 1);
  init_ring(ring);
  Turn turn;

  if (threadIdx.x < 128) {
    registers_dealloc<24>();
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x, num_steps = (args.num_tokens + 63) / 64;
    if (lane == 0) {
      barrier_expect_bytes(&key_full, 2 * tile);
#pragma unroll
      for (int c = 0; c < D / 64; ++c) {
        tma_load_slab(k_tile + c * 2 * slab_bytes, &maps.k, &key_full, 64 * c, kv_head, k_block * backward_block);
        tma_load_slab(v_tile + c * 2 * slab_bytes, &maps.v, &key_full, 64 * c, kv_head, k_block * backward_block);
      }
    }
    const BlockMask keys = merge(args.mask.block(2 * k_block), args.mask.block(2 * k_block + 1));
    for (int g = 0; g < args.group; ++g) {
      const int head = kv_head * args.group + g;
      for (int first = 2 * k_block; first < num_steps; first += 32) {
        const int mine = first + lane;
        Sight sight = Sight::none;
        if (mine < num_steps) sight = args.mask.sight(args.mask.block(mine), keys);
        const unsigned all = __ballot_sync(0xffffffffU, sight == Sight::all);
        for (unsigned left = __ballot_sync(0xffffffffU, sight != Sight::none); left != 0; left &= left - 1) {
          const int bit = __ffs(static_cast<int>(left)) - 1, row = (first + bit) * 64;
          barrier_wait(&ring.empty[turn.stage], turn.parity ^ 1);
          if (lane == 0) {
            uint64_t* full = &ring.full[turn.stage];
            const uint32_t to = ring_tiles + turn.stage * 2 * step;
            const int64_t at = static_cast<int64_t>(head) * args.padded + row;
            ring.info[turn.stage] = 2 * (first + bit) + static_cast<int>((all >> bit) & 1);
            barrier_expect_bytes(full, 2 * step + 2 * 64 * 4);
#pragma unroll
            for (int c = 0; c < D / 64; ++c) tma_load_slab(to + c * slab_bytes, &maps.q, full, 64 * c, head, row);
#pragma unroll
            for (int c = 0; c < D / 64; ++c)
              tma_load_slab(to + step + c * slab_bytes, &maps.do_, full, 64 * c, head, row);
            bulk_load(shared_address(row_lse2[turn.stage]), args.lse2 + at, 64 * 4, full);
            bulk_load(shared_address(row_delta[turn.stage]), args.delta + at, 64 * 4, full);
          }
          turn.next<stages>();
        }
      }
    }
    barrier_wait(&ring.empty[turn.stage], turn.parity ^ 1);
    if (lane == 0) {
      ring.info[turn.stage] = info_end;
      barrier_arrive(&ring.full[turn.stage]);
    }
    return;
  }

  registers_alloc<240>();
  const int half = threadIdx.x / 128 - 1, column = 2 * (threadIdx.x % 4);
  const bool leader = threadIdx.x % 32 == 0;
  const uint32_t k_rows = k_tile + half * slab_bytes, v_rows = v_tile + half * slab_bytes;

  float dk[D / 2], dv[D / 2], s[32], dp[32];  // S and dP transposed: 64 keys x 64 queries
  uint32_t a[4][4], b[4][4];
  const auto scores = [&] {
    const uint32_t at = ring_tiles + turn.stage * 2 * step;
    const uint32_t keys = here(low_k(k_rows)), queries = here(low_k(at)), values = here(low_k(v_rows)),
                   gradients = here(low_k(at + step));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      wgmma_ss<64, Major::k, Major::k>(s, descriptor(keys + (k / 4 * 2 * slab_bytes + k % 4 * 32) / 16),
                                       descriptor(queries + (k / 4 * slab_bytes + k % 4 * 32) / 16), k);
    }
    wgmma_commit();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      wgmma_ss<64, Major::k, Major::k>(dp, descriptor(values + (k / 4 * 2 * slab_bytes + k % 4 * 32) / 16),
                                       descriptor(gradients + (k / 4 * slab_bytes + k % 4 * 32) / 16), k);
    }
    wgmma_commit();
  };

  barrier_wait(&key_full, 0);
  int held = -1;
  while (true) {
    barrier_wait(&ring.full[turn.stage], turn.parity);
    const int info = *static_cast<volatile int*>(&ring.info[turn.stage]);
    if (info == info_end) break;
    scores();
    const uint32_t queries = low_mn(ring_tiles + turn.stage * 2 * step, slab_bytes), gradients = queries + step / 16;
    wgmma_wait<1>();
    wgmma_fence_registers(s);
    if (held >= 0 && leader) barrier_arrive(&ring.empty[held]);
    const bool masked = info % 2 == 0;
    uint32_t seen = ~0U;
    if (masked) {
      seen = 0;
      const int row = k_block * backward_block + row_here(), query = info / 2 * 64 + column;
      const TokenMask key[2] = {args.mask.token(row), args.mask.token(row + 8)};
#pragma unroll 2
      for (int i = 0; i < 16; ++i) {
        const TokenMask token = args.mask.token(query + 8 * (i / 2) + i % 2);
#pragma unroll
        for (int r = 0; r < 2; ++r)
          seen |= static_cast<uint32_t>(args.mask.sees(token, key[r])) << (i / 2 * 4 + 2 * r + i % 2);
      }
    }
    const auto weights = [&]<bool capped> {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 lse2 = *reinterpret_cast<const float2*>(&row_lse2[turn.stage][8 * j + column]);
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float slope;
          const float weight = weigh<capped>(args, s[4 * j + i], i % 2 == 0 ? lse2.x : lse2.y, slope);
          p[i] = (seen >> (4 * j + i)) & 1 ? weight : 0;
          s[4 * j + i] = p[i] * slope;
        }
        a[j / 2][j % 2 * 2] = pack_bf16(p[0], p[1]), a[j / 2][j % 2 * 2 + 1] = pack_bf16(p[2], p[3]);
      }
    };
    if (args.softcap > 0) weights.template operator()<true>();
    else weights.template operator()<false>();
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_rs<D, Major::mn>(dv, a[k], descriptor(gradients + 2048 / 16 * k), k > 0 || held >= 0);
    wgmma_commit();

    wgmma_wait<1>();
    wgmma_fence_registers(dp);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 delta = *reinterpret_cast<const float2*>(&row_delta[turn.stage][8 * j + column]);
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; ++i) {
        const float gradient = s[i] * (dp[i] - (i % 2 == 0 ? delta.x : delta.y));
        s[i] = (seen >> i) & 1 ? gradient : 0;
      }
    }
    pack_columns(s, b);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_rs<D, Major::mn>(dk, b[k], descriptor(queries + 2048 / 16 * k), k > 0 || held >= 0);
    wgmma_commit();
    wgmma_wait<1>();  // dV is done, and its registers free
    held = turn.stage;
    turn.next<stages>();
  }
  wgmma_wait<0>();
  wgmma_fence_registers(dk);
  wgmma_fence_registers(dv);

  const int64_t stride = static_cast<int64_t>(num_kv) * D;
  const int row = k_block * backward_block + row_here();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= args.num_tokens) continue;
    const int64_t to = (row + 8 * r) * stride + static_cast<int64_t>(kv_head) * D + column;
    add_rows<D>(args.dk + to, dk, r, args.scale);
    add_rows<D>(args.dv + to, dv, r, 1);
  }
#endif
}

template <int D>
void launch(const Context& ctx, const BackwardArgs& args) {
  const int64_t N = args.num_tokens, H = args.num_heads, K = H / args.group, blocks = args.padded / backward_block;
  const NarrowMaps by_query{.q = tensor_map_heads(args.q, N, H, D, 128),
                            .k = tensor_map_heads(args.k, N, K, D, 128),
                            .v = tensor_map_heads(args.v, N, K, D, 128),
                            .do_ = tensor_map_heads(args.do_, N, H, D, 128)};
  NarrowMaps by_key = by_query;
  by_key.q = tensor_map_heads(args.q, N, H, D, 64), by_key.do_ = tensor_map_heads(args.do_, N, H, D, 64);
  allow_shared(dkv_kernel<D>, KeyTiles<D>::shared_bytes);
  dkv_kernel<D>
      <<<static_cast<unsigned>(blocks * K), threads, KeyTiles<D>::shared_bytes, stream_of(ctx)>>>(args, by_key);
  check_launch("attention_backward, dK and dV");
  allow_shared(dq_kernel<D>, QueryTiles<D>::shared_bytes);
  dq_kernel<D>
      <<<static_cast<unsigned>(blocks * H), threads, QueryTiles<D>::shared_bytes, stream_of(ctx)>>>(args, by_query);
  check_launch("attention_backward, dQ");
}

}  // namespace

bool backward_narrow_takes(int64_t head_dim) { return head_dim == 64 || head_dim == 128; }

void backward_narrow(const Context& ctx, const BackwardArgs& args) {
  if (args.head_dim == 64) launch<64>(ctx, args);
  else launch<128>(ctx, args);
}

}  // namespace sluice::cuda
