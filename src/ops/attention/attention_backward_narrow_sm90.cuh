// How the CTAs of attention_backward_narrow_sm90.cu are fed, and how they take turns to add to dQ, dK and dV.
#pragma once

#include "ops/attention/attention_backward_sm90.cuh"

namespace sluice::cuda::backward {

constexpr int info_end = -1;
constexpr int writers = 3;  // warps that write dQ

struct NarrowMaps {
  CUtensorMap q, k, v, do_, dq, dk, dv;
};

template <int D>
struct Narrow {
  static constexpr int queries = 8192 / D;                  // of a step
  static constexpr int halves = queries / 64;               // of 64 queries
  static constexpr int stages = 2;                          // Q and dO
  static constexpr int keys_bytes = D * 256;                // K or V of 128 keys
  static constexpr int step_bytes = 2 * slab_bytes;         // Q or dO
  static constexpr int ds_bytes = halves * 2 * slab_bytes;  // slabs [128 keys, 64 queries]
  static constexpr int dq_bytes = 64 * 64 * 4;              // of a warpgroup: slabs [64 queries, 32]
  static constexpr int dq_stages = D == 128 ? 2 : 1;
  static constexpr int values_bytes = queries * 4;  // lse2 or delta
  static constexpr int shared_bytes =
      1024 + 2 * keys_bytes + stages * 2 * (step_bytes + values_bytes) + 2 * ds_bytes + 2 * dq_stages * dq_bytes;
};

template <int D>
struct NarrowBarriers {
  Ring<Narrow<D>::stages> q, do_;
  uint64_t keys_full, ds_full[2], ds_empty[2];
  uint64_t dq_full[2][writers], dq_empty[2][Narrow<D>::dq_stages];  // of a warpgroup
  int ticket;
};

// In scratch; all but `first` and `last` begin at zero.
struct Turns {
  int* cta;      // of the next one
  int* keys;     // [blocks of keys, K/V heads, 2 warpgroups]: parts of dK and dV that were added
  int* queries;  // [heads, steps]: 1 + the block of keys whose part of dQ was added last
  int* first;    // [steps]: the first block of keys of which they see something; not where the mask is of a single root
  int* last;     // [blocks of keys]: the last step that sees something of them; the same
  int num_steps;
};

// Of a CTA.
struct Work {
  int k_block, kv_head, head_begin, head_end, part;
  int together;  // heads that share a walk over the queries: with a window one, lest dQ leave the cache between two additions
};

__device__ __forceinline__ float2 load_pair(uint32_t shared) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(shared));
  return x;
}
__device__ __forceinline__ void store_shared(uint32_t shared, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(x) : "memory");
}
__device__ __forceinline__ void store_pair(uint32_t shared, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(x), "f"(y) : "memory");
}
// The key of its block that this thread's accumulators begin with, the other being 8 further.
__device__ __forceinline__ int row_here() {
  const int thread = thread_here();
  return (thread / 128 - 1) * 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
}

__device__ __forceinline__ void store_box(const CUtensorMap* map, uint32_t shared, int col, int head, int row,
                                          bool add) {
#ifdef SLUICE_SM90A
  if (add) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
            reinterpret_cast<uint64_t>(map)),
        "r"(shared), "r"(col), "r"(head), "r"(row)
        : "memory");
  } else {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
                     reinterpret_cast<uint64_t>(map)),
                 "r"(shared), "r"(col), "r"(head), "r"(row)
                 : "memory");
  }
#endif
}
// Between what a thread did through bulk copies and what it does otherwise, in any memory.
__device__ __forceinline__ void fence_async() {
#ifdef SLUICE_SM90A
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_turn(const int* turn, int value) {
  int now;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  } while (now != value);
}
__device__ __forceinline__ void give_turn(int* turn, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(value) : "memory");
}

// ---- who sees what ---------------------------------------------------------------------------------------------------------------------

template <int queries>
__device__ __forceinline__ BlockMask queries_of(const AttentionMask& mask, int step) {
  if constexpr (queries == 64) return mask.block(step);
  else return merge(mask.block(2 * step), mask.block(2 * step + 1));
}

// Whether queries see something of a block of keys, and whether all of them all of it.
struct Seen {
  bool some = false, all = false;
};
__device__ __forceinline__ Seen seen_of(const AttentionMask& mask, const BlockMask& seeing, int k_block) {
  const Sight low = mask.sight(seeing, mask.block(2 * k_block)), high = mask.sight(seeing, mask.block(2 * k_block + 1));
  return {low != Sight::none || high != Sight::none, low == Sight::all && high == Sight::all};
}

