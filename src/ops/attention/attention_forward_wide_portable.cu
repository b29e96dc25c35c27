// attention_forward by mma.sync at head dimension 512: four warps share 32 queries, each with 128 of the columns of q, k, v and o, so that a warp's
// queries and output fit in its registers. Each forms a part of every score; the parts meet in shared memory, where warp w sums the rows of
// the octet w, takes their softmax and leaves the weights for all four.
#include "ops/attention/attention_forward_portable.cuh"
#include "ops/attention/attention_portable.cuh"
#include "ops/attention/attention_softmax.cuh"

namespace sluice::cuda {

namespace {

constexpr PortableForwardWide plan;
constexpr int head_dim = plan.head_dim, keys = plan.keys, rows = plan.rows(), threads = plan.threads();
constexpr int sharers = plan.sharers, columns = head_dim / sharers, group_rows = plan.group_rows;
constexpr int key_tiles = keys / 8, octets = group_rows / 8;
static_assert(octets == sharers && columns == 128);
constexpr uint32_t row_bytes = static_cast<uint32_t>(tile_row_bytes(head_dim)),
                   weight_row_bytes = static_cast<uint32_t>(tile_row_bytes(keys));

// Shared memory, in this order. The queries come through the room of both blocks.
struct Shared {
  static constexpr uint32_t k = 0, v = keys * row_bytes, weights = 2 * keys * row_bytes,
                            parts = weights + rows * weight_row_bytes,
                            factors = parts + plan.groups * octets * (sharers - 1) * 8 * keys * 4,
                            bytes = factors + rows * 4;
};
static_assert(Shared::bytes == plan.shared_bytes() && rows == 2 * keys);

// One row of a thread's octet: the softmax of SoftmaxRows (attention_softmax.cuh) for a thread that holds eight scores of one row.
struct SoftmaxOctet {
  float top = minus_infinity, sum = 0, base = 0;

  // The scores become exponentials. Returns what the output must take before the block is added.
  __device__ __forceinline__ float take(float (&s)[keys / 4], float c) {
    float most = s[0];
#pragma unroll
    for (int i = 1; i < keys / 4; ++i) most = fmaxf(most, s[i]);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, 2));
    const float raised = fmaxf(top, most), before = __fmul_rn(top, c);
    const bool keep = (raised - top) * c <= SoftmaxRows::lazy;
    top = keep ? top : raised;
    base = top == minus_infinity ? 0.0F : __fmul_rn(top, c);
    const float factor = keep ? 1.0F : exp2_approx(before - base);
    float added = 0;
#pragma unroll
    for (float& x : s) {
      x = exp2_approx(fmaf(x, c, -base));
      added += x;
    }
    sum = __fadd_rn(__fmul_rn(sum, factor), added);
    return factor;
  }
};

struct WideParams {
  AttentionMask mask;
  int32_t query_begin, num_queries, num_heads, num_kv_heads;
  float scale, softcap;
  const __nv_bfloat16 *q, *k, *v;
  __nv_bfloat16* o;
  float* lse;
};

// s [32 queries, 32 keys] = this warp's columns of q k^T.
__device__ __forceinline__ void multiply_part(float (&s)[2][key_tiles * 4], const uint32_t (&q)[2][columns / 16][4],
                                              uint32_t k_at) {
#pragma unroll
  for (int step = 0; step < columns / 16; ++step) {
#pragma unroll
    for (int j = 0; j < key_tiles; j += 2) {
      uint32_t b[4];
      ldmatrix_x4(k_at + j * 8 * row_bytes + step * 32, b);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        mma_16x8x16(s[m] + 4 * j, q[m][step], b[0], b[1]);
        mma_16x8x16(s[m] + 4 * j + 4, q[m][step], b[2], b[3]);
      }
    }
  }
}

// Octet d of a warp's part is row d % 2 of its accumulators d / 2.
__device__ __forceinline__ float4 pairs(const float (&s)[2][key_tiles * 4], int d, int half) {
  const float* const at = s[d / 2] + 8 * half + d % 2 * 2;
  return {at[0], at[1], at[4], at[5]};
}

