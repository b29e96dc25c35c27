// The kernels of attention_backward.cuh on Hopper: TMA, mbarriers and wgmma.
//
// A tile of P or dS in scratch is the image of a shared tile: two slabs of 128 queries x 64 keys, rows of 128 bytes, 128-byte swizzle. As A of
// dQ it is k-major, as A of dK and dV (transposed) mn-major, and in both it arrives by plain bulk copies.
#include <algorithm>
#include <cstring>

#include "ops/attention/attention_backward_sm90.cuh"

namespace sluice::cuda {

namespace {

using namespace backward;

constexpr int tile_bytes = backward_tile * 2;

struct Maps {
  CUtensorMap q, k, v, do_;
};

// ---- S, dP -> P, dS --------------------------------------------------------------------------------------------------------------------

constexpr int score_stages = 5;
constexpr int score_stage_bytes = 4 * slab_bytes;  // 128 queries and 128 keys, 64 of the head dimension
constexpr int score_shared_bytes = 1024 + score_stages * score_stage_bytes + 2 * tile_bytes;

// How a tile is masked: not, by the distance of query and key (one root), or by the spans.
enum class Masking { none, window, tokens };

struct ScoreTile {
  int head, q, k_block;  // head and query block counted from the round's first
};
__device__ inline ScoreTile score_tile(const BackwardRound& round, int t) {
  const int q = t % round.q_count, rest = t / round.q_count, slot = rest % round.slots;
  return {rest / round.slots, q, round.base[q] + slot};
}

// d[64, 128] = A[64, D] B[128, D]^T, of which the slabs [begin, end) of 64, one a stage. `held` is the stage that the last commit reads,
// to be given back. On return all but the last slab's products are complete.
template <int count>
__device__ __forceinline__ void multiply_slabs(float (&d)[64], int begin, int end, Ring<count>& ring, Turn& turn,
                                               int& held, uint32_t stages, int half) {
#pragma unroll 1
  for (int slab = begin; slab < end; ++slab) {
    barrier_wait(&ring.full[turn.stage], turn.parity);
    const uint32_t a = stages + turn.stage * score_stage_bytes + half * slab_bytes;
    const uint32_t b = stages + turn.stage * score_stage_bytes + 2 * slab_bytes;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k)
      wgmma_ss<128, Major::k, Major::k>(d, descriptor_k(a + 32 * k), descriptor_k(b + 32 * k), slab + k);
    wgmma_commit();
    wgmma_wait<1>();
    if (held >= 0) barrier_arrive(&ring.empty[held]);
    held = turn.stage;
    turn.next<count>();
  }
}

__global__ void __launch_bounds__(threads, 1)
    score_kernel(const __grid_constant__ BackwardArgs args, const __grid_constant__ BackwardRound round,
                 const __grid_constant__ Maps maps) {
#ifdef SLUICE_SM90A
  __shared__ Ring<score_stages> ring;
  const uint32_t stages = shared_begin(), staging = stages + score_stages * score_stage_bytes;
  const int slabs = args.head_dim / 64, first_head = round.kv_begin * args.group;
  init_ring(ring);
  Turn turn;

  if (threadIdx.x < 128) {
    registers_dealloc<40>();
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    const int tiles = round.kv_count * args.group * round.q_count * round.slots, step = gridDim.x;
    for (int t0 = blockIdx.x; t0 < tiles; t0 += 32 * step) {
      const int mine = t0 + lane * step;
      Sight sight = Sight::none;
      if (mine < tiles) {
        const ScoreTile tile = score_tile(round, mine);
        sight = sight_of(round, args.mask, tile.q, tile.k_block);
      }
      const unsigned all = __ballot_sync(0xffffffffU, sight == Sight::all);
      for (unsigned left = __ballot_sync(0xffffffffU, sight != Sight::none); left != 0; left &= left - 1) {
        const int bit = __ffs(static_cast<int>(left)) - 1, t = t0 + bit * step;
        const ScoreTile tile = score_tile(round, t);
        const int head = first_head + tile.head, kv_head = head / args.group;
        const int row = (round.q_begin + tile.q) * backward_block, key = tile.k_block * backward_block;
        for (int slab = 0; slab < 2 * slabs; ++slab) {
          barrier_wait(&ring.empty[turn.stage], turn.parity ^ 1);
          if (lane == 0) {
            uint64_t* full = &ring.full[turn.stage];
            const uint32_t to = stages + turn.stage * score_stage_bytes;
            const CUtensorMap* a = slab < slabs ? &maps.q : &maps.do_;
            const CUtensorMap* b = slab < slabs ? &maps.k : &maps.v;
            const int col = (slab < slabs ? slab : slab - slabs) * 64;
            if (slab == 0) ring.info[turn.stage] = 2 * t + static_cast<int>((all >> bit) & 1);
            barrier_expect_bytes(full, score_stage_bytes);
            tma_load_slab(to, a, full, col, head, row);
            tma_load_slab(to + slab_bytes, a, full, col, head, row + 64);
            tma_load_slab(to + 2 * slab_bytes, b, full, col, kv_head, key);
            tma_load_slab(to + 3 * slab_bytes, b, full, col, kv_head, key + 64);
          }
          turn.next<score_stages>();
        }
      }
    }
    barrier_wait(&ring.empty[turn.stage], turn.parity ^ 1);
    if (lane == 0) {
      ring.info[turn.stage] = -1;
      barrier_arrive(&ring.full[turn.stage]);
    }
    return;
  }

  registers_alloc<232>();
  // By the shuffle ptxas sees that a warp agrees on it, and keeps what descriptors are made of in uniform registers.
  const int half = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 128) - 1, 0);
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  while (true) {
    barrier_wait(&ring.full[turn.stage], turn.parity);
    const int info = *static_cast<volatile int*>(&ring.info[turn.stage]);
    if (info < 0) break;
    const ScoreTile tile = score_tile(round, info / 2);
    const bool masked = info % 2 == 0;
    const int row = (round.q_begin + tile.q) * backward_block + half * 64 + warp * 16 + lane / 4,
              key = tile.k_block * backward_block;
    const int64_t at = static_cast<int64_t>(first_head + tile.head) * args.padded + row;
    const float lse2[2] = {__ldg(args.lse2 + at), __ldg(args.lse2 + at + 8)},
                delta[2] = {__ldg(args.delta + at), __ldg(args.delta + at + 8)};

    float s[64], dp[64];
    int held = -1;
    const int write_row = half * 64 + warp * 16 + lane % 16;
    // Of the columns pair * 16 + 8 * (lane / 16) …: a chunk of 16 bytes in its slab.
    const auto place = [&](int pair) {
      const int chunk = (pair * 2 + lane / 16) % 8;
      return staging + write_row * 128 + (pair / 4) * 2 * slab_bytes + ((chunk ^ (write_row & 7)) << 4);
    };
    const int past = row - key - 2 * (lane % 4);  // so far the first row lies behind the first column of this thread
    // P of a quarter of the columns, into staging; times the softcap's slope in s.
    const auto weigh_quarter = [&]<bool capped, Masking masking>(int quarter) {
      TokenMask query[2];
      if (masking == Masking::tokens) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          query[r] = args.mask.token(row + 8 * r);
          if (row + 8 * r >= args.num_tokens) query[r].enter = -1;  // sees nothing
        }
      }
