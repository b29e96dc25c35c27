// attention_forward for head_dim 64, 128 and 256 on Hopper, after FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608): one warp brings
// tiles by TMA, two warpgroups of 64 rows each compute. The scores of block j + 1 are computed while block j's are multiplied with the
// values, so that the softmax of one runs beside the product of the other; for head_dim 64 and 128 the two warpgroups also take turns.
#include "ops/attention/attention_forward_sm90.cuh"

#include <algorithm>

namespace sluice::cuda {

ForwardTiles forward_tiles(const AttentionForward& args, int rows, int most_heads, int together, int64_t cache_bytes) {
  const AttentionShape& s = args.shape;
  const int64_t Nq = args.q.shape[0], end = args.query_begin + Nq, group = s.num_heads / s.num_kv_heads;
  int heads = most_heads;
  while (group % (heads * together) != 0) heads /= 2;
  const int queries = rows / heads;
  constexpr int64_t drift = 4096;  // queries that are worked on at a time
  const int64_t reach = s.window > 0 ? std::min(end, s.window + drift) : end, head_bytes = reach * s.head_dim * 4;
  int64_t kv_heads = 1;
  while (s.num_kv_heads % (2 * kv_heads) == 0 && 2 * kv_heads * head_bytes <= cache_bytes) kv_heads *= 2;
  const int64_t query_tiles = ceil_div(Nq, queries), num_tiles = query_tiles * (s.num_heads / (heads * together));
  SLUICE_ASSERT(num_tiles < INT32_MAX / 2);
  return {.queries = queries,
          .heads = heads,
          .together = together,
          .num_query_tiles = static_cast<int32_t>(query_tiles),
          .head_tiles_together = static_cast<int32_t>(kv_heads * group / (heads * together)),
          .num_tiles = static_cast<int32_t>(num_tiles)};
}

ForwardParams forward_params(const AttentionForward& args, const AttentionMask& mask, const ForwardTiles& tiles,
                             int32_t* next_tile) {
  const AttentionShape& s = args.shape;
  return {.mask = mask,
          .tiles = tiles,
          .query_begin = static_cast<int32_t>(args.query_begin),
          .num_queries = static_cast<int32_t>(args.q.shape[0]),
          .num_heads = static_cast<int32_t>(s.num_heads),
          .group = static_cast<int32_t>(s.num_heads / s.num_kv_heads),
          .scale = s.scale,
          .softcap = s.softcap,
          .o = static_cast<__nv_bfloat16*>(args.o.data),
          .lse = args.lse.as<float>(),
          .next_tile = next_tile};
}

namespace {

// Every thread of the consumers gives back what it has read: a lane for its warp would cost the same, and racecheck
// (CUDA 13.0) does not follow it.
template <int head_dim>
struct Narrow {
  static constexpr int rows = 128;
  static constexpr int keys = head_dim == 256 ? 80 : 128;  // of a block
  static constexpr int stages = head_dim == 256 ? 2 : 3;   // blocks of keys, and as many of values, in shared memory
  static constexpr bool turns = head_dim <= 128;
  static constexpr int slabs = head_dim / 64;
  static constexpr int q_bytes = rows * head_dim * 2, kv_bytes = keys * head_dim * 2;
  static constexpr int q_slab = rows * 128, kv_slab = keys * 128;

