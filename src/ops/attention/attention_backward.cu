// attention_backward on CUDA: delta, the rounds, and plain kernels for float32 and odd head dimensions. On tensor cores:
// attention_backward_portable.cu and Hopper's attention_backward_sm90.cu.
#include <algorithm>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/attention_backward.cuh"
#include "ops/attention/attention_portable.h"

namespace sluice::cuda {

namespace {

// ---- rounds ----------------------------------------------------------------------------------------------------------------------------

constexpr int64_t most_scratch_bytes = 240 << 20;

struct Extent {
  int64_t heads, kv_heads, group, blocks;
  // Of queries, in a round that is a rectangle; and whether one has all heads, where scratch holds eight blocks of keys of them.
  int64_t round_blocks = 16;
  bool all_heads = false;
};

// Tiles that scratch holds: what the shape can fill, at most most_scratch_bytes.
int64_t scratch_tiles(const Extent& e, int64_t window, int64_t bytes_each) {
  const int64_t seen =
      window > 0 ? std::min(e.blocks, ceil_div(window + backward_block - 2, backward_block) + 1) : e.blocks;
  return std::max(e.group, std::min(e.heads * e.blocks * seen, most_scratch_bytes / bytes_each));
}

// For each query block the first key block that one of its tokens sees.
std::vector<int64_t> first_key_blocks(const Spans& spans, int64_t window, int64_t blocks) {
  std::vector<int64_t> first(static_cast<size_t>(blocks));
  for (int64_t b = 0; b < blocks; ++b) first[static_cast<size_t>(b)] = b;
  for (int64_t s = 0; s < spans.size(); ++s) {
    for (int64_t begin = spans[s].begin; begin < spans[s].end();) {  // the span's tokens in one block
      const int64_t b = begin / backward_block, position = spans[s].start_position + begin - spans[s].begin;
      const int64_t least = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
      int64_t key = begin;
      for (int64_t a : spans.ancestors(s)) {
        if (least >= spans[a].start_position + spans[a].length) continue;
        key = spans[a].begin + least - spans[a].start_position;
        break;
      }
      int64_t& lowest = first[static_cast<size_t>(b)];
      lowest = std::min(lowest, key / backward_block);
      begin = std::min(spans[s].end(), (b + 1) * backward_block);
    }
  }
  return first;
}

// Calls body(round) for all rounds in order. Where all heads and keys of at least eight query blocks fit (windows), scratch holds the band
// that they see; otherwise rectangles of some query blocks and key blocks, whose products are long enough and even.
template <class Body>
void for_rounds(const Extent& e, const std::vector<int64_t>& first, int64_t tiles, Body body) {
  for (int64_t q = 0; q < e.blocks;) {
    BackwardRound round{};
    round.q_begin = static_cast<int>(q);
    int64_t count = 0, slots = 0, lowest = e.blocks;
    while (count < backward_most_query_blocks && q + count < e.blocks) {
      const int64_t from = first[static_cast<size_t>(q + count)], wider = std::max(slots, q + count + 1 - from);
      if (e.heads * (count + 1) * wider > tiles) break;
      round.base[count++] = static_cast<int>(from);
      slots = wider, lowest = std::min(lowest, from);
    }
    if (count >= std::min<int64_t>(8, e.blocks - q)) {
      round.q_count = static_cast<int>(count), round.slots = static_cast<int>(slots);
      round.kv_begin = 0, round.kv_count = static_cast<int>(e.kv_heads);
      round.k_begin = static_cast<int>(lowest), round.k_count = static_cast<int>(q + count - lowest);
      round.set_dq = 1;
      body(round);
      q += count;
      continue;
    }

    count = std::min(e.round_blocks, e.blocks - q);
    while (e.group * count > tiles) count /= 2;
    lowest = *std::min_element(first.begin() + q, first.begin() + q + count);
    const int64_t width = q + count - lowest, of_all_heads = tiles / (e.heads * count);
    const int64_t most =
        e.all_heads && of_all_heads >= 8 ? of_all_heads : std::clamp<int64_t>(tiles / (e.group * count), 1, 32);
    const int64_t chunk = ceil_div(width, ceil_div(width, most));
    const int64_t kv_most = std::clamp<int64_t>(tiles / (e.group * count * chunk), 1, e.kv_heads);
    const int64_t kv_chunk = ceil_div(e.kv_heads, ceil_div(e.kv_heads, kv_most));
    round.q_count = static_cast<int>(count);
    for (int64_t kv = 0; kv < e.kv_heads; kv += kv_chunk) {
      round.kv_begin = static_cast<int>(kv), round.kv_count = static_cast<int>(std::min(kv_chunk, e.kv_heads - kv));
      for (int64_t k = lowest; k < q + count; k += chunk) {
        round.k_begin = static_cast<int>(k), round.k_count = static_cast<int>(std::min(chunk, q + count - k));
        round.slots = round.k_count, round.set_dq = k == lowest;
        std::fill(round.base, round.base + count, round.k_begin);
        body(round);
      }
    }
    q += count;
  }
}

// ---- delta[h, i] = do . o, and lse in units of log 2 ------------------------------------------------------------------------------

constexpr int rows_of_delta = 8;
constexpr float log2_e = 1.44269504088896341F;

// A warp for each row; blockIdx.y: head.
template <class T>
__global__ void __launch_bounds__(32 * rows_of_delta)
    delta_kernel(const T* o, const T* do_, const float* lse, float* lse2, float* delta, int num_tokens, int padded,
                 int head_dim) {
  const int row = static_cast<int>(blockIdx.x) * rows_of_delta + static_cast<int>(threadIdx.x) / 32,
            lane = threadIdx.x % 32;
  const int64_t from = static_cast<int64_t>(row) * gridDim.y + blockIdx.y,
                to = static_cast<int64_t>(blockIdx.y) * padded + row;
  if (row >= num_tokens) {
    if (lane == 0) lse2[to] = __int_as_float(0x7f800000), delta[to] = 0;
    return;
  }
  o += from * head_dim, do_ += from * head_dim;
  float sum = 0;
  for (int d = lane; d < head_dim; d += 32) sum = fmaf(to_float(o[d]), to_float(do_[d]), sum);
  sum = warp_sum(sum);
  if (lane == 0) lse2[to] = lse[from] * log2_e, delta[to] = sum;
}

// The same for bf16, 16 bytes at a time: a warp reads a row, as many heads at once as it has lanes for.
__global__ void __launch_bounds__(32 * rows_of_delta)
    delta_rows(const __nv_bfloat16* __restrict__ o, const __nv_bfloat16* __restrict__ do_,
               const float* __restrict__ lse, float* __restrict__ lse2, float* __restrict__ delta, int num_tokens,
               int padded, int num_heads, int head_dim) {
  const int row = static_cast<int>(blockIdx.x) * rows_of_delta + static_cast<int>(threadIdx.x) / 32,
            lane = threadIdx.x % 32;
  int lanes = 32;  // of a head
  while (lanes > 1 && lanes / 2 * 8 >= head_dim) lanes /= 2;
  for (int first = 0; first < num_heads; first += 32 / lanes) {
    const int head = first + lane / lanes;
    const int64_t from = static_cast<int64_t>(row) * num_heads + head, to = static_cast<int64_t>(head) * padded + row;
    float sum = 0;
    if (head < num_heads && row < num_tokens) {
      for (int d = lane % lanes * 8; d < head_dim; d += lanes * 8) {
        const Bf16x8 a = *reinterpret_cast<const Bf16x8*>(o + from * head_dim + d),
                     b = *reinterpret_cast<const Bf16x8*>(do_ + from * head_dim + d);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 x = __bfloat1622float2(a.v[i]), y = __bfloat1622float2(b.v[i]);
          sum = fmaf(x.x, y.x, sum), sum = fmaf(x.y, y.y, sum);
        }
      }
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, offset);
    if (head < num_heads && lane % lanes == 0) {
      lse2[to] = row < num_tokens ? lse[from] * log2_e : __int_as_float(0x7f800000);
      delta[to] = sum;
    }
  }
}

// ---- the plain kernels: tiles in scratch are float, row-major; a CTA forms 64 x 64 numbers ---------------------------------------

constexpr int side = 64, depth = 16, plain_threads = 256, parts_of_block = backward_block / side;

struct Operands {
  float a[depth][side + 4], b[depth][side + 4];
};

// acc[4, 4] += A^T B over `depth`, k ascending.
__device__ void multiply(const Operands& x, float (&acc)[4][4]) {
  const int m = threadIdx.x / 16 * 4, n = threadIdx.x % 16 * 4;
#pragma unroll
  for (int k = 0; k < depth; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(x.a[k][m + i], x.b[k][n + j], acc[i][j]);
    }
  }
}