#pragma unroll
      for (int pair = 2 * quarter; pair < 2 * quarter + 2; ++pair) {  // 16 keys: two 8 x 8 matrices a row half
        float p[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int r = (i / 2) % 2, column = pair * 16 + i / 4 * 8 + i % 2;
          float slope;
          p[i] = weigh<capped>(args, s[pair * 8 + i], lse2[r], slope);
          if (masking == Masking::window &&
              static_cast<uint32_t>(past + 8 * r - column) >= static_cast<uint32_t>(args.mask.window))
            p[i] = 0;
          if (masking == Masking::tokens && !args.mask.sees(query[r], args.mask.token(key + 2 * (lane % 4) + column)))
            p[i] = 0;
          s[pair * 8 + i] = p[i] * slope;
        }
        stmatrix_x4(place(pair), pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3]), pack_bf16(p[4], p[5]),
                    pack_bf16(p[6], p[7]));
      }
    };
    const Masking masking = !masked ? Masking::none : args.mask.single ? Masking::window : Masking::tokens;

    multiply_slabs<score_stages>(s, 0, slabs, ring, turn, held, stages, half);
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {  // of P's columns, each while products of dP run
      multiply_slabs<score_stages>(dp, (slabs * quarter + 3) / 4, (slabs * (quarter + 1) + 3) / 4, ring, turn, held,
                                   stages, half);
      if (quarter == 0) {
        wgmma_fence_registers(s);
        if (thread == 0) tma_store_wait<0>();  // of the tile before
        named_barrier_sync(1 + half, 128);
      }
      if (args.softcap > 0) {
        if (masking == Masking::none) weigh_quarter.template operator()<true, Masking::none>(quarter);
        else weigh_quarter.template operator()<true, Masking::tokens>(quarter);
      } else {
        if (masking == Masking::none) weigh_quarter.template operator()<false, Masking::none>(quarter);
        else if (masking == Masking::window) weigh_quarter.template operator()<false, Masking::window>(quarter);
        else weigh_quarter.template operator()<false, Masking::tokens>(quarter);
      }
    }
    wgmma_wait<0>();
    wgmma_fence_registers(dp);
    barrier_arrive(&ring.empty[held]);