  struct Signals {
    uint64_t q_full, q_empty, k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
    int32_t tile;
    KeyBlock block[stages];  // of k
  };
  static constexpr int shared_bytes = q_bytes + 2 * stages * kv_bytes + static_cast<int>(sizeof(Signals));
};

constexpr int narrow_threads = 384;
constexpr int consumers = 256;  // threads

struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  template <int stages>
  __device__ void advance() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

// plain: one root and no softcap.
template <int head_dim, bool plain>
__global__ void __launch_bounds__(narrow_threads, 1)
    narrow_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                  const __grid_constant__ CUtensorMap v_map, const __grid_constant__ ForwardParams p) {
#ifdef SLUICE_SM90A
  using Plan = Narrow<head_dim>;
  using Signals = typename Plan::Signals;
  constexpr int stages = Plan::stages, keys = Plan::keys;
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned char* const q_tile = memory;
  unsigned char* const k_tiles = memory + Plan::q_bytes;
  unsigned char* const v_tiles = k_tiles + stages * Plan::kv_bytes;
  Signals& signals = *reinterpret_cast<Signals*>(v_tiles + stages * Plan::kv_bytes);

  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 32), 0),
            lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    barrier_init(&signals.q_full, 1);
    barrier_init(&signals.q_empty, consumers);
    for (int i = 0; i < stages; ++i) {
      barrier_init(&signals.k_full[i], 1);
      barrier_init(&signals.k_empty[i], consumers);
      barrier_init(&signals.v_full[i], 1);
      barrier_init(&signals.v_empty[i], consumers);
    }
    barrier_init_fence();
  }
  __syncthreads();

  if (warp < 4) {
    registers_dealloc<40>();
    if (warp != 0) return;
    if (lane == 0) {
      prefetch_map(&q_map);
      prefetch_map(&k_map);
      prefetch_map(&v_map);
    }
    Ring k, v;
    uint32_t q_parity = 0;
    for (int32_t tile = static_cast<int32_t>(blockIdx.x); tile < p.tiles.num_tiles;) {
      int32_t next_tile = 0;
      if (lane == 0) next_tile = static_cast<int32_t>(gridDim.x) + atomicAdd(p.next_tile, 1);
      const ForwardTile t = tile_at(p.tiles, tile);
      const int kv_head = t.first_head / p.group;
      KeyBlocks<keys, plain> blocks(p.mask, p.query_begin + t.first_query, p.last_token(t.first_query));
      const auto load_k = [&](KeyBlock block) {
        barrier_wait(&signals.k_empty[k.stage], k.parity ^ 1);
        if (lane == 0) {
          signals.block[k.stage] = block;
          barrier_expect_bytes(&signals.k_full[k.stage], Plan::kv_bytes);
          for (int i = 0; i < Plan::slabs; ++i)
            tma_load_head(k_tiles + k.stage * Plan::kv_bytes + i * Plan::kv_slab, &k_map, &signals.k_full[k.stage],
                          64 * i, kv_head, block.index() * keys);
        }
        k.advance<stages>();
      };
      const auto load_v = [&](KeyBlock block) {
        barrier_wait(&signals.v_empty[v.stage], v.parity ^ 1);
        if (lane == 0) {
          barrier_expect_bytes(&signals.v_full[v.stage], Plan::kv_bytes);
          for (int i = 0; i < Plan::slabs; ++i)
            tma_load_head(v_tiles + v.stage * Plan::kv_bytes + i * Plan::kv_slab, &v_map, &signals.v_full[v.stage],
                          64 * i, kv_head, block.index() * keys);
        }
        v.advance<stages>();
      };

      KeyBlock block = blocks.next();
      load_k(block);
      barrier_wait(&signals.q_empty, q_parity ^ 1);
      q_parity ^= 1;
      if (lane == 0) {
        signals.tile = tile;
        barrier_expect_bytes(&signals.q_full, Plan::q_bytes);
        for (int h = 0; h < p.tiles.heads; ++h) {
          for (int i = 0; i < Plan::slabs; ++i)
            tma_load_head(q_tile + i * Plan::q_slab + h * p.tiles.queries * 128, &q_map, &signals.q_full, 64 * i,
                          t.first_head + h, t.first_query);
        }
      }
      while (!block.last()) {
        const KeyBlock next = blocks.next();
        load_k(next);
        load_v(block);
        block = next;
      }
      load_v(block);
      tile = __shfl_sync(0xffffffffU, next_tile, 0);
    }
    barrier_wait(&signals.q_empty, q_parity ^ 1);
    if (lane == 0) {
      signals.tile = -1;
      barrier_arrive(&signals.q_full);
    }
    return;
  }

  registers_alloc<232>();
  const int group = warp / 4 - 1;                         // warpgroup 0 or 1
  const int row = group * 64 + warp % 4 * 16 + lane / 4;  // of the tile: this one and row + 8
  const uint64_t q_operand = descriptor_k(shared_address(q_tile) + group * (64 * 128));
  const uint64_t k_operand = descriptor_k(shared_address(k_tiles));
  const uint64_t v_operand = descriptor_mn(shared_address(v_tiles), Plan::kv_slab);
  const bool capped = !plain && p.softcap > 0;
  const float c = capped ? log2_e : p.scale * log2_e;
  if (Plan::turns && group == 1) named_barrier_arrive(1, 256);

  float o[head_dim / 2];
  float s[keys / 2];
  uint32_t weights[keys / 16][4];
  Ring k, v;
  uint32_t q_parity = 0;
  for (;;) {
    barrier_wait(&signals.q_full, q_parity);
    q_parity ^= 1;
    const int32_t tile = signals.tile;
    if (tile < 0) return;
    const ForwardTile t = tile_at(p.tiles, tile);
    TokenMask query[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t q = t.first_query + ((row + 8 * i) & (p.tiles.queries - 1));
      const int32_t token = p.query_begin + min(q, p.num_queries - 1);
      query[i] = plain ? TokenMask{token, 0, 1, 0} : p.mask.token(token);
    }
    SoftmaxRows rows;

    // s = q k^T of the block in stage k.
    const auto multiply_scores = [&] {
      const uint64_t operand = k_operand + static_cast<uint64_t>(k.stage * (Plan::kv_bytes >> 4));
#pragma unroll
      for (int i = 0; i < head_dim / 16; ++i)
        wgmma_ss<keys, Major::k, Major::k>(s, q_operand + (i / 4 * (Plan::q_slab >> 4) + i % 4 * 2),
                                           operand + (i / 4 * (Plan::kv_slab >> 4) + i % 4 * 2), i > 0 ? 1 : 0);
      wgmma_commit();
    };
    // o += p v of the block in stage v.
    const auto multiply_values = [&] {
      const uint64_t operand = v_operand + static_cast<uint64_t>(v.stage * (Plan::kv_bytes >> 4));
#pragma unroll
      for (int i = 0; i < keys / 16; ++i) wgmma_rs<head_dim, Major::mn>(o, weights[i], operand + i * (2048 >> 4));
      wgmma_commit();
    };
    const auto softmax = [&](KeyBlock block) {
      if (capped) cap_scores(s, p.scale, p.softcap);
      if (block.masked()) hide_scores<plain>(s, p.mask, query, block.index() * keys);
      float most[2];
      SoftmaxRows::maxima(s, most);
      rows.raise(most, c);
      rows.template exponentials<0, keys / 8>(s, c);
    };

#pragma unroll
    for (float& x : o) x = 0;
    barrier_wait(&signals.k_full[k.stage], k.parity);
    KeyBlock block = signals.block[k.stage];
    wgmma_fence_registers(s);
    wgmma_fence();
    multiply_scores();
    wgmma_wait<0>();
    wgmma_fence_registers(s);
    barrier_arrive(&signals.k_empty[k.stage]);
    k.template advance<stages>();
    softmax(block);
    pack_operand<keys / 16>(s, weights);

    while (!block.last()) {
      barrier_wait(&signals.k_full[k.stage], k.parity);
      block = signals.block[k.stage];
      barrier_wait(&signals.v_full[v.stage], v.parity);
      if (Plan::turns) named_barrier_sync(1 + group, 256);
      wgmma_fence_registers(s);
      wgmma_fence_registers(o);
      hold_operand<keys / 16>(weights);
      wgmma_fence();
      multiply_scores();
      multiply_values();
      if (Plan::turns) named_barrier_arrive(2 - group, 256);
      wgmma_wait<1>();
      wgmma_fence_registers(s);
      barrier_arrive(&signals.k_empty[k.stage]);
      k.template advance<stages>();
      softmax(block);
      wgmma_wait<0>();
      wgmma_fence_registers(o);
      hold_operand<keys / 16>(weights);
      barrier_arrive(&signals.v_empty[v.stage]);
      v.template advance<stages>();
      rows.rescale(o);
      pack_operand<keys / 16>(s, weights);
    }
    barrier_arrive(&signals.q_empty);

    barrier_wait(&signals.v_full[v.stage], v.parity);
    wgmma_fence_registers(o);
    hold_operand<keys / 16>(weights);
    wgmma_fence();
    multiply_values();
    wgmma_wait<0>();
    wgmma_fence_registers(o);
    hold_operand<keys / 16>(weights);
    barrier_arrive(&signals.v_empty[v.stage]);
    v.template advance<stages>();

#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t r = row + 8 * i, q = t.first_query + (r & (p.tiles.queries - 1)),
                    head = t.first_head + r / p.tiles.queries;
      const bool inside = q < p.num_queries;
      const int64_t at = static_cast<int64_t>(q) * p.num_heads + head;
      const float total = SoftmaxRows::over_row(rows.sum[i]);
      store_row(o, i, 1.0F / total, inside ? p.o + at * head_dim : nullptr);
      if (inside && lane % 4 == 0) p.lse[at] = rows.lse(i, total, capped ? 1.0F : p.scale, c);
    }
  }
