// attention_forward on CUDA: which kernel, and the plain one, for float32 and odd head dimensions. It takes any head_dim and dtype: a block of 32 queries of one head and 256
// columns of its output walks blocks of 32 keys; wider heads compute their scores once for every 256 columns.
#include "ops/attention/attention_forward_portable.cuh"
#include "ops/attention/attention_forward_sm90.cuh"

namespace sluice::cuda {

namespace {

constexpr int plain_threads = 256;
constexpr int tile_rows = 32, tile_keys = 32, tile_columns = 256, tile_depth = 32;
constexpr int rows_of_warp = tile_rows / (plain_threads / 32);
constexpr int columns_of_lane = tile_columns / 32;

template <class T>
struct PlainParams {
  AttentionMask mask;
  int32_t query_begin, num_queries, num_heads, num_kv_heads, head_dim;
  float scale, softcap;
  const T *q, *k, *v;
  T* o;
  float* lse;
};

// Rows [first, first + 32) and columns [column, column + 32) of one head; zeros past `rows` and `columns`.
template <class T>
__device__ void load_part(float (&to)[tile_rows][tile_depth + 1], const T* from, int64_t stride, int32_t first,
                          int32_t rows, int32_t column, int32_t columns) {
  const int32_t c = static_cast<int32_t>(threadIdx.x % tile_depth);
  for (int32_t r = static_cast<int32_t>(threadIdx.x / tile_depth); r < tile_rows; r += plain_threads / tile_depth)
    to[r][c] = first + r < rows && column + c < columns ? to_float(from[(first + r) * stride + column + c]) : 0.0F;
}

template <class T>
__global__ void __launch_bounds__(plain_threads) plain_kernel(const __grid_constant__ PlainParams<T> p) {
  __shared__ float q_part[tile_rows][tile_depth + 1], k_part[tile_keys][tile_depth + 1];
  __shared__ float v_part[tile_keys][tile_columns];
  const int32_t D = p.head_dim, warp = static_cast<int32_t>(threadIdx.x / 32),
                lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t first_query = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x) * tile_rows;  // the last see most: first
  const int32_t head = static_cast<int32_t>(blockIdx.y), kv_head = head / (p.num_heads / p.num_kv_heads);
  const int32_t first_column = static_cast<int32_t>(blockIdx.z) * tile_columns,
                columns = min(D - first_column, tile_columns);
  const int64_t q_stride = int64_t{p.num_heads} * D, kv_stride = int64_t{p.num_kv_heads} * D;
  const T *const q = p.q + int64_t{head} * D, *const k = p.k + int64_t{kv_head} * D,
                 *const v = p.v + int64_t{kv_head} * D + first_column;
  const int32_t first = p.query_begin + first_query, end = p.query_begin + p.num_queries;
  const int32_t last = min(first + tile_rows, end) - 1;
  const BlockMask range = range_of_tokens(p.mask, first, last - first + 1);

  TokenMask query[rows_of_warp];
  float top[rows_of_warp], sum[rows_of_warp], o[rows_of_warp][columns_of_lane] = {};
  for (int r = 0; r < rows_of_warp; ++r) {
    query[r] = p.mask.token(min(first + warp * rows_of_warp + r, last));
    top[r] = -INFINITY, sum[r] = 0;
  }
  for (int32_t begin = 0; begin <= last; begin += tile_keys) {
    if (p.mask.single) {
      begin = max(begin, max(0, first - p.mask.window + 1) / tile_keys * tile_keys);
    } else if (p.mask.sight(range, blocks_around(p.mask, begin, tile_keys)) == Sight::none) {
      continue;
    }
    float s[rows_of_warp] = {};
    for (int32_t column = 0; column < D; column += tile_depth) {
      __syncthreads();
      load_part(q_part, q, q_stride, first_query, p.num_queries, column, D);
      load_part(k_part, k, kv_stride, begin, end, column, D);
      __syncthreads();
#pragma unroll 8
      for (int d = 0; d < tile_depth; ++d) {
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) s[r] = fmaf(q_part[warp * rows_of_warp + r][d], k_part[lane][d], s[r]);
      }
    }
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < tile_keys * tile_columns; i += plain_threads) {
      const int32_t r = i / tile_columns, c = i % tile_columns;
      if (c < columns) v_part[r][c] = begin + r < end ? to_float(v[(begin + r) * kv_stride + c]) : 0.0F;
    }
    __syncthreads();

