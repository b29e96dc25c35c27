// attention_forward for head_dim 512 on Hopper. A block has 64 rows; each of two warpgroups keeps 256 columns of their output, and computes
// the scores of 64 of the 128 keys of a block. They exchange row maxima and exponentials through shared memory.
//
// Keys and values stream through a ring of eight chunks of 16 KiB: a block of keys is eight chunks of 128 keys x 64 columns, one of values
// eight chunks of 16 keys x 512 columns, in the order k0, k1, v0, k2, v1, … The scores of block j + 1 are computed before block j's are
// multiplied with the values, and its softmax runs beside that product. Where a group has an even number of heads, two blocks of a cluster
// take neighbouring heads, and each brings half of every chunk to both.
#include "ops/attention/attention_forward_sm90.cuh"

#include <algorithm>

namespace sluice::cuda {

namespace {

constexpr int wide_dim = 512, wide_rows = 64, wide_keys = 128, wide_threads = 384, consumer_warps = 8;
constexpr int chunks = 8, chunk_bytes = 16384, half_chunk = chunk_bytes / 2;
constexpr int value_keys = wide_keys / chunks;  // of a chunk of values
constexpr int value_slab = value_keys * 128;    // bytes
constexpr int q_slab = wide_rows * 128, q_bytes = wide_rows * wide_dim * 2;
constexpr int weights_bytes = wide_rows * 64 * 2;  // of one warpgroup

struct Signals {
  uint64_t full[chunks], empty[chunks], q_full, q_empty;
  float row_values[2][wide_rows];  // of each warpgroup: maxima, and sums at last
  int32_t block;                   // code of the KeyBlock that the keys in the ring are of
};
constexpr int wide_shared_bytes =
    q_bytes + chunks * chunk_bytes + 4 * weights_bytes + static_cast<int>(sizeof(Signals));

#ifdef SLUICE_SM90A

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline uint32_t cluster_size() {
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}
// tma_load_head to the same place in all blocks of `ranks`; completes on the barrier of each.
__device__ inline void tma_load_head_all(void* shared, const CUtensorMap* map, uint64_t* barrier, int col, int head,
                                         int row, uint16_t ranks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5}], [%2], %6;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(col), "r"(head), "r"(row), "h"(ranks)
      : "memory");
}

// signals.block, written by one thread and read by lane 0 of a warp, the others getting nothing. Ordered by full[0] and
// empty[0]; atomic besides, as racecheck (CUDA 13.0) does not follow an mbarrier at which a lane arrives for its warp.
__device__ inline void write_word(int32_t* word, int32_t value) {
  asm volatile("{.reg .b32 old; atom.relaxed.cta.shared.exch.b32 old, [%0], %1;}" ::"r"(shared_address(word)),
               "r"(value)
               : "memory");
}
__device__ inline int32_t read_word(const int32_t* word) {
  int32_t value;
  asm volatile(
      "{.reg .pred first;\n"
      "setp.eq.u32 first, %2, 0;\n"
      "@first atom.relaxed.cta.shared.add.s32 %0, [%1], 0;}"
      : "=r"(value)
      : "r"(shared_address(word)), "r"(threadIdx.x % 32)
      : "memory");
  return value;
}

// The sets of tiles of a cluster: there and back, so that all get as much work where it falls from tile to tile.
__device__ inline int32_t tile_of_round(int32_t round, int32_t cluster, int32_t clusters) {
  return round * clusters + (round % 2 == 0 ? cluster : clusters - 1 - cluster);
}

#endif  // SLUICE_SM90A