template <bool plain>
__global__ void __launch_bounds__(threads, 1) wide_portable_kernel(const __grid_constant__ WideParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t base = shared_address(shared);
  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t group = warp / sharers, mine = warp % sharers;  // of rows; of columns, and the octet of the softmax
  const int32_t first_query = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x) * rows;  // the last see most: first
  const int32_t head = static_cast<int32_t>(blockIdx.y), kv_head = head / (p.num_heads / p.num_kv_heads);
  const int32_t first = p.query_begin + first_query, end = p.query_begin + p.num_queries;
  const int64_t q_stride = int64_t{p.num_heads} * head_dim, kv_stride = int64_t{p.num_kv_heads} * head_dim;
  TileSource k{p.k + int64_t{kv_head} * head_dim, kv_stride, 0, end},
      v{p.v + int64_t{kv_head} * head_dim, kv_stride, 0, end};
  KeyBlocks<keys, plain> blocks(p.mask, first, min(first + rows, end) - 1);
  KeyBlock block = blocks.next();

  copy_tile<rows, head_dim, threads>(base, {p.q + int64_t{head} * head_dim, q_stride, first_query, p.num_queries},
                                     head_dim);
  copy_commit();
  copy_wait<0>();
  __syncthreads();
  uint32_t q[2][columns / 16][4];
  const uint32_t q_at =
      lane_address<Quarters::below_first, head_dim>(base + group * group_rows * row_bytes + mine * columns * 2);
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int step = 0; step < columns / 16; ++step) ldmatrix_x4(q_at + m * 16 * row_bytes + step * 32, q[m][step]);
  }
  __syncthreads();
  k.first = block.index() * keys;
  copy_tile<keys, head_dim, threads>(base + Shared::k, k, head_dim);
  copy_commit();

  const uint32_t k_at = lane_address<Quarters::beside_first, head_dim>(base + Shared::k + mine * columns * 2),
                 v_at = lane_address<Quarters::below_first, head_dim>(base + Shared::v + mine * columns * 2),
                 weights = base + Shared::weights + group * group_rows * weight_row_bytes,
                 weights_at = lane_address<Quarters::below_first, keys>(weights);
  // [group, octet, sender, half, lane]
  auto* const parts = reinterpret_cast<float4*>(shared + Shared::parts) + group * octets * (sharers - 1) * 64 + lane;
  auto* const factors = reinterpret_cast<float*>(shared + Shared::factors) + group * group_rows;
  const int32_t row = 8 * mine + lane / 4;  // of the group, in the softmax
  const int32_t token = min(first + group * group_rows + row, end - 1);
  const TokenMask query = plain ? TokenMask{token, 0, 1, 0} : p.mask.token(token);
  const bool capped = !plain && p.softcap > 0;
  const float c = capped ? log2_e : p.scale * log2_e;
  SoftmaxOctet softmax;
  float o[2][columns / 2] = {};

  while (true) {
    copy_wait<0>();
    __syncthreads();  // the keys are here, and the values before are read
    v.first = block.index() * keys;
    copy_tile<keys, head_dim, threads>(base + Shared::v, v, head_dim);
    copy_commit();

    float part[2][key_tiles * 4] = {};
    multiply_part(part, q, k_at);
#pragma unroll
    for (int d = 0; d < octets; ++d) {
      if (d == mine) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        parts[((d * (sharers - 1) + mine - (mine > d ? 1 : 0)) * 2 + half) * 32] = pairs(part, d, half);
    }
    __syncthreads();  // the parts are here, and the keys are read
    const KeyBlock now = block;
    if (!now.last()) {
      block = blocks.next();
      k.first = block.index() * keys;
      copy_tile<keys, head_dim, threads>(base + Shared::k, k, head_dim);
    }
    copy_commit();

    float s[keys / 4] = {};
#pragma unroll
    for (int sender = 0; sender < sharers; ++sender) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4 x{};
        if (sender != mine) {
          x = parts[((mine * (sharers - 1) + sender - (sender > mine ? 1 : 0)) * 2 + half) * 32];
        } else {
#pragma unroll
          for (int d = 0; d < octets; ++d) x = d == mine ? pairs(part, d, half) : x;
        }
        s[4 * half] += x.x, s[4 * half + 1] += x.y, s[4 * half + 2] += x.z, s[4 * half + 3] += x.w;
      }
    }
    if (capped) cap_scores(s, p.scale, p.softcap);
    if (now.masked()) {
#pragma unroll
      for (int i = 0; i < keys / 4; ++i) {
        const int32_t at = now.index() * keys + i / 2 * 8 + 2 * (lane % 4) + i % 2;
        const TokenMask key = plain ? TokenMask{at, 0, 1, 0} : p.mask.token(at);
        s[i] = p.mask.sees(query, key) ? s[i] : minus_infinity;
      }
    }
    const float factor = softmax.take(s, c);
    if (lane % 4 == 0) factors[row] = factor;
