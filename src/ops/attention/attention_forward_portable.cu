#include "ops/attention/attention_forward_portable.cuh"

#include "ops/attention/attention_portable.cuh"
#include "ops/attention/attention_softmax.cuh"

namespace sluice::cuda {

namespace {

struct PortableForwardParams {
  AttentionMask mask;
  int32_t query_begin, num_queries, num_heads, num_kv_heads;
  float scale, softcap;
  const __nv_bfloat16 *q, *k, *v;
  __nv_bfloat16* o;
  float* lse;
};

template <int head_dim, bool plain>
__global__ void __launch_bounds__(portable_forward_of(head_dim)->threads(), head_dim == 64 && plain ? 3 : 2)
    forward_portable_kernel(const __grid_constant__ PortableForwardParams p) {
  constexpr PortableForward plan = *portable_forward_of(head_dim);
  constexpr int keys = plan.keys, threads = plan.threads(), rows = plan.rows();
  constexpr int row_tiles = plan.rows_of_warp / 16, key_tiles = keys / 8, column_tiles = head_dim / 8;
  constexpr uint32_t row_bytes = static_cast<uint32_t>(tile_row_bytes(head_dim));
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t q_tile = shared_address(shared), k_tile = q_tile + rows * row_bytes,
                 v_tile = k_tile + keys * row_bytes;

  const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t first_query = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x) * rows;  // the last see most: first
  const int32_t head = static_cast<int32_t>(blockIdx.y), kv_head = head / (p.num_heads / p.num_kv_heads);
  const int32_t first = p.query_begin + first_query, end = p.query_begin + p.num_queries;
  const int64_t q_stride = int64_t{p.num_heads} * head_dim, kv_stride = int64_t{p.num_kv_heads} * head_dim;
  TileSource k{p.k + int64_t{kv_head} * head_dim, kv_stride, 0, end},
      v{p.v + int64_t{kv_head} * head_dim, kv_stride, 0, end};

  KeyBlocks<keys, plain> blocks(p.mask, first, min(first + rows, end) - 1);
  KeyBlock block = blocks.next();
  copy_tile<rows, head_dim, threads>(q_tile, {p.q + int64_t{head} * head_dim, q_stride, first_query, p.num_queries},
                                     head_dim);
  k.first = block.index() * keys;
  copy_tile<keys, head_dim, threads>(k_tile, k, head_dim);
  copy_commit();

  const int32_t row_of_warp = warp * plan.rows_of_warp;
  const uint32_t q_at = lane_address<Quarters::below_first, head_dim>(q_tile + row_of_warp * row_bytes),
                 k_at = lane_address<Quarters::beside_first, head_dim>(k_tile),
                 v_at = lane_address<Quarters::below_first, head_dim>(v_tile);
  TokenMask query[row_tiles][2];
  SoftmaxRows softmax[row_tiles];
  float o[row_tiles][column_tiles * 4] = {};
#pragma unroll
  for (int m = 0; m < row_tiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t token = min(first + row_of_warp + 16 * m + 8 * i + lane / 4, end - 1);
      query[m][i] = plain ? TokenMask{token, 0, 1, 0} : p.mask.token(token);
    }
  }
  const bool capped = !plain && p.softcap > 0;
  const float c = capped ? log2_e : p.scale * log2_e;