#pragma unroll
    for (int pair = 0; pair < 8; ++pair) {
      float ds[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) ds[i] = s[pair * 8 + i] * (dp[pair * 8 + i] - delta[(i / 2) % 2]);
      stmatrix_x4(place(pair) + tile_bytes, pack_bf16(ds[0], ds[1]), pack_bf16(ds[2], ds[3]), pack_bf16(ds[4], ds[5]),
                  pack_bf16(ds[6], ds[7]));
    }
    fence_async_shared();
    named_barrier_sync(1 + half, 128);
    if (thread == 0) {
      const int64_t tile_at = static_cast<int64_t>(round.tile(tile.head, tile.q, tile.k_block)) * tile_bytes;
#pragma unroll
      for (int slab = 0; slab < 2; ++slab) {
        const int offset = (2 * slab + half) * slab_bytes;
        bulk_store(static_cast<unsigned char*>(args.p) + tile_at + offset, staging + offset, slab_bytes);
        bulk_store(static_cast<unsigned char*>(args.ds) + tile_at + offset, staging + tile_bytes + offset, slab_bytes);
      }
      tma_store_commit();
    }
  }
  if (thread == 0) bulk_store_done();
#endif
}

// ---- dQ, dK, dV ------------------------------------------------------------------------------------------------------------------------

// A CTA forms 128 rows x 256 columns, or two blocks of 128 rows x 64 columns; a warpgroup half of its rows.
template <int columns>
struct Products {
  static constexpr int blocks = columns == 256 ? 1 : 2;  // of 128 rows
  static constexpr int parts = blocks;                   // of 64 rows, in a warpgroup
  static constexpr int a_bytes = blocks * 2 * slab_bytes, b_bytes = columns / 64 * slab_bytes;
  static constexpr int stage_bytes = a_bytes + b_bytes;
  static constexpr int stages = columns == 64 ? 5 : 4;
  static constexpr int shared_bytes = 1024 + stages * stage_bytes;
};

struct Part {
  bool is_dq, is_dv;
  int head;    // dQ: query head from the round's first; otherwise K/V head
  int block;   // first block of rows, from the round's first
  int column;  // first column
};
template <int columns>
__device__ Part product_part(const BackwardArgs& args, const BackwardRound& round, int index) {
  constexpr int blocks = Products<columns>::blocks;
  const int across = args.head_dim / columns;
  const int k_parts = (round.k_count + blocks - 1) / blocks, q_parts = (round.q_count + blocks - 1) / blocks;
  const int num_kv = 2 * round.kv_count * k_parts * across;
  Part part{};
  part.is_dq = index >= num_kv;
  if (part.is_dq) index -= num_kv;
  part.column = index % across * columns, index /= across;
  if (part.is_dq) {
    part.block = index % q_parts * blocks, part.head = index / q_parts;
  } else {
    part.block = index % k_parts * blocks, index /= k_parts;
    part.is_dv = index % 2 == 0, part.head = index / 2;
  }
  return part;
}

constexpr int info_end = -1;

template <int columns, Major major_a>
__device__ __forceinline__ bool multiply_tiles(float (&d)[Products<columns>::parts][columns / 2],
                                               Ring<Products<columns>::stages>& ring, uint32_t stages, int group) {
  using P = Products<columns>;
  Turn turn;
  int held = -1;
  bool any = false;
  while (true) {
    barrier_wait(&ring.full[turn.stage], turn.parity);
    const int info = *static_cast<volatile int*>(&ring.info[turn.stage]);
    if (info == info_end) break;
    if (P::blocks == 1 || ((info >> group) & 1) != 0) {
      any = true;
      const uint32_t a = stages + turn.stage * P::stage_bytes + group * P::parts * slab_bytes;
      const uint32_t b = stages + turn.stage * P::stage_bytes + P::a_bytes;
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int part = 0; part < P::parts; ++part) {
          const uint32_t from = a + part * slab_bytes;
          const uint64_t desc_a =
              major_a == Major::k ? descriptor_k(from + 32 * k) : descriptor_mn(from + 2048 * k, slab_bytes);
          wgmma_ss<columns, major_a, Major::mn>(d[part], desc_a, descriptor_mn(b + 2048 * k, slab_bytes));
        }
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (held >= 0) barrier_arrive(&ring.empty[held]);
      held = turn.stage;
    } else {
      wgmma_wait<0>();
      if (held >= 0) barrier_arrive(&ring.empty[held]);
      barrier_arrive(&ring.empty[turn.stage]);
      held = -1;
    }
    turn.template next<P::stages>();
  }
  wgmma_wait<0>();