#pragma unroll
    for (int j = 0; j < key_tiles; ++j)
      *reinterpret_cast<uint32_t*>(shared + (weights - base) + row * weight_row_bytes + 16 * j + 4 * (lane % 4)) =
          pack_bf16(s[2 * j], s[2 * j + 1]);
    copy_wait<1>();
    __syncthreads();  // the values, the weights and the factors are here

#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const float low = factors[16 * m + lane / 4], high = factors[16 * m + 8 + lane / 4];
      if (__any_sync(0xffffffffU, low != 1.0F || high != 1.0F)) {
#pragma unroll
        for (int i = 0; i < columns / 2; ++i) o[m][i] *= i / 2 % 2 == 0 ? low : high;
      }
    }
#pragma unroll
    for (int step = 0; step < keys / 16; ++step) {
      uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) ldmatrix_x4(weights_at + m * 16 * weight_row_bytes + step * 32, a[m]);
#pragma unroll
      for (int j = 0; j < columns / 8; j += 2) {
        uint32_t b[4];
        ldmatrix_x4<true>(v_at + step * 16 * row_bytes + j * 16, b);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_16x8x16(o[m] + 4 * j, a[m], b[0], b[1]);
          mma_16x8x16(o[m] + 4 * j + 4, a[m], b[2], b[3]);
        }
      }
    }
    if (now.last()) break;
  }

  const float total = SoftmaxRows::over_row(softmax.sum);
  const int32_t my_query = first_query + group * group_rows + row;
  __syncthreads();  // the factors are read
  if (lane % 4 == 0) {
    factors[row] = 1.0F / total;
    const float rest = fmaf(softmax.top, c, -softmax.base);  // base is rounded
    if (my_query < p.num_queries)
      p.lse[int64_t{my_query} * p.num_heads + head] =
          fmaf(softmax.top, capped ? 1.0F : p.scale, logf(total) - rest * ln_2);
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t r = 16 * m + 8 * i + lane / 4, at = first_query + group * group_rows + r;
      store_row(o[m], i, factors[r],
                at < p.num_queries ? p.o + at * q_stride + int64_t{head} * head_dim + mine * columns : nullptr);
    }
  }
}

}  // namespace

void forward_wide_portable(Context& ctx, const AttentionForward& args, const AttentionMask& mask) {
  const AttentionShape& s = args.shape;
  SLUICE_ASSERT(s.head_dim == head_dim);
  const WideParams params{.mask = mask,
                          .query_begin = static_cast<int32_t>(args.query_begin),
                          .num_queries = static_cast<int32_t>(args.q.shape[0]),
                          .num_heads = static_cast<int32_t>(s.num_heads),
                          .num_kv_heads = static_cast<int32_t>(s.num_kv_heads),
                          .scale = s.scale,
                          .softcap = s.softcap,
                          .q = static_cast<const __nv_bfloat16*>(args.q.data),
                          .k = static_cast<const __nv_bfloat16*>(args.k.data),
                          .v = static_cast<const __nv_bfloat16*>(args.v.data),
                          .o = static_cast<__nv_bfloat16*>(args.o.data),
                          .lse = args.lse.as<float>()};
  const auto kernel = mask.single && s.softcap == 0 ? wide_portable_kernel<true> : wide_portable_kernel<false>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shared::bytes),
             "attention_forward");
  const dim3 grid(static_cast<unsigned>(ceil_div(args.q.shape[0], rows)), static_cast<unsigned>(s.num_heads));
  kernel<<<grid, threads, Shared::bytes, stream_of(ctx)>>>(params);
  check_launch("attention_forward");
}

}  // namespace sluice::cuda
