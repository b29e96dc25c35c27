// Backward of attention with head dimensions 64 and 128 on Hopper: five products for a tile; dK and dV in registers, dQ added up in memory.
//
// A CTA owns 128 keys of a K/V head: two warpgroups of 64 keys each, and a third whose warps copy and write dQ. It walks the blocks of queries
// that see its keys, the last first, each with all its heads. In a step a warpgroup forms
//   S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q
// with P and dS (times `scale`) from registers, puts dS in shared memory, and of both warpgroups' dS of the step before its half of
// dQ^T = K^T dS^T, which a writing warp adds to memory. S of the next step is queued before dQ is waited for, so that the tensor cores have work
// meanwhile. The warpgroups form P by turns: while one does, the other's products run. dQ comes a step late lest they wait for one another.
//
// Additions to a block of dQ are in the order of the keys: a turn, a number in memory, says which block of keys was added last, and a writer
// waits for that of the block before its own. CTAs take blocks of keys from a counter, first keys first: who is waited for has started. A CTA
// begins where its predecessor began, so that once it is a step behind it does not wait.
#include "ops/attention/attention_backward_narrow_sm90.cuh"

namespace sluice::cuda {

namespace {

using namespace backward;

// Elements 32 h … of d, which are 64 columns, as the A operand of four steps of a product.
template <int count>
__device__ __forceinline__ void pack_half(const float (&d)[count], int h, uint32_t (&a)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = pack_bf16(d[32 * h + 8 * k + 2 * i], d[32 * h + 8 * k + 2 * i + 1]);
  }
}

// The values of d end here.
template <int count>
__device__ __forceinline__ void forget(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "=f"(d[i]));
}

template <int D>
__device__ __forceinline__ void form(const BackwardArgs& args, const NarrowMaps& maps, const Turns& turns,
                                     const Work& work, NarrowBarriers<D>& barriers, const NarrowTiles<D>& tiles) {
#ifdef SLUICE_SM90A
  using Sizes = Narrow<D>;
  constexpr int queries = Sizes::queries, halves = Sizes::halves;
  const int half = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 128 - 1, 0), column = 2 * (threadIdx.x % 4);
  const bool leader = threadIdx.x % 32 == 0;
  const uint32_t k_rows = tiles.k + half * slab_bytes;

  float dk[D / 2], dv[D / 2], s[queries / 2], dp[queries / 2], dq[32];  // S and dP transposed: 64 keys x queries
  uint32_t a[halves][4][4], b[halves][4][4];