#endif
}

template <int head_dim>
void launch(Context& ctx, const AttentionForward& args, const AttentionMask& mask, int32_t* next_tile) {
  using Plan = Narrow<head_dim>;
  const AttentionShape& s = args.shape;
  const ForwardTiles tiles = forward_tiles(args, Plan::rows, 4, 1, 32 << 20);
  const ForwardParams params = forward_params(args, mask, tiles, next_tile);
  const int64_t Nq = args.q.shape[0], end = args.query_begin + Nq;
  const CUtensorMap q_map = tensor_map_heads(args.q.data, Nq, s.num_heads, head_dim, tiles.queries);
  const CUtensorMap k_map = tensor_map_heads(args.k.data, end, s.num_kv_heads, head_dim, Plan::keys);
  const CUtensorMap v_map = tensor_map_heads(args.v.data, end, s.num_kv_heads, head_dim, Plan::keys);
  const bool plain = mask.single && s.softcap == 0;
  const auto kernel = plain ? narrow_kernel<head_dim, true> : narrow_kernel<head_dim, false>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Plan::shared_bytes),
             "attention_forward");
  check_cuda(cudaMemsetAsync(next_tile, 0, sizeof *next_tile, stream_of(ctx)), "attention_forward");
  const int blocks = std::min(tiles.num_tiles, facts_of(ctx).num_multiprocessors);
  kernel<<<blocks, narrow_threads, Plan::shared_bytes, stream_of(ctx)>>>(q_map, k_map, v_map, params);
  check_launch("attention_forward");
}

}  // namespace

void forward_narrow(Context& ctx, const AttentionForward& args, const AttentionMask& mask, int32_t* next_tile) {
  switch (args.shape.head_dim) {
    case 64: return launch<64>(ctx, args, mask, next_tile);
    case 128: return launch<128>(ctx, args, mask, next_tile);
    default: SLUICE_ASSERT(args.shape.head_dim == 256); return launch<256>(ctx, args, mask, next_tile);
  }
}

}  // namespace sluice::cuda