// plain: one root and no softcap.
template <bool plain>
__global__ void __launch_bounds__(wide_threads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
                const __grid_constant__ CUtensorMap v_map, const __grid_constant__ ForwardParams p) {
#ifdef SLUICE_SM90A
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned char* const q_tile = memory;
  unsigned char* const ring = memory + q_bytes;
  unsigned char* const weights_tiles = ring + chunks * chunk_bytes;  // [2 in turn][2 warpgroups]
  Signals& signals = *reinterpret_cast<Signals*>(weights_tiles + 4 * weights_bytes);

  const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 32), 0),
            lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t size = cluster_size(), rank = cluster_rank();
  const auto cluster = static_cast<int32_t>(blockIdx.x / size), clusters = static_cast<int32_t>(gridDim.x / size);
  if (threadIdx.x == 0) {
    for (int i = 0; i < chunks; ++i) {
      barrier_init(&signals.full[i], 1);
      barrier_init(&signals.empty[i], consumer_warps * static_cast<int>(size));
    }
    barrier_init(&signals.q_full, 1);
    barrier_init(&signals.q_empty, consumer_warps);
    barrier_init_fence();
  }
  __syncthreads();
  cluster_barrier();

  if (warp < 4) {
    registers_dealloc<40>();
    if (warp == 0) {
      if (lane == 0) {
        prefetch_map(&q_map);
        prefetch_map(&k_map);
        prefetch_map(&v_map);
      }
      uint32_t parity = 1, q_parity = 1;  // of what is awaited to be empty
      const auto ranks = static_cast<uint16_t>((1U << size) - 1);
      for (int32_t round = 0; round * clusters < p.tiles.num_tiles; ++round) {
        const int32_t tile = tile_of_round(round, cluster, clusters);
        if (tile >= p.tiles.num_tiles) break;
        ForwardTile t = tile_at(p.tiles, tile);
        t.first_head += static_cast<int32_t>(rank) * p.tiles.heads;
        const int kv_head = t.first_head / p.group;
        KeyBlocks<wide_keys, plain> blocks(p.mask, p.query_begin + t.first_query, p.last_token(t.first_query));
        const auto load_keys = [&](KeyBlock block) {
          for (int i = 0; i < chunks; ++i) {
            barrier_wait(&signals.empty[i], parity);
            if (lane == 0) {
              if (i == 0) write_word(&signals.block, block.code);
              barrier_expect_bytes(&signals.full[i], chunk_bytes);
              for (uint32_t half = rank; half < 2; half += size)
                tma_load_head_all(ring + i * chunk_bytes + half * half_chunk, &k_map, &signals.full[i], 64 * i, kv_head,
                                  block.index() * wide_keys + static_cast<int>(half) * 64, ranks);
            }
          }
          parity ^= 1;
        };
        const auto load_values = [&](KeyBlock block) {
          for (int i = 0; i < chunks; ++i) {
            barrier_wait(&signals.empty[i], parity);
            if (lane == 0) {
              barrier_expect_bytes(&signals.full[i], chunk_bytes);
              for (uint32_t half = rank; half < 2; half += size) {
                for (int slab = static_cast<int>(half) * 4; slab < static_cast<int>(half) * 4 + 4; ++slab)
                  tma_load_head_all(ring + i * chunk_bytes + slab * value_slab, &v_map, &signals.full[i], 64 * slab,
                                    kv_head, block.index() * wide_keys + i * value_keys, ranks);
              }
            }
          }
          parity ^= 1;
        };

        barrier_wait(&signals.q_empty, q_parity);
        q_parity ^= 1;
        if (lane == 0) {
          barrier_expect_bytes(&signals.q_full, q_bytes);
          for (int h = 0; h < p.tiles.heads; ++h) {
            for (int i = 0; i < wide_dim / 64; ++i)
              tma_load_head(q_tile + i * q_slab + h * p.tiles.queries * 128, &q_map, &signals.q_full, 64 * i,
                            t.first_head + h, t.first_query);
          }
        }
        KeyBlock block = blocks.next();
        load_keys(block);
        while (!block.last()) {
          const KeyBlock next = blocks.next();
          load_keys(next);
          load_values(block);
          block = next;
        }
        load_values(block);
      }
    }
  } else {
    registers_alloc<232>();
    const int group = warp / 4 - 1;            // warpgroup 0 or 1
    const int row = warp % 4 * 16 + lane / 4;  // this one and row + 8
    uint64_t q_operand = descriptor_k(shared_address(q_tile));
    uint64_t k_operand = descriptor_k(shared_address(ring) + group * half_chunk);
    uint64_t v_operand = descriptor_mn(shared_address(ring) + group * half_chunk, value_slab);
    const uint64_t weights_operand = descriptor_k(shared_address(weights_tiles));
    // Where this lane's row of 16 bytes of a step's four 8 x 8 matrices lies: columns + 16 k are + 32 k bytes before swizzling.
    const uint32_t weights_row = static_cast<uint32_t>(warp % 4 * 16 + lane % 16),
                   weights_half = static_cast<uint32_t>(lane / 16);
    const uint32_t weights_address = shared_address(weights_tiles) + group * weights_bytes;
    const bool capped = !plain && p.softcap > 0;
    const float c = capped ? log2_e : p.scale * log2_e;
    const auto release = [&](int chunk) {
      __syncwarp();
      if (lane < static_cast<int>(size)) barrier_arrive_at(&signals.empty[chunk], lane);
    };

    float o[128];
    float s[32], upper[32];             // scores over the lower and the upper half of the columns
    uint32_t parity = 0, q_parity = 0;  // of what is awaited to be full
    int turn = 0;                       // of the weights
    for (int32_t round = 0; round * clusters < p.tiles.num_tiles; ++round) {
      const int32_t tile = tile_of_round(round, cluster, clusters);
      if (tile >= p.tiles.num_tiles) break;
      ForwardTile t = tile_at(p.tiles, tile);
      t.first_head += static_cast<int32_t>(rank) * p.tiles.heads;
      TokenMask query[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t q = t.first_query + ((row + 8 * i) & (p.tiles.queries - 1));
        const int32_t token = p.query_begin + min(q, p.num_queries - 1);
        query[i] = plain ? TokenMask{token, 0, 1, 0} : p.mask.token(token);
      }
      SoftmaxRows rows;
      int32_t word = 0;  // of the block, in lane 0
      KeyBlock block;

      // s += q k^T of 64 columns; those before are done.
      const auto multiply_keys = [&](int i) {
        barrier_wait(&signals.full[i], parity);
        if (i == 0) word = read_word(&signals.block);
        asm volatile("" : "+l"(q_operand), "+l"(k_operand));  // else the operands of all steps are kept in registers
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
          wgmma_ss<64, Major::k, Major::k>(i < chunks / 2 ? s : upper, q_operand + (i * (q_slab >> 4) + k * 2),
                                           k_operand + (i * (chunk_bytes >> 4) + k * 2), i % 4 + k > 0 ? 1 : 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (i > 0) release(i - 1);
      };
      // o += p v of 16 keys twice, chunks i and i + 1; what was before is done. ptxas keeps the products asynchronous in this form only: a
      // wait for all but the last group, in the block of code that holds it.
      const auto multiply_values = [&](int i) {
        barrier_wait(&signals.full[i], parity);
        barrier_wait(&signals.full[i + 1], parity);
        asm volatile("" : "+l"(v_operand));
        const uint64_t operand =
            weights_operand + static_cast<uint64_t>((2 * turn + i / 4) * (weights_bytes >> 4) + i % 4 * 2);
        wgmma_fence();
        wgmma_ss<256, Major::k, Major::mn>(o, operand, v_operand + i * (chunk_bytes >> 4));
        wgmma_ss<256, Major::k, Major::mn>(o, operand + 2, v_operand + (i + 1) * (chunk_bytes >> 4));
        wgmma_commit();
        wgmma_wait<1>();
        if (i > 0) {
          release(i - 2);
          release(i - 1);
        }
      };
      // The tensor cores cut the sum off, towards zero, after every step: two shorter sums, added with rounding, err half as much.
      // Then the maxima over the block, of both warpgroups' scores.
      const auto raise_maxima = [&] {
        // The walk ends by this number: where ptxas sees that warps do not diverge, descriptors stay in uniform registers.
        block.code = __shfl_sync(0xffffffffU, word, 0);
#pragma unroll
        for (int i = 0; i < 32; ++i) s[i] = __fadd_rn(s[i], upper[i]);
        if (capped) cap_scores(s, p.scale, p.softcap);
        if (block.masked()) hide_scores<plain>(s, p.mask, query, block.index() * wide_keys + group * 64);
        float most[2];
        SoftmaxRows::maxima(s, most);
        if (lane % 4 == 0) {
          signals.row_values[group][row] = most[0];
          signals.row_values[group][row + 8] = most[1];
        }
        named_barrier_sync(1, 256);
        most[0] = fmaxf(most[0], signals.row_values[1 - group][row]);
        most[1] = fmaxf(most[1], signals.row_values[1 - group][row + 8]);
        rows.raise(most, c);
      };
      const auto store_weights = [&](int to) {
        uint32_t weights[4][4];
        pack_operand<4>(s, weights);
        const uint32_t base = weights_address + static_cast<uint32_t>(2 * to * weights_bytes) + weights_row * 128;
#pragma unroll
        for (uint32_t k = 0; k < 4; ++k)
          stmatrix_x4(base + (((2 * k + weights_half) ^ (weights_row & 7)) << 4), weights[k][0], weights[k][1],
                      weights[k][2], weights[k][3]);
        fence_async_shared();
      };

#pragma unroll
      for (float& x : o) x = 0;
      barrier_wait(&signals.q_full, q_parity);
      q_parity ^= 1;
      wgmma_fence_registers(s);
      wgmma_fence_registers(upper);
#pragma unroll
      for (int i = 0; i < chunks; ++i) multiply_keys(i);
      parity ^= 1;
      wgmma_wait<0>();
      wgmma_fence_registers(s);
      wgmma_fence_registers(upper);
      release(7);
      raise_maxima();
      rows.exponentials<0, 4>(s, c);
      rows.exponentials<4, 8>(s, c);
      store_weights(turn);

      while (!block.last()) {
        wgmma_fence_registers(s);
        wgmma_fence_registers(upper);
#pragma unroll
        for (int i = 0; i < chunks; ++i) multiply_keys(i);
        parity ^= 1;
        named_barrier_sync(2, 256);  // the weights are there
        wgmma_fence_registers(o);
        multiply_values(0);
        wgmma_fence_registers(s);
        wgmma_fence_registers(upper);
        release(7);
        raise_maxima();
        multiply_values(2);
        rows.exponentials<0, 4>(s, c);
        multiply_values(4);
        rows.exponentials<4, 8>(s, c);
        store_weights(turn ^ 1);
        multiply_values(6);
        parity ^= 1;
        turn ^= 1;
        wgmma_wait<0>();
        wgmma_fence_registers(o);
        release(6);
        release(7);
        rows.rescale(o);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&signals.q_empty);

      named_barrier_sync(2, 256);
      wgmma_fence_registers(o);
#pragma unroll
      for (int i = 0; i < chunks; i += 2) multiply_values(i);
      parity ^= 1;
      turn ^= 1;
      wgmma_wait<0>();
      wgmma_fence_registers(o);
      release(6);
      release(7);

      float total[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        total[i] = SoftmaxRows::over_row(rows.sum[i]);
        if (lane % 4 == 0) signals.row_values[group][row + 8 * i] = total[i];
      }
      named_barrier_sync(1, 256);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t r = row + 8 * i, q = t.first_query + (r & (p.tiles.queries - 1)),
                      head = t.first_head + r / p.tiles.queries;
        total[i] += signals.row_values[1 - group][r];
        const bool inside = q < p.num_queries;
        const int64_t at = static_cast<int64_t>(q) * p.num_heads + head;
        store_row(o, i, 1.0F / total[i], inside ? p.o + at * wide_dim + group * 256 : nullptr);
        if (inside && group == 0 && lane % 4 == 0) p.lse[at] = rows.lse(i, total[i], capped ? 1.0F : p.scale, c);
      }
      named_barrier_sync(2, 256);  // the sums have been read
    }
  }
  cluster_barrier();  // nobody leaves while the other may still write here