// to[k][row] = from[first + row][head, column + k], zero outside.
template <class T>
__device__ void load_rows(float (&to)[depth][side + 4], const T* from, int64_t stride, int first, int num_tokens,
                          int column, int head_dim) {
  for (int i = threadIdx.x; i < side * depth; i += plain_threads) {
    const int row = i / depth, k = i % depth;
    const bool inside = first + row < num_tokens && column + k < head_dim;
    to[k][row] = inside ? to_float(from[(first + row) * stride + column + k]) : 0;
  }
}

template <class T>
__global__ void __launch_bounds__(plain_threads) plain_scores(const BackwardArgs args, const BackwardRound round) {
  __shared__ Operands x;
  int t = blockIdx.x;
  const int k_part = t % parts_of_block, q_part = t / parts_of_block % parts_of_block;
  t /= parts_of_block * parts_of_block;
  const int q = t % round.q_count, k_block = round.base[q] + t / round.q_count % round.slots,
            head = t / round.q_count / round.slots;
  if (sight_of(round, args.mask, q, k_block) == Sight::none) return;

  const int H = args.num_heads, D = args.head_dim, h = round.kv_begin * args.group + head, kv_head = h / args.group;
  const int first_query = (round.q_begin + q) * backward_block + q_part * side,
            first_key = k_block * backward_block + k_part * side;
  const int64_t wide = static_cast<int64_t>(H) * D, narrow = static_cast<int64_t>(H / args.group) * D;
  float s[4][4] = {}, dp[4][4] = {};
#pragma unroll
  for (int product = 0; product < 2; ++product) {
    const T* a = static_cast<const T*>(product == 0 ? args.q : args.do_) + static_cast<int64_t>(h) * D;
    const T* b = static_cast<const T*>(product == 0 ? args.k : args.v) + static_cast<int64_t>(kv_head) * D;
    for (int column = 0; column < D; column += depth) {
      __syncthreads();
      load_rows(x.a, a, wide, first_query, args.num_tokens, column, D);
      load_rows(x.b, b, narrow, first_key, args.num_tokens, column, D);
      __syncthreads();
      multiply(x, product == 0 ? s : dp);
    }
  }

  const int64_t tile = static_cast<int64_t>(round.tile(head, q, k_block)) * backward_tile;
  for (int i = 0; i < 4; ++i) {
    const int row = static_cast<int>(threadIdx.x) / 16 * 4 + i, query = first_query + row;
    for (int j = 0; j < 4; ++j) {
      const int column = static_cast<int>(threadIdx.x) % 16 * 4 + j, key = first_key + column;
      float p = 0, ds = 0;
      if (query < args.num_tokens && args.mask.sees(args.mask.token(query), args.mask.token(key))) {
        float score = __fmul_rn(s[i][j], args.scale), slope = 1;
        if (args.softcap > 0) {
          const float tanh = tanhf(score / args.softcap);
          score = args.softcap * tanh, slope = 1 - tanh * tanh;
        }
        p = expf(score - args.lse[static_cast<int64_t>(query) * H + h]);
        ds = p * (dp[i][j] - args.delta[static_cast<int64_t>(h) * args.padded + query]) * slope;
      }
      const int64_t to = tile + (q_part * side + row) * backward_block + k_part * side + column;
      static_cast<float*>(args.p)[to] = to_float(from_float<T>(p));
      static_cast<float*>(args.ds)[to] = to_float(from_float<T>(ds));
    }
  }
}