// Fills turns.first and turns.last, lest every CTA search a long row of many spans. A warp for each number.
template <int queries>
__global__ void find_ends(const __grid_constant__ AttentionMask mask, const __grid_constant__ Turns turns,
                          int num_blocks) {
  const int index = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32), lane = threadIdx.x % 32;
  if (index < turns.num_steps) {
    const BlockMask seeing = queries_of<queries>(mask, index);
    const int own = index * queries / backward_block;
    for (int base = 0; base <= own; base += 32) {
      const bool some = base + lane <= own && seen_of(mask, seeing, base + lane).some;
      const unsigned found = __ballot_sync(0xffffffffU, some);
      if (found == 0) continue;
      if (lane == 0) turns.first[index] = base + __ffs(static_cast<int>(found)) - 1;
      return;
    }
  } else if (index < turns.num_steps + num_blocks) {
    const int k_block = index - turns.num_steps, own = k_block * backward_block / queries;
    for (int base = turns.num_steps - 1; base >= own; base -= 32) {
      const int step = base - lane;
      const bool some = step >= own && seen_of(mask, queries_of<queries>(mask, step), k_block).some;
      const unsigned found = __ballot_sync(0xffffffffU, some);
      if (found == 0) continue;
      if (lane == 0) turns.last[k_block] = base + 1 - __ffs(static_cast<int>(found));
      return;
    }
  }
}

// Calls body(step, all) for the blocks of queries that see something of a block of keys, last first. By a whole warp.
template <int queries, class Body>
__device__ __forceinline__ void for_steps(const AttentionMask& mask, const Turns& turns, int k_block, Body body) {
  const int first = k_block * backward_block / queries;
  int last = turns.num_steps - 1;
  if (mask.single) {
    const int64_t most = (static_cast<int64_t>(k_block) * backward_block + backward_block - 2 + mask.window) / queries;
    last = static_cast<int>(min(static_cast<int64_t>(last), most));
  } else {
    last = __ldg(turns.last + k_block);
  }
#pragma unroll 1
  for (int base = last; base >= first; base -= 32) {
    const int mine = base - static_cast<int>(threadIdx.x % 32);
    Seen seen;
    if (mine >= first) seen = seen_of(mask, queries_of<queries>(mask, mine), static_cast<int>(here(k_block)));
    const unsigned whole = __ballot_sync(0xffffffffU, seen.all);
#pragma unroll 1
    for (unsigned left = __ballot_sync(0xffffffffU, seen.some); left != 0; left &= left - 1) {
      const int bit = __ffs(static_cast<int>(left)) - 1;
      body(base - bit, (whole >> bit) & 1);
    }
  }
}

// The last block of keys before k_block of which the queries of a step see something, or -1. By a whole warp.
template <int queries>
__device__ __forceinline__ int block_before(const AttentionMask& mask, const Turns& turns, int k_block, int step) {
  if (!mask.single && __ldg(turns.first + step) == k_block) return -1;
  const BlockMask seeing = queries_of<queries>(mask, step);
#pragma unroll 1
  for (int base = 2 * k_block - 1; base >= 0; base -= 32) {  // of 64 keys
    const int mine = base - static_cast<int>(threadIdx.x % 32);
    const unsigned found = __ballot_sync(0xffffffffU, mine >= 0 && mask.sight(seeing, mask.block(mine)) != Sight::none);
    if (found != 0) return (base + 1 - __ffs(static_cast<int>(found))) / 2;
    if (mask.single) break;  // what it sees is contiguous
  }
  return -1;
}

// ---- copying in, dQ out ------------------------------------------------------------------------------------------------------------------

// Addresses in shared memory.
template <int D>
struct NarrowTiles {
  using Sizes = Narrow<D>;
  uint32_t k;
  __device__ explicit NarrowTiles(uint32_t begin) : k(begin) {}
  __device__ uint32_t v() const { return k + Sizes::keys_bytes; }
  __device__ uint32_t q(int stage) const { return k + 2 * Sizes::keys_bytes + stage * Sizes::step_bytes; }
  __device__ uint32_t do_(int stage) const { return q(Sizes::stages + stage); }
  __device__ uint32_t ds(int buffer) const { return q(2 * Sizes::stages) + buffer * Sizes::ds_bytes; }
  __device__ uint32_t dq(int half, int buffer) const {
    return ds(2) + (half * Sizes::dq_stages + buffer) * Sizes::dq_bytes;
  }
  __device__ uint32_t lse2(int stage) const { return dq(2, 0) + stage * Sizes::values_bytes; }
  __device__ uint32_t delta(int stage) const { return lse2(Sizes::stages + stage); }
};