#endif
}

// size: blocks of a cluster.
template <bool plain, int size>
void launch(Context& ctx, const AttentionForward& args, const AttentionMask& mask) {
  const AttentionShape& s = args.shape;
  // One section: tiles are dealt in rounds of equal work, so that all walk about the same keys at a time.
  const ForwardTiles tiles = forward_tiles(args, wide_rows, 4, size, INT64_MAX / 4);
  const ForwardParams params = forward_params(args, mask, tiles, nullptr);
  const int64_t Nq = args.q.shape[0], end = args.query_begin + Nq;
  const CUtensorMap q_map = tensor_map_heads(args.q.data, Nq, s.num_heads, wide_dim, tiles.queries);
  const CUtensorMap k_map = tensor_map_heads(args.k.data, end, s.num_kv_heads, wide_dim, 64);
  const CUtensorMap v_map = tensor_map_heads(args.v.data, end, s.num_kv_heads, wide_dim, value_keys);
  const auto kernel = wide_kernel<plain>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, wide_shared_bytes),
             "attention_forward");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(size);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(wide_threads);
  config.dynamicSmemBytes = wide_shared_bytes;
  config.stream = stream_of(ctx);
  config.attrs = &attribute;
  config.numAttrs = 1;
  config.gridDim = dim3(size);
  static const int clusters = [&] {  // that run at once
    int most = 0;
    check_cuda(cudaOccupancyMaxActiveClusters(&most, kernel, &config), "attention_forward");
    return std::max(most, 1);
  }();
  config.gridDim.x *= static_cast<unsigned>(std::min(tiles.num_tiles, clusters));
  check_cuda(cudaLaunchKernelEx(&config, kernel, q_map, k_map, v_map, params), "attention_forward");
}

}  // namespace

void forward_wide(Context& ctx, const AttentionForward& args, const AttentionMask& mask) {
  const bool plain = mask.single && args.shape.softcap == 0;
  if (args.shape.num_heads / args.shape.num_kv_heads % 2 == 0) {
    plain ? launch<true, 2>(ctx, args, mask) : launch<false, 2>(ctx, args, mask);
  } else {
    plain ? launch<true, 1>(ctx, args, mask) : launch<false, 1>(ctx, args, mask);
  }
}

}  // namespace sluice::cuda