    const TokenMask key = p.mask.token(begin + lane);
    float weight[rows_of_warp];
#pragma unroll
    for (int r = 0; r < rows_of_warp; ++r) {
      s[r] *= p.scale;
      if (p.softcap > 0) s[r] = p.softcap * tanhf(s[r] / p.softcap);
      const bool seen = p.mask.sees(query[r], key);
      const float raised = fmaxf(top[r], warp_max(seen ? s[r] : -INFINITY)), base = raised == -INFINITY ? 0.0F : raised;
      const float factor = top[r] == raised ? 1.0F : expf(top[r] - base), e = seen ? expf(s[r] - base) : 0.0F;
      top[r] = raised;
      sum[r] = sum[r] * factor + warp_sum(e);
      weight[r] = to_float(from_float<T>(e));
#pragma unroll
      for (int c = 0; c < columns_of_lane; ++c) o[r][c] *= factor;
    }
    for (int j = 0; j < tile_keys; ++j) {
      float w[rows_of_warp];
#pragma unroll
      for (int r = 0; r < rows_of_warp; ++r) w[r] = __shfl_sync(0xffffffffU, weight[r], j);
#pragma unroll
      for (int c = 0; c < columns_of_lane; ++c) {
        if (32 * c >= columns) break;
        const float x = v_part[j][32 * c + lane];
#pragma unroll
        for (int r = 0; r < rows_of_warp; ++r) o[r][c] = fmaf(w[r], x, o[r][c]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < rows_of_warp; ++r) {
    const int32_t row = first_query + warp * rows_of_warp + r;
    if (row >= p.num_queries) break;
    if (lane == 0 && first_column == 0) p.lse[int64_t{row} * p.num_heads + head] = top[r] + logf(sum[r]);
#pragma unroll
    for (int c = 0; c < columns_of_lane; ++c) {
      if (32 * c + lane < columns)
        p.o[row * q_stride + int64_t{head} * D + first_column + 32 * c + lane] = from_float<T>(o[r][c] / sum[r]);
    }
  }
}

template <class T>
void forward_plain(Context& ctx, const AttentionForward& args, const AttentionMask& mask) {
  const AttentionShape& s = args.shape;
  const PlainParams<T> params{.mask = mask,
                              .query_begin = static_cast<int32_t>(args.query_begin),
                              .num_queries = static_cast<int32_t>(args.q.shape[0]),
                              .num_heads = static_cast<int32_t>(s.num_heads),
                              .num_kv_heads = static_cast<int32_t>(s.num_kv_heads),
                              .head_dim = static_cast<int32_t>(s.head_dim),
                              .scale = s.scale,
                              .softcap = s.softcap,
                              .q = static_cast<const T*>(args.q.data),
                              .k = static_cast<const T*>(args.k.data),
                              .v = static_cast<const T*>(args.v.data),
                              .o = static_cast<T*>(args.o.data),
                              .lse = args.lse.as<float>()};
  const dim3 grid(static_cast<unsigned>(ceil_div(args.q.shape[0], tile_rows)), static_cast<unsigned>(s.num_heads),
                  static_cast<unsigned>(ceil_div(s.head_dim, tile_columns)));
  plain_kernel<T><<<grid, plain_threads, 0, stream_of(ctx)>>>(params);
  check_launch("attention_forward");
}

bool at_16_bytes(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& args) {
  ArenaScope scope(ctx.arena);
  const AttentionMask mask = attention_mask(ctx, scope, args.spans, args.shape.window);
  int32_t* const next_tile = scope.array<int32_t>(1);
  if (ctx.counting()) return;

  const int64_t D = args.shape.head_dim;
  const bool aligned = at_16_bytes(args.q) && at_16_bytes(args.k) && at_16_bytes(args.v) && at_16_bytes(args.o);
  const bool tensor = args.q.dtype == DType::bf16 && aligned, hopper = tensor && facts_of(ctx).hopper();
  if (hopper && (D == 64 || D == 128 || D == 256)) {
    forward_narrow(ctx, args, mask, next_tile);
  } else if (hopper && D == 512) {
    forward_wide(ctx, args, mask);
  } else if (tensor && portable_forward_of(D) != nullptr) {
    forward_portable(ctx, args, mask);
  } else if (tensor && D == PortableForwardWide{}.head_dim) {
    forward_wide_portable(ctx, args, mask);
  } else {
    with_type(args.q.dtype, [&]<class T> { forward_plain<T>(ctx, args, mask); });
  }
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(attention_forward, AttentionForward)
