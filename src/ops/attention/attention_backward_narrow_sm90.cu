// Backward of attention with head dimensions 64 and 128 on Hopper: CTAs for dQ, and CTAs for dK and dV.
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
  CUtensorMap q, k, v, do_;     // 128 rows at a time
  CUtensorMap q_step, do_step;  // 64
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

__device__ __forceinline__ float2 load_pair(uint32_t shared) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(shared));
  return x;
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
__device__ __forceinline__ void form_dq(const BackwardArgs& args, const NarrowMaps& maps, int index) {
#ifdef SLUICE_SM90A
  using Tiles = QueryTiles<D>;
  constexpr int k_stages = Tiles::k_stages, v_stages = Tiles::v_stages, tile = Tiles::tile;
  __shared__ Ring<k_stages> k_ring;
  __shared__ Ring<v_stages> v_ring;
  __shared__ uint64_t query_full;
  const int num_blocks = args.padded / backward_block;
  const int q_block = num_blocks - 1 - index / args.num_heads, head = index % args.num_heads;
  const uint32_t q_tile = shared_begin(), do_tile = q_tile + tile, k_tiles = do_tile + tile,
                 v_tiles = k_tiles + k_stages * tile;
  if (threadIdx.x == 0) barrier_init(&query_full, 1);
  init_ring(k_ring);
  init_ring(v_ring);
  Turn k_turn, v_turn;

  if (threadIdx.x < 128) {
    registers_dealloc<24>();
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

  registers_alloc<240>();
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

// The query heads of a K/V head in `count` parts; the sums of part i > 0 go to partials[i - 1].
struct Splits {
  int count;
  float* partials;
};

template <int D>
struct KeyTiles {
  static constexpr int stages = 4;
  static constexpr int tile = D / 64 * 2 * slab_bytes;  // 128 keys
  static constexpr int step = D / 64 * slab_bytes;      // 64 queries
  static constexpr int values_bytes = 2 * 64 * 4;       // lse2 and delta
  static constexpr int shared_bytes = 1024 + 2 * tile + stages * (2 * step + values_bytes);
};

// to[row, column] = scale d, or += it, some reads in flight at a time.
template <int D>
__device__ __forceinline__ void store_rows(float* to, const float (&d)[D / 2], int r, float scale, bool add) {
  constexpr int batch = 8;
#pragma unroll
  for (int first = 0; first < D / 8; first += batch) {
    float2 before[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j)
      before[j] = add ? *reinterpret_cast<const float2*>(to + 8 * (first + j)) : float2{0, 0};
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int e = 4 * (first + j) + 2 * r;
      *reinterpret_cast<float2*>(to + 8 * (first + j)) = {before[j].x + scale * d[e], before[j].y + scale * d[e + 1]};
    }
  }
}

template <int D>
__device__ __forceinline__ void form_dkv(const BackwardArgs& args, const NarrowMaps& maps, const Splits& splits,
                                         int index) {
#ifdef SLUICE_SM90A
  using Tiles = KeyTiles<D>;
  constexpr int stages = Tiles::stages, tile = Tiles::tile, step = Tiles::step;
  __shared__ Ring<stages> ring;
  __shared__ uint64_t key_full;
  const int num_kv = args.num_heads / args.group, part = index % splits.count, heads = args.group / splits.count;
  const int k_block = index / splits.count / num_kv, kv_head = index / splits.count % num_kv;
  const uint32_t k_tile = shared_begin(), v_tile = k_tile + tile, ring_tiles = v_tile + tile;
  const uint32_t row_values = ring_tiles + stages * 2 * step;  // lse2 and delta of 64 queries, a stage
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
    for (int g = part * heads; g < (part + 1) * heads; ++g) {
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
            barrier_expect_bytes(full, 2 * step + Tiles::values_bytes);
#pragma unroll
            for (int c = 0; c < D / 64; ++c) tma_load_slab(to + c * slab_bytes, &maps.q_step, full, 64 * c, head, row);
#pragma unroll
            for (int c = 0; c < D / 64; ++c)
              tma_load_slab(to + step + c * slab_bytes, &maps.do_step, full, 64 * c, head, row);
            bulk_load(row_values + turn.stage * Tiles::values_bytes, args.lse2 + at, 64 * 4, full);
            bulk_load(row_values + turn.stage * Tiles::values_bytes + 64 * 4, args.delta + at, 64 * 4, full);
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
    const uint32_t values = row_values + turn.stage * Tiles::values_bytes + 4 * column;
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
        const float2 lse2 = load_pair(values + 32 * j);
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
      const float2 delta = load_pair(values + 64 * 4 + 32 * j);
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
  const int64_t partial = args.num_tokens * stride;
  float* const to_dk = part == 0 ? args.dk : splits.partials + (2 * part - 2) * partial;
  float* const to_dv = part == 0 ? args.dv : splits.partials + (2 * part - 1) * partial;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= args.num_tokens) continue;
    const int64_t to = (row + 8 * r) * stride + static_cast<int64_t>(kv_head) * D + column;
    store_rows<D>(to_dk + to, dk, r, args.scale, part == 0);
    store_rows<D>(to_dv + to, dv, r, 1, part == 0);
  }
#endif
}