  while (true) {
    copy_wait<0>();
    __syncthreads();  // the keys are here, and the values before are read
    v.first = block.index() * keys;
    copy_tile<keys, head_dim, threads>(v_tile, v, head_dim);
    copy_commit();

    float s[row_tiles][key_tiles * 4] = {};
#pragma unroll
    for (int step = 0; step < head_dim / 16; ++step) {
      uint32_t a[row_tiles][4];
#pragma unroll
      for (int m = 0; m < row_tiles; ++m) ldmatrix_x4(q_at + m * 16 * row_bytes + step * 32, a[m]);
#pragma unroll
      for (int j = 0; j < key_tiles; j += 2) {
        uint32_t b[4];
        ldmatrix_x4(k_at + j * 8 * row_bytes + step * 32, b);
#pragma unroll
        for (int m = 0; m < row_tiles; ++m) {
          mma_16x8x16(s[m] + 4 * j, a[m], b[0], b[1]);
          mma_16x8x16(s[m] + 4 * j + 4, a[m], b[2], b[3]);
        }
      }
    }
    copy_wait<0>();
    __syncthreads();  // the values are here, and the keys are read
    const KeyBlock now = block;
    if (!now.last()) {
      block = blocks.next();
      k.first = block.index() * keys;
      copy_tile<keys, head_dim, threads>(k_tile, k, head_dim);
      copy_commit();
    }

    uint32_t weights[row_tiles][keys / 16][4];
#pragma unroll
    for (int m = 0; m < row_tiles; ++m) {
      if (capped) cap_scores(s[m], p.scale, p.softcap);
      if (now.masked()) hide_scores<plain>(s[m], p.mask, query[m], now.index() * keys);
      float most[2];
      SoftmaxRows::maxima(s[m], most);
      softmax[m].raise(most, c);
      softmax[m].template exponentials<0, key_tiles>(s[m], c);
      softmax[m].rescale(o[m]);
      pack_operand<keys / 16>(s[m], weights[m]);
    }
#pragma unroll
    for (int step = 0; step < keys / 16; ++step) {
#pragma unroll
      for (int j = 0; j < column_tiles; j += 2) {
        uint32_t b[4];
        ldmatrix_x4<true>(v_at + step * 16 * row_bytes + j * 16, b);
#pragma unroll
        for (int m = 0; m < row_tiles; ++m) {
          mma_16x8x16(o[m] + 4 * j, weights[m][step], b[0], b[1]);
          mma_16x8x16(o[m] + 4 * j + 4, weights[m][step], b[2], b[3]);
        }
      }
    }
    if (now.last()) break;
  }

#pragma unroll
  for (int m = 0; m < row_tiles; ++m) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t row = first_query + row_of_warp + 16 * m + 8 * i + lane / 4;
      const bool inside = row < p.num_queries;
      const float total = SoftmaxRows::over_row(softmax[m].sum[i]);
      store_row(o[m], i, 1.0F / total, inside ? p.o + row * q_stride + int64_t{head} * head_dim : nullptr);
      if (inside && lane % 4 == 0)
        p.lse[int64_t{row} * p.num_heads + head] = softmax[m].lse(i, total, capped ? 1.0F : p.scale, c);
    }
  }
}

template <int head_dim>
void launch(Context& ctx, const AttentionForward& args, const AttentionMask& mask) {
  constexpr PortableForward plan = *portable_forward_of(head_dim);
  const AttentionShape& s = args.shape;
  const PortableForwardParams params{.mask = mask,
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
  const auto kernel = mask.single && s.softcap == 0 ? forward_portable_kernel<head_dim, true>
                                                    : forward_portable_kernel<head_dim, false>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes()),
             "attention_forward");
  const dim3 grid(static_cast<unsigned>(ceil_div(args.q.shape[0], plan.rows())), static_cast<unsigned>(s.num_heads));
  kernel<<<grid, plan.threads(), plan.shared_bytes(), stream_of(ctx)>>>(params);
  check_launch("attention_forward");
}

}  // namespace

void forward_portable(Context& ctx, const AttentionForward& args, const AttentionMask& mask) {
  switch (args.shape.head_dim) {
    case 64: return launch<64>(ctx, args, mask);
    case 80: return launch<80>(ctx, args, mask);
    case 96: return launch<96>(ctx, args, mask);
    case 128: return launch<128>(ctx, args, mask);
    default: SLUICE_ASSERT(args.shape.head_dim == 256); return launch<256>(ctx, args, mask);
  }
}

}  // namespace sluice::cuda