#pragma unroll
  for (int i = 0; i < D / 2; ++i) dk[i] = 0, dv[i] = 0;

  // d = (K or V) (Q or dO)^T
  const auto multiply = [&](float(&d)[queries / 2], uint32_t keys, uint32_t rows) {
    keys = low_k(keys), rows = low_k(rows);
    forget(d);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      wgmma_ss<queries, Major::k, Major::k>(d, descriptor(keys + (k / 4 * 2 * slab_bytes + k % 4 * 32) / 16),
                                            descriptor(rows + (k / 4 * slab_bytes + k % 4 * 32) / 16), k);
    }
    wgmma_commit();
  };

  // Where a thread's parts of dS begin in their tile, and << 16 those of dQ: columns of dQ^T are rows of 32 numbers, their 16
  // bytes swizzled. At D 64 there is no register to keep it.
  const auto find_places = [&] {
    const auto thread = static_cast<uint32_t>(thread_here());
    const uint32_t lane = thread % 32, warp = thread / 32 % 4, row = warp * 16 + lane % 16, r = lane / 4, c = lane % 4;
    const uint32_t ds = (row + half * 64) * 128 + ((lane / 16 ^ row % 8) << 4);
    const uint32_t dq_row = warp / 2 * slab_bytes + c * 256;
    return ds | (dq_row + (((warp % 2 * 4 + r / 4) ^ (2 * c)) << 4) + r % 4 * 4) << 16;
  };
  const uint32_t kept_places = D == 128 ? here(find_places()) : 0;
  const auto places = [&] { return D == 128 ? kept_places : find_places(); };

  Turn turn;
  uint32_t ds_parity = 0, ds_buffer = 0;
  Turn dq_turn;
  int writer = -1;  // the next to be given dQ; -1: the first dQ, of no step, is given to nobody
  const auto multiply_dq = [&](int buffer) {  // dQ^T: 64 of D x 64 queries
    const uint32_t keys = low_mn(tiles.k + (D == 128 ? half * 2 * slab_bytes : 0), 2 * slab_bytes),
                   ds = low_mn(tiles.ds(buffer) + (D == 128 ? 0 : half * 2 * slab_bytes), 2 * slab_bytes);
    forget(dq);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k)
      wgmma_ss<64, Major::mn, Major::mn>(dq, descriptor(keys + k * 2048 / 16), descriptor(ds + k * 2048 / 16), k);
    wgmma_commit();
  };
  const auto store_dq = [&] {
    barrier_wait(&barriers.dq_empty[half][dq_turn.stage], dq_turn.parity ^ 1);
    const uint32_t to = tiles.dq(half, dq_turn.stage) + (here(places()) >> 16);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t at = (to ^ (e / 2 * 32) ^ (e % 2 * 16)) + e % 2 * 128;
#pragma unroll
      for (int j = 0; j < 8; ++j) store_shared(at + j * 1024, dq[4 * j + e]);
    }
    fence_async_shared();
    __syncwarp();
    if (leader && writer >= 0) barrier_arrive(&barriers.dq_full[half][writer]);
    if (writer >= 0) dq_turn.template next<Sizes::dq_stages>();
    if (++writer == writers) writer = 0;
  };
  const int to_form_p = 4 + half, other_forms_p = 5 - half;  // named barriers
  if (half == 1) named_barrier_arrive(other_forms_p, 256);
  barrier_wait(&barriers.keys_full, 0);
  barrier_wait(&barriers.q.full[0], 0);
  int info = *static_cast<volatile int*>(&barriers.q.info[0]);
  multiply(s, k_rows, tiles.q(0));
  do {
    const int stage = turn.stage;
    wgmma_wait<0>();
    wgmma_fence_registers(s);
    barrier_wait(&barriers.do_.full[stage], turn.parity);
    multiply(dp, k_rows + Sizes::keys_bytes, tiles.do_(stage));
    named_barrier_sync(to_form_p, 256);
    const bool masked = info % 2 == 0;
    uint32_t seen[halves];
    if (masked) {
      const int row = work.k_block * backward_block + row_here(), query = info / 2 * queries + column;
      const TokenMask key[2] = {args.mask.token(row), args.mask.token(row + 8)};
#pragma unroll
      for (int h = 0; h < halves; ++h) {
        seen[h] = 0;
#pragma unroll 2
        for (int i = 0; i < 16; ++i) {
          const TokenMask token = args.mask.token(query + 64 * h + 8 * (i / 2) + i % 2);
#pragma unroll
          for (int r = 0; r < 2; ++r)
            seen[h] |= static_cast<uint32_t>(args.mask.sees(token, key[r])) << (i / 2 * 4 + 2 * r + i % 2);
        }
      }
    }
    const uint32_t lse2 = tiles.lse2(stage) + 4 * column, delta = tiles.delta(stage) + 4 * column;
    // In s: P, or with a softcap tanh, of which P is formed where it is used.
    if (args.softcap > 0) {
#pragma unroll
      for (int i = 0; i < queries / 2; ++i) s[i] = 1 - __fdividef(2.0F, exp2_approx(s[i] * args.cap_in) + 1);
    } else {
#pragma unroll
      for (int j = 0; j < queries / 8; ++j) {
        const float2 x = load_pair(lse2 + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = exp2_approx(fmaf(s[i], args.factor, i % 2 == 0 ? -x.x : -x.y));
      }
      if (masked) {
#pragma unroll
        for (int i = 0; i < queries / 2; ++i) s[i] = (seen[i / 32] >> (i % 32)) & 1 ? s[i] : 0;
      }
    }
    const auto capped_weight = [&](int i, const float2& x) {
      const float weight = exp2_approx(fmaf(args.softcap * s[i], args.factor, i % 2 == 0 ? -x.x : -x.y));
      return masked && ((seen[i / 32] >> (i % 32)) & 1) == 0 ? 0 : weight;
    };
#pragma unroll
    for (int h = 0; h < halves; ++h) {
      if (args.softcap > 0) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int i = 32 * h + 4 * j;
          const float2 x = load_pair(lse2 + 256 * h + 32 * j);
          a[h][j / 2][j % 2 * 2] = pack_bf16(capped_weight(i, x), capped_weight(i + 1, x));
          a[h][j / 2][j % 2 * 2 + 1] = pack_bf16(capped_weight(i + 2, x), capped_weight(i + 3, x));
        }
      } else {
        pack_half(s, h, a[h]);
      }
      const uint32_t gradients = low_mn(tiles.do_(stage), queries * 128);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_rs<D, Major::mn>(dv, a[h][k], descriptor(gradients + (4 * h + k) * 2048 / 16));
      wgmma_commit();
      if (h == halves - 1) named_barrier_arrive(other_forms_p, 256);
      if (h == 0) {
        wgmma_wait<1>();
        wgmma_fence_registers(dp);
      }
      if (args.softcap > 0) {
#pragma unroll
        for (int j = 8 * h; j < 8 * h + 8; ++j) {
          const float2 x = load_pair(lse2 + 32 * j);
#pragma unroll
          for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] = capped_weight(i, x) * (1 - s[i] * s[i]);
        }
      }