template <int D>
__device__ __forceinline__ void copy_in(const BackwardArgs& args, const NarrowMaps& maps, const Turns& turns,
                                        const Work& work, NarrowBarriers<D>& barriers, const NarrowTiles<D>& tiles) {
  using Sizes = Narrow<D>;
  constexpr int queries = Sizes::queries;
  const bool leader = threadIdx.x % 32 == 0;
  if (leader) {
    barrier_expect_bytes(&barriers.keys_full, 2 * Sizes::keys_bytes);
#pragma unroll
    for (int c = 0; c < D / 64; ++c) {
      const uint32_t to = tiles.k + c * 2 * slab_bytes;
      const int row = work.k_block * backward_block;
      tma_load_slab(to, &maps.k, &barriers.keys_full, 64 * c, work.kv_head, row);
      tma_load_slab(to + Sizes::keys_bytes, &maps.v, &barriers.keys_full, 64 * c, work.kv_head, row);
    }
  }
  Turn turn;
#pragma unroll 1
  for (int first = work.head_begin; first < work.head_end; first += work.together)
    for_steps<queries>(args.mask, turns, work.k_block, [&](int step, int all) {
#pragma unroll 1
      for (int head = first; head < first + work.together; ++head) {
        const int stage = turn.stage, row = step * queries;
        barrier_wait(&barriers.q.empty[stage], turn.parity ^ 1);
        if (leader) {
          uint64_t* const full = &barriers.q.full[stage];
          barriers.q.info[stage] = 2 * step + all;
          barrier_expect_bytes(full, Sizes::step_bytes + Sizes::values_bytes);
#pragma unroll
          for (int c = 0; c < D / 64; ++c)
            tma_load_slab(tiles.q(stage) + c * slab_bytes, &maps.q, full, 64 * c, head, row);
          bulk_load(tiles.lse2(stage), args.lse2 + static_cast<int64_t>(head) * args.padded + row, Sizes::values_bytes,
                    full);
        }
        barrier_wait(&barriers.do_.empty[stage], turn.parity ^ 1);
        if (leader) {
          uint64_t* const full = &barriers.do_.full[stage];
          barrier_expect_bytes(full, Sizes::step_bytes + Sizes::values_bytes);
#pragma unroll
          for (int c = 0; c < D / 64; ++c)
            tma_load_slab(tiles.do_(stage) + c * slab_bytes, &maps.do_, full, 64 * c, head, row);
          bulk_load(tiles.delta(stage), args.delta + static_cast<int64_t>(head) * args.padded + row,
                    Sizes::values_bytes, full);
        }
        turn.template next<Sizes::stages>();
      }
    });
  barrier_wait(&barriers.q.empty[turn.stage], turn.parity ^ 1);
  if (leader) {
    barriers.q.info[turn.stage] = info_end;
    barrier_arrive(&barriers.q.full[turn.stage]);
  }
}

// Adds what the warpgroups put in shared memory to dQ, in turn. Warps share the steps: an addition is complete, and the turn given on, long after
// its shared memory is free.
template <int D>
__device__ __forceinline__ void write_dq(const BackwardArgs& args, const NarrowMaps& maps, const Turns& turns,
                                         const Work& work, NarrowBarriers<D>& barriers, const NarrowTiles<D>& tiles,
                                         int writer) {
  using Sizes = Narrow<D>;
  constexpr int queries = Sizes::queries;
  int next = writer, buffer = 0;  // next: steps until this warp's next
  uint32_t parity = 0;
#pragma unroll 1
  for (int first = work.head_begin; first < work.head_end; first += work.together)
    for_steps<queries>(args.mask, turns, work.k_block, [&](int step, int) {
      const int before = block_before<queries>(args.mask, turns, work.k_block, step) + 1;  // as turns are written
#pragma unroll 1
      for (int head = first; head < first + work.together; ++head) {
        if (next == 0 && threadIdx.x % 32 == 0) {
          int* const mine = turns.queries + static_cast<int64_t>(head) * turns.num_steps + step;
          if (before > 0) wait_for_turn(mine, before);
          fence_async();
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            barrier_wait(&barriers.dq_full[half][writer], parity);
            const int col = D == 128 ? 64 * half : 0, row = step * queries + (D == 128 ? 0 : 64 * half);
            const uint32_t from = tiles.dq(half, buffer);
            store_box(&maps.dq, from, col, head, row, before > 0);
            store_box(&maps.dq, from + slab_bytes, col + 32, head, row, before > 0);
          }
          tma_store_commit();
          tma_store_wait<0>();
          barrier_arrive(&barriers.dq_empty[0][buffer]);
          barrier_arrive(&barriers.dq_empty[1][buffer]);
          bulk_store_done();
          fence_async();
          give_turn(mine, work.k_block + 1);
        }
        __syncwarp();
        if (next == 0) next = writers, parity ^= 1;
        --next;
        if (++buffer == Sizes::dq_stages) buffer = 0;
      }
    });
}

}  // namespace sluice::cuda::backward