// blockIdx.y: columns. blockIdx.x: dV and dK of each K/V head and 64 keys, then dQ of each head and 64 queries.
template <class T>
__global__ void __launch_bounds__(plain_threads) plain_products(const BackwardArgs args, const BackwardRound round) {
  __shared__ Operands x;
  const int k_parts = round.k_count * parts_of_block, q_parts = round.q_count * parts_of_block;
  const int num_kv = 2 * round.kv_count * k_parts;
  int index = blockIdx.x;
  const bool is_dq = index >= num_kv, is_dv = index % 2 == 0 && !is_dq;
  index = is_dq ? index - num_kv : index / 2;
  const int part = index % (is_dq ? q_parts : k_parts), head = index / (is_dq ? q_parts : k_parts);
  const int mine = part / parts_of_block, offset = part % parts_of_block * side;  // block and row in it

  const int H = args.num_heads, K = H / args.group, D = args.head_dim, column = blockIdx.y * side, N = args.num_tokens;
  const float* tiles = static_cast<const float*>(is_dv ? args.p : args.ds);
  const T* b = static_cast<const T*>(is_dq ? args.k : is_dv ? args.do_ : args.q);
  const int64_t b_stride = static_cast<int64_t>(is_dq ? K : H) * D;
  float acc[4][4] = {};
  for (int g = 0; g < (is_dq ? 1 : args.group); ++g) {
    const int tile_head = is_dq ? head : head * args.group + g;
    const int b_head = is_dq ? round.kv_begin + head / args.group : round.kv_begin * args.group + tile_head;
    for (int other = 0; other < (is_dq ? round.k_count : round.q_count); ++other) {
      const int q = is_dq ? mine : other, k_block = round.k_begin + (is_dq ? other : mine);
      if (sight_of(round, args.mask, q, k_block) == Sight::none) continue;
      const float* tile = tiles + static_cast<int64_t>(round.tile(tile_head, q, k_block)) * backward_tile;
      const int first = (is_dq ? k_block : round.q_begin + q) * backward_block;
      for (int k0 = 0; k0 < backward_block; k0 += depth) {
        __syncthreads();
        for (int i = threadIdx.x; i < side * depth; i += plain_threads) {
          const int k = is_dq ? i % depth : i / side, m = is_dq ? i / depth : i % side, n = i % side,
                    row = first + k0 + i / side;
          x.a[k][m] =
              is_dq ? tile[(offset + m) * backward_block + k0 + k] : tile[(k0 + k) * backward_block + offset + m];
          x.b[i / side][n] = row < N && column + n < D
                                 ? to_float(b[row * b_stride + static_cast<int64_t>(b_head) * D + column + n])
                                 : 0;
        }
        __syncthreads();
        multiply(x, acc);
      }
    }
  }

  float* out = is_dq ? args.dq : is_dv ? args.dv : args.dk;
  const float scale = is_dv ? 1 : args.scale;
  const int out_head = is_dq ? round.kv_begin * args.group + head : round.kv_begin + head;
  const int64_t stride = static_cast<int64_t>(is_dq ? H : K) * D;
  const bool set = is_dq && round.set_dq != 0;
  for (int i = 0; i < 4; ++i) {
    const int row = ((is_dq ? round.q_begin : round.k_begin) + mine) * backward_block + offset +
                    static_cast<int>(threadIdx.x) / 16 * 4 + i;
    for (int j = 0; j < 4; ++j) {
      const int d = column + static_cast<int>(threadIdx.x) % 16 * 4 + j;
      if (row >= N || d >= D) continue;
      float& to = out[row * stride + static_cast<int64_t>(out_head) * D + d];
      to = set ? scale * acc[i][j] : to + scale * acc[i][j];
    }
  }
}