#pragma unroll
  for (int part = 0; part < P::parts; ++part) wgmma_fence_registers(d[part]);
  return any;
}

template <int columns>
__global__ void __launch_bounds__(threads, 1)
    product_kernel(const __grid_constant__ BackwardArgs args, const __grid_constant__ BackwardRound round,
                   const __grid_constant__ Maps maps) {
#ifdef SLUICE_SM90A
  using P = Products<columns>;
  __shared__ Ring<P::stages> ring;
  const uint32_t stages = shared_begin();
  const Part part = product_part<columns>(args, round, blockIdx.x);
  init_ring(ring);

  if (threadIdx.x < 128) {
    registers_dealloc<40>();
    if (threadIdx.x >= 32) return;
    const int lane = threadIdx.x;
    Turn turn;
    const int heads = part.is_dq ? 1 : args.group;
    const int count = part.is_dq ? round.k_count : round.q_count;
    const CUtensorMap* map = part.is_dq ? &maps.k : part.is_dv ? &maps.do_ : &maps.q;
    const unsigned char* tiles = static_cast<const unsigned char*>(part.is_dv ? args.p : args.ds);
    for (int g = 0; g < heads; ++g) {
      const int head = part.is_dq ? part.head : part.head * args.group + g;  // from the round's first
      const int b_head = part.is_dq ? round.kv_begin + head / args.group : round.kv_begin * args.group + head;
      for (int first = 0; first < count; first += 32) {
        unsigned visible[P::blocks], left = 0;
#pragma unroll
        for (int block = 0; block < P::blocks; ++block) {
          const int other = first + lane, mine = part.block + block;
          const int q = part.is_dq ? mine : other, k_block = round.k_begin + (part.is_dq ? other : mine);
          visible[block] = __ballot_sync(0xffffffffU, sight_of(round, args.mask, q, k_block) != Sight::none);
          left |= visible[block];
        }
        for (; left != 0; left &= left - 1) {
          const int bit = __ffs(static_cast<int>(left)) - 1, other = first + bit;
          int info = 0;
#pragma unroll
          for (int block = 0; block < P::blocks; ++block)
            info |= static_cast<int>((visible[block] >> bit) & 1) << block;
          const int row = (part.is_dq ? round.k_begin + other : round.q_begin + other) * backward_block;
          for (int half = 0; half < 2; ++half) {
            barrier_wait(&ring.empty[turn.stage], turn.parity ^ 1);
            if (lane == 0) {
              uint64_t* full = &ring.full[turn.stage];
              const uint32_t to = stages + turn.stage * P::stage_bytes;
              ring.info[turn.stage] = info;
              barrier_expect_bytes(full, P::b_bytes + __popc(info) * 2 * slab_bytes);
#pragma unroll
              for (int block = 0; block < P::blocks; ++block) {
                if (((info >> block) & 1) == 0) continue;
                const int q = part.is_dq ? part.block + block : other;
                const int k_block = round.k_begin + (part.is_dq ? other : part.block + block);
                const unsigned char* tile = tiles + static_cast<int64_t>(round.tile(head, q, k_block)) * tile_bytes;
                const uint32_t a = to + block * 2 * slab_bytes;
                if (part.is_dq) {  // 128 queries, keys 64 half …
                  bulk_load(a, tile + half * 2 * slab_bytes, 2 * slab_bytes, full);
                } else {  // queries 64 half …, keys 0 … 63 and 64 … 127
                  bulk_load(a, tile + half * slab_bytes, slab_bytes, full);
                  bulk_load(a + slab_bytes, tile + (2 + half) * slab_bytes, slab_bytes, full);
                }
              }
#pragma unroll
              for (int c = 0; c < columns / 64; ++c)
                tma_load_slab(to + P::a_bytes + c * slab_bytes, map, full, part.column + 64 * c, b_head,
                              row + 64 * half);
            }
            turn.template next<P::stages>();
          }
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

  registers_alloc<232>();
  const int group = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x / 128) - 1, 0);  // as in score_kernel
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  float d[P::parts][columns / 2];
#pragma unroll
  for (int i = 0; i < P::parts; ++i) {
#pragma unroll
    for (int j = 0; j < columns / 2; ++j) d[i][j] = 0;
  }
  const bool any = part.is_dq ? multiply_tiles<columns, Major::k>(d, ring, stages, group)
                              : multiply_tiles<columns, Major::mn>(d, ring, stages, group);
  const bool set = part.is_dq && round.set_dq != 0;
  if (!any && !set) return;

  const float scale = part.is_dv ? 1 : args.scale;
  float* out = part.is_dq ? args.dq : part.is_dv ? args.dv : args.dk;
  const int head = part.is_dq ? round.kv_begin * args.group + part.head : round.kv_begin + part.head;
  const int64_t stride =
      static_cast<int64_t>(part.is_dq ? args.num_heads : args.num_heads / args.group) * args.head_dim;
  const int first_block = part.is_dq ? round.q_begin : round.k_begin,
            num_blocks = part.is_dq ? round.q_count : round.k_count;
  const int block = part.block + (P::blocks == 1 ? 0 : group);
  if (block >= num_blocks) return;
#pragma unroll
  for (int i = 0; i < P::parts; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row =
          (first_block + block) * backward_block + (P::blocks == 1 ? group : i) * 64 + warp * 16 + lane / 4 + 8 * r;
      if (row >= args.num_tokens) continue;
      float* to = out + row * stride + static_cast<int64_t>(head) * args.head_dim + part.column + 2 * (lane % 4);
      if (set) {
#pragma unroll
        for (int j = 0; j < columns / 8; ++j)
          *reinterpret_cast<float2*>(to + 8 * j) = {scale * d[i][4 * j + 2 * r], scale * d[i][4 * j + 2 * r + 1]};
      } else {
#pragma unroll
        for (int first = 0; first < columns / 8; first += 8) {
          float2 before[8];
#pragma unroll
          for (int j = 0; j < 8; ++j) before[j] = *reinterpret_cast<const float2*>(to + 8 * (first + j));
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const int e = 4 * (first + j) + 2 * r;
            *reinterpret_cast<float2*>(to + 8 * (first + j)) = {before[j].x + scale * d[i][e],
                                                                before[j].y + scale * d[i][e + 1]};
          }
        }
      }
    }
  }
#endif
}