#pragma unroll
      for (int j = 8 * h; j < 8 * h + 8; ++j) {
        const float2 y = load_pair(delta + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; ++i) s[i] *= fmaf(args.scale, dp[i], -args.scale * (i % 2 == 0 ? y.x : y.y));
      }
      if (masked) {
#pragma unroll
        for (int i = 32 * h; i < 32 * h + 32; ++i) s[i] = (seen[h] >> (i % 32)) & 1 ? s[i] : 0;
      }
      pack_half(s, h, b[h]);
    }

    barrier_wait(&barriers.ds_empty[ds_buffer], ds_parity ^ ds_buffer ^ 1);
    {  // slab h: rows of 64 queries
      const uint32_t to = tiles.ds(ds_buffer) + (here(places()) & 0xffff);
#pragma unroll
      for (int h = 0; h < halves; ++h) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          stmatrix_x4((to ^ (32 * k)) + h * 2 * slab_bytes, b[h][k][0], b[h][k][1], b[h][k][2], b[h][k][3]);
      }
      fence_async_shared();
      __syncwarp();
      if (leader) barrier_arrive(&barriers.ds_full[ds_buffer]);
    }
    {
      const uint32_t rows = low_mn(tiles.q(stage), queries * 128);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < queries / 16; ++k)
        wgmma_rs<D, Major::mn>(dk, b[k / 4][k % 4], descriptor(rows + k * 2048 / 16));
      wgmma_commit();
    }
    wgmma_wait<1>();  // dV
    barrier_arrive(&barriers.do_.empty[stage]);

    barrier_wait(&barriers.ds_full[ds_buffer ^ 1], ds_parity ^ ds_buffer ^ 1);
    multiply_dq(ds_buffer ^ 1);

    // Behind the last step these products are of whatever is there, and nobody reads them.
    turn.template next<Sizes::stages>();
    barrier_wait(&barriers.q.full[turn.stage], turn.parity);
    info = *static_cast<volatile int*>(&barriers.q.info[turn.stage]);
    multiply(s, k_rows, tiles.q(turn.stage));
    wgmma_wait<1>();  // dK and dQ
    wgmma_fence_registers(dq);
    barrier_arrive(&barriers.q.empty[stage]);

    if (leader) barrier_arrive(&barriers.ds_empty[ds_buffer ^ 1]);
    store_dq();
    ds_buffer ^= 1, ds_parity ^= ds_buffer ^ 1;
  } while (info != info_end);
  if (half == 0) named_barrier_sync(to_form_p, 256);  // the other's last arrival
  barrier_wait(&barriers.ds_full[ds_buffer ^ 1], ds_parity ^ ds_buffer ^ 1);
  multiply_dq(ds_buffer ^ 1);
  wgmma_wait<0>();
  wgmma_fence_registers(dq);
  store_dq();
  wgmma_fence_registers(dk);
  wgmma_fence_registers(dv);
  wgmma_fence_registers(s);

  // Where Q, dO, K and V were: slabs [64 keys, 32], their 16 bytes swizzled.
  named_barrier_sync(1, 256);
  constexpr int sum_bytes = D / 32 * slab_bytes;
  const uint32_t sums = tiles.k + half * 2 * sum_bytes;
  {
    const int lane = thread_here() % 32, row = thread_here() / 32 % 4 * 16 + lane / 4;
    const uint32_t to = sums + row * 128 + (((lane % 4 / 2) ^ row % 8) << 4) + lane % 2 * 8;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      const uint32_t at = (to ^ (j % 4 * 32)) + j / 4 * slab_bytes;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        store_pair(at + r * 1024, dk[4 * j + 2 * r], dk[4 * j + 2 * r + 1]);
        store_pair(at + r * 1024 + sum_bytes, dv[4 * j + 2 * r], dv[4 * j + 2 * r + 1]);
      }
    }
  }
  fence_async_shared();
  named_barrier_sync(2 + half, 128);
  if (threadIdx.x % 128 == 0) {
    const int num_kv = args.num_heads / args.group;
    int* const mine = turns.keys + 2 * (static_cast<int64_t>(work.k_block) * num_kv + work.kv_head) + half;
    if (work.part > 0) wait_for_turn(mine, work.part);
    fence_async();
    const int row = work.k_block * backward_block + 64 * half;
#pragma unroll
    for (int c = 0; c < D / 32; ++c) {
      store_box(&maps.dk, sums + c * slab_bytes, 32 * c, work.kv_head, row, true);
      store_box(&maps.dv, sums + sum_bytes + c * slab_bytes, 32 * c, work.kv_head, row, true);
    }
    tma_store_commit();
    bulk_store_done();
    fence_async();
    give_turn(mine, work.part + 1);
  }