template <class T>
void run_plain(const Context& ctx, const BackwardArgs& args, const BackwardRound& round) {
  const int64_t tiles = static_cast<int64_t>(round.kv_count) * args.group * round.q_count * round.slots;
  const int64_t products =
      parts_of_block * static_cast<int64_t>(round.kv_count) * (2 * round.k_count + args.group * round.q_count);
  const auto columns = static_cast<unsigned>(ceil_div(args.head_dim, side));
  plain_scores<T><<<static_cast<unsigned>(tiles * parts_of_block * parts_of_block), plain_threads, 0, stream_of(ctx)>>>(
      args, round);
  plain_products<T><<<dim3(static_cast<unsigned>(products), columns), plain_threads, 0, stream_of(ctx)>>>(args, round);
  check_launch("attention_backward");
}

}  // namespace

void attention_backward(Context& ctx, const AttentionBackward& args) {
  const AttentionShape& shape = args.shape;
  const int64_t N = args.spans.num_tokens(), H = shape.num_heads, K = shape.num_kv_heads, D = shape.head_dim;
  Extent extent{.heads = H, .kv_heads = K, .group = H / K, .blocks = ceil_div(N, backward_block)};
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  const bool tensor = args.q.dtype == DType::bf16 &&
                      (ctx.counting() || (aligned(args.q) && aligned(args.k) && aligned(args.v) && aligned(args.do_) &&
                                          aligned(args.dq) && aligned(args.dk) && aligned(args.dv)));
  const bool hopper = tensor && facts_of(ctx).hopper();
  const bool narrow = hopper && backward_narrow_takes(D), wide = hopper && !narrow && BackwardSm90::takes(D),
             portable = tensor && !narrow && !wide && portable_backward_takes(D),
             portable_narrow = portable && portable_backward_narrow_of(D) != nullptr;
  const int64_t tile_bytes = backward_tile * (wide || portable ? 2 : 4), p_bytes = portable_narrow ? 0 : tile_bytes,
                tiles = narrow ? 0 : scratch_tiles(extent, shape.window, tile_bytes + p_bytes);
  if (portable) extent.round_blocks = 8, extent.all_heads = true;  // sums of many short walks, to fill the device
  const int64_t padded = extent.blocks * backward_block;

  ArenaScope scope(ctx.arena);
  auto* const p = scope.array<std::byte>(tiles * p_bytes);
  auto* const ds = scope.array<std::byte>(tiles * tile_bytes);
  auto* const turns = scope.array<int>(narrow ? backward_narrow_turns(N, H, K, D) : 0);
  auto* const lse2 = scope.array<float>(H * padded);
  auto* const delta = scope.array<float>(H * padded);
  const AttentionMask mask = attention_mask(ctx, scope, args.spans, shape.window);
  if (ctx.counting()) return;

  const auto delta_blocks = static_cast<unsigned>(padded / rows_of_delta);
  if (args.q.dtype == DType::bf16 && D % 8 == 0 && aligned(args.o) && aligned(args.do_)) {
    delta_rows<<<delta_blocks, 32 * rows_of_delta, 0, stream_of(ctx)>>>(
        static_cast<const __nv_bfloat16*>(args.o.data), static_cast<const __nv_bfloat16*>(args.do_.data),
        args.lse.as<float>(), lse2, delta, static_cast<int>(N), static_cast<int>(padded), static_cast<int>(H),
        static_cast<int>(D));
  } else {
    with_type(args.q.dtype, [&]<class T>() {
      delta_kernel<T><<<dim3(delta_blocks, static_cast<unsigned>(H)), 32 * rows_of_delta, 0, stream_of(ctx)>>>(
          static_cast<const T*>(args.o.data), static_cast<const T*>(args.do_.data), args.lse.as<float>(), lse2, delta,
          static_cast<int>(N), static_cast<int>(padded), static_cast<int>(D));
    });
  }
  check_launch("attention_backward, delta");

  const BackwardArgs kernel_args{.mask = mask,
                                 .num_tokens = static_cast<int>(N),
                                 .padded = static_cast<int>(padded),
                                 .num_heads = static_cast<int>(H),
                                 .group = static_cast<int>(H / K),
                                 .head_dim = static_cast<int>(D),
                                 .scale = shape.scale,
                                 .softcap = shape.softcap,
                                 .factor = (shape.softcap > 0 ? 1 : shape.scale) * log2_e,
                                 .cap_in = shape.softcap > 0 ? 2 * log2_e * shape.scale / shape.softcap : 0,
                                 .q = args.q.data,
                                 .k = args.k.data,
                                 .v = args.v.data,
                                 .do_ = args.do_.data,
                                 .lse = args.lse.as<float>(),
                                 .lse2 = lse2,
                                 .delta = delta,
                                 .dq = args.dq.as<float>(),
                                 .dk = args.dk.as<float>(),
                                 .dv = args.dv.as<float>(),
                                 .p = p,
                                 .ds = ds};
  if (narrow) {
    backward_narrow(ctx, kernel_args, turns);
    return;
  }
  const std::vector<int64_t> first = first_key_blocks(args.spans, shape.window, extent.blocks);
  if (wide) {
    const BackwardSm90 kernels(ctx, kernel_args);
    for_rounds(extent, first, tiles, [&](const BackwardRound& round) { kernels.run(round); });
  } else if (portable) {
    for_rounds(extent, first, tiles, [&](const BackwardRound& round) {
      if (portable_narrow) backward_narrow_portable(ctx, kernel_args, round);
      else backward_portable(ctx, kernel_args, round);
    });
  } else {
    with_type(args.q.dtype, [&]<class T>() {
      for_rounds(extent, first, tiles, [&](const BackwardRound& round) { run_plain<T>(ctx, kernel_args, round); });
    });
  }
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(attention_backward, AttentionBackward)