template <int columns>
void launch_products(const Context& ctx, const BackwardArgs& args, const BackwardRound& round, const Maps& maps) {
  using P = Products<columns>;
  const int64_t across = args.head_dim / columns;
  const int64_t parts = across * round.kv_count *
                        (2 * ceil_div(round.k_count, P::blocks) + args.group * ceil_div(round.q_count, P::blocks));
  allow_shared(product_kernel<columns>, P::shared_bytes);
  product_kernel<columns>
      <<<static_cast<unsigned>(parts), threads, P::shared_bytes, stream_of(ctx)>>>(args, round, maps);
}

}  // namespace

BackwardSm90::BackwardSm90(const Context& ctx, const BackwardArgs& args) : ctx_(ctx), args_(args) {
  static_assert(sizeof(CUtensorMap) == sizeof(Map));
  const int64_t N = args.num_tokens, H = args.num_heads, K = H / args.group, D = args.head_dim;
  const auto make = [&](Map& to, const void* data, int64_t heads) {
    const CUtensorMap map = tensor_map_heads(data, N, heads, D, 64);
    std::memcpy(&to, &map, sizeof(map));
  };
  make(q_, args.q, H), make(do_, args.do_, H), make(k_, args.k, K), make(v_, args.v, K);
}

void BackwardSm90::run(const BackwardRound& round) const {
  Maps maps;
  std::memcpy(&maps.q, &q_, sizeof(q_)), std::memcpy(&maps.k, &k_, sizeof(k_));
  std::memcpy(&maps.v, &v_, sizeof(v_)), std::memcpy(&maps.do_, &do_, sizeof(do_));
  const int tiles = round.kv_count * args_.group * round.q_count * round.slots;
  const int ctas = std::min(tiles, facts_of(ctx_).num_multiprocessors);
  allow_shared(score_kernel, score_shared_bytes);
  score_kernel<<<static_cast<unsigned>(ctas), threads, score_shared_bytes, stream_of(ctx_)>>>(args_, round, maps);
  check_launch("attention_backward, scores");
  if (args_.head_dim % 256 == 0) {
    launch_products<256>(ctx_, args_, round, maps);
  } else {
    launch_products<64>(ctx_, args_, round, maps);
  }
  check_launch("attention_backward, products");
}

}  // namespace sluice::cuda