#endif
}

template <int D>
__global__ void __launch_bounds__(threads, 1)
    narrow_kernel(const __grid_constant__ BackwardArgs args, const __grid_constant__ NarrowMaps maps,
                  const __grid_constant__ Turns turns, int splits) {
#ifdef SLUICE_SM90A
  using Sizes = Narrow<D>;
  __shared__ NarrowBarriers<D> barriers;
  const NarrowTiles<D> tiles(shared_begin());
  if (threadIdx.x == 0) {
    barrier_init(&barriers.keys_full, 1);
    for (int i = 0; i < 2; ++i) {
      barrier_init(&barriers.ds_full[i], 8), barrier_init(&barriers.ds_empty[i], 8);
      for (int j = 0; j < writers; ++j) barrier_init(&barriers.dq_full[i][j], 4);
      for (int j = 0; j < Sizes::dq_stages; ++j) barrier_init(&barriers.dq_empty[i][j], 1);
    }
    barriers.ticket = atomicAdd(turns.cta, 1);
  }
  if (threadIdx.x == 32) {
    for (const CUtensorMap* map : {&maps.k, &maps.v, &maps.q, &maps.do_, &maps.dq}) prefetch_map(map);
  }
  init_ring(barriers.q);
  init_ring(barriers.do_);
  const int num_kv = args.num_heads / args.group, heads = args.group / splits, ticket = barriers.ticket;
  Work work;
  work.part = ticket % splits;
  work.kv_head = ticket / splits % num_kv;
  work.k_block = ticket / splits / num_kv;
  work.head_begin = work.kv_head * args.group + work.part * heads;
  work.head_end = work.head_begin + heads;
  work.together = args.mask.window == no_window ? heads : 1;

  if (threadIdx.x < 128) {
    registers_dealloc<24>();
    const int warp = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == 0) copy_in<D>(args, maps, turns, work, barriers, tiles);
    else write_dq<D>(args, maps, turns, work, barriers, tiles, warp - 1);
    return;
  }
  registers_alloc<240>();
  form<D>(args, maps, turns, work, barriers, tiles);