// The CTAs of dK and dV, of which some are by far the longest, and then those of dQ, which fill what they leave.
template <int D>
__global__ void __launch_bounds__(threads, 1)
    narrow_kernel(const __grid_constant__ BackwardArgs args, const __grid_constant__ NarrowMaps maps,
                  const __grid_constant__ Splits splits, int num_dkv) {
  const int index = static_cast<int>(blockIdx.x);
  if (index < num_dkv) form_dkv<D>(args, maps, splits, index);
  else form_dq<D>(args, maps, index - num_dkv);
}

// dK and dV of the further parts, in order; `size` is a multiple of 4. blockIdx.y: dK, dV.
__global__ void add_partials(float* dk, float* dv, Splits splits, int64_t size) {
  const int64_t i = 4 * (blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x);
  if (i >= size) return;
  float4* const to = reinterpret_cast<float4*>((blockIdx.y == 0 ? dk : dv) + i);
  float4 sum = *to;
  for (int part = 1; part < splits.count; ++part) {
    const float4 x = *reinterpret_cast<const float4*>(splits.partials + (2 * part - 2 + blockIdx.y) * size + i);
    sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
  }
  *to = sum;
}

template <int D>
void launch(const Context& ctx, const BackwardArgs& args, const Splits& splits) {
  const int64_t N = args.num_tokens, H = args.num_heads, K = H / args.group, blocks = args.padded / backward_block;
  const NarrowMaps maps{.q = tensor_map_heads(args.q, N, H, D, 128),
                        .k = tensor_map_heads(args.k, N, K, D, 128),
                        .v = tensor_map_heads(args.v, N, K, D, 128),
                        .do_ = tensor_map_heads(args.do_, N, H, D, 128),
                        .q_step = tensor_map_heads(args.q, N, H, D, 64),
                        .do_step = tensor_map_heads(args.do_, N, H, D, 64)};
  constexpr int shared_bytes = std::max(KeyTiles<D>::shared_bytes, QueryTiles<D>::shared_bytes);
  const int64_t num_dkv = blocks * K * splits.count;
  allow_shared(narrow_kernel<D>, shared_bytes);
  narrow_kernel<D><<<static_cast<unsigned>(num_dkv + blocks * H), threads, shared_bytes, stream_of(ctx)>>>(
      args, maps, splits, static_cast<int>(num_dkv));
  check_launch("attention_backward");
  if (splits.count > 1) {
    const int64_t size = N * K * D;
    add_partials<<<dim3(static_cast<unsigned>(ceil_div(size, 4 * 256)), 2), 256, 0, stream_of(ctx)>>>(args.dk, args.dv,
                                                                                                      splits, size);
    check_launch("attention_backward, partial sums");
  }
}

}  // namespace

bool backward_narrow_takes(int64_t head_dim) { return head_dim == 64 || head_dim == 128; }

int64_t backward_narrow_splits(int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads) {
  // Enough that the longest CTA takes no more than about half of what one of 132 multiprocessors has to do.
  const int64_t group = num_heads / num_kv_heads, ctas = ceil_div(num_tokens, backward_block) * num_kv_heads;
  int64_t splits = 1;
  while (splits < 4 && group % (2 * splits) == 0 && ctas * splits < 256) splits *= 2;
  return splits;
}

void backward_narrow(const Context& ctx, const BackwardArgs& args, float* partials, int splits) {
  const Splits parts{.count = splits, .partials = partials};
  if (args.head_dim == 64) launch<64>(ctx, args, parts);
  else launch<128>(ctx, args, parts);
}

}  // namespace sluice::cuda