#endif
}

// Where key blocks are few, the query heads of a K/V head are shared out among this many CTAs: enough that the longest takes a small part of what
// one of 132 multiprocessors has to do, and that few wait for one another at the start.
int splits_of(int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads) {
  const int64_t group = num_heads / num_kv_heads, ctas = ceil_div(num_tokens, backward_block) * num_kv_heads;
  int splits = 1;
  while (splits < 4 && group % (2 * splits) == 0 && ctas * splits < 1024) splits *= 2;
  return splits;
}

template <int D>
void launch(const Context& ctx, const BackwardArgs& args, int* scratch) {
  const int64_t N = args.num_tokens, H = args.num_heads, K = H / args.group;
  const int splits = splits_of(N, H, K);
  const NarrowMaps maps{.q = tensor_map_heads(args.q, N, H, D, Narrow<D>::queries),
                        .k = tensor_map_heads(args.k, N, K, D, backward_block),
                        .v = tensor_map_heads(args.v, N, K, D, backward_block),
                        .do_ = tensor_map_heads(args.do_, N, H, D, Narrow<D>::queries),
                        .dq = tensor_map_heads_f32(args.dq, N, H, D, 64),
                        .dk = tensor_map_heads_f32(args.dk, N, K, D, 64),
                        .dv = tensor_map_heads_f32(args.dv, N, K, D, 64)};
  const int64_t blocks = args.padded / backward_block, steps = ceil_div(N, Narrow<D>::queries);
  Turns turns{.cta = scratch, .num_steps = static_cast<int>(steps)};
  turns.keys = turns.cta + 1, turns.queries = turns.keys + 2 * blocks * K;
  turns.first = turns.queries + H * steps, turns.last = turns.first + steps;
  check_cuda(cudaMemsetAsync(scratch, 0, static_cast<size_t>(turns.first - scratch) * sizeof(int), stream_of(ctx)),
             "attention_backward, turns");
  if (!args.mask.single) {
    find_ends<Narrow<D>::queries><<<static_cast<unsigned>(ceil_div(steps + blocks, 8)), 256, 0, stream_of(ctx)>>>(
        args.mask, turns, static_cast<int>(blocks));
    check_launch("attention_backward, ends of the mask");
  }
  allow_shared(narrow_kernel<D>, Narrow<D>::shared_bytes);
  narrow_kernel<D><<<static_cast<unsigned>(blocks * K * splits), threads, Narrow<D>::shared_bytes, stream_of(ctx)>>>(
      args, maps, turns, splits);
  check_launch("attention_backward");
}

}  // namespace

bool backward_narrow_takes(int64_t head_dim) { return head_dim == 64 || head_dim == 128; }

int64_t backward_narrow_turns(int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim) {
  const int64_t blocks = ceil_div(num_tokens, backward_block), steps = ceil_div(num_tokens, 8192 / head_dim);
  return 1 + 2 * num_kv_heads * blocks + num_heads * steps + steps + blocks;
}

void backward_narrow(const Context& ctx, const BackwardArgs& args, int* turns) {
  if (args.head_dim == 64) launch<64>(ctx, args, turns);
  else launch<128>(ctx, args, turns);
}

}  // namespace sluice::cuda
