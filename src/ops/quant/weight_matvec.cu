// Matrix-vector products with a matrix in any of its storage formats, for one to a few rows of x.
//
// Most quantised formats go to tensor cores (matvec_tiles.cuh). The others are multiplied here, by octets of weights: T
// threads share the octets of R rows of the weight, thread t taking the octets t, t + T, …; T depends on the count of
// columns only. Each (row of x, output) has one sum in each thread, fed in that order, then the sums of a warp and of
// the warps are added by a fixed tree: so a result depends neither on N nor on R.
#include <algorithm>

#include "ops/quant/matvec_tiles.cuh"
#include "ops/quant/quant.h"
#include "ops/quant/quant_decode.cuh"

namespace sluice::cuda {
namespace {

// ---- By octets ------------------------------------------------------------------------------------------------------

constexpr int most_threads = 128;  // of a block

struct Product {
  WeightView weight;
  int rows, cols, num_octets, num_x;  // num_x: rows of x and y
  int x_tiles;
  const void* x;
  void* y;
  bool x_wide;  // every octet of x can be read by 16-byte loads
  bool y_bf16;
};

template <class T>
__device__ void load_octet(const T* x, int count, bool wide, float* v) {
  if (wide && count >= 8) {
    if constexpr (std::is_same_v<T, float>) {
      const float4 a = __ldg(reinterpret_cast<const float4*>(x)), b = __ldg(reinterpret_cast<const float4*>(x) + 1);
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
      const uint4 a = __ldg(reinterpret_cast<const uint4*>(x));
      const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[2 * i] = __uint_as_float(words[i] << 16);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = i < count ? to_float(x[i]) : 0.0F;
  }
}

// Threads (T, groups): a group shares R rows of the weight, for x_batch rows of x; one row of x must be x_wide.
template <class D, class T, int x_batch, int R>
__global__ __launch_bounds__(most_threads, x_batch* R > 8 ? 3 : 4) void octets_kernel(const Product p) {
  __shared__ float sums[most_threads / 32][x_batch * R];
  const int x_begin = static_cast<int>(blockIdx.x % p.x_tiles) * x_batch;
  const int64_t first = (static_cast<int64_t>(blockIdx.x / p.x_tiles) * blockDim.y + threadIdx.y) * R;
  Row rows[R];
#pragma unroll
  for (int r = 0; r < R; ++r)  // missing rows repeat the last
    rows[r] = p.weight.row(static_cast<uint32_t>(min(first + r, static_cast<int64_t>(p.rows - 1))));
  const T* x[x_batch];
#pragma unroll
  for (int n = 0; n < x_batch; ++n)
    x[n] = static_cast<const T*>(p.x) + static_cast<int64_t>(min(x_begin + n, p.num_x - 1)) * p.cols;

  float sum[x_batch][R] = {};
  decltype(D::load(p.weight, rows[0], 0)) raw[R];
  const auto load = [&](int r, int octet) {
    if (octet >= p.num_octets) return;
    if constexpr (D::plain) raw[r] = D::load(p.weight, rows[r], octet, p.cols - octet * 8);
    else raw[r] = D::load(p.weight, rows[r], octet);
  };
  int octet = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int r = 0; r < R; ++r) load(r, octet);
  while (octet < p.num_octets) {
    const int next = octet + static_cast<int>(blockDim.x);
    float w[x_batch == 1 ? 1 : R][8];
    if constexpr (x_batch > 1) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        D::decode(p.weight, raw[r], octet, w[r]);
        load(r, next);
      }
    }
#pragma unroll
    for (int n = 0; n < x_batch; ++n) {
      float v[8];
      load_octet(x[n] + octet * 8, D::plain ? p.cols - octet * 8 : 8, x_batch == 1 || p.x_wide, v);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if constexpr (x_batch == 1) D::decode(p.weight, raw[r], octet, w[0]);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[n][r] = __fmaf_rn(w[x_batch == 1 ? 0 : r][i], v[i], sum[n][r]);
        if constexpr (x_batch == 1) load(r, next);
      }
    }
    octet = next;
  }

  const int warps = static_cast<int>(blockDim.x / 32), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
  for (int n = 0; n < x_batch; ++n) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float total = warp_sum(sum[n][r]);
      if (threadIdx.x % 32 == 0) sums[threadIdx.y * warps + warp][n * R + r] = total;
    }
  }
  __syncthreads();
  const int n = static_cast<int>(threadIdx.x) / R, r = static_cast<int>(threadIdx.x) % R;
  if (n >= x_batch || x_begin + n >= p.num_x || first + r >= p.rows) return;
  float total = sums[threadIdx.y * warps][n * R + r];
  for (int w = 1; w < warps; ++w) total = __fadd_rn(total, sums[threadIdx.y * warps + w][n * R + r]);
  const int64_t at = static_cast<int64_t>(x_begin + n) * p.rows + first + r;
  if (p.y_bf16) static_cast<__nv_bfloat16*>(p.y)[at] = from_float<__nv_bfloat16>(total);
  else static_cast<float*>(p.y)[at] = total;
}

// Threads that share a row: about eight octets each.
int threads_for(int64_t num_octets) {
  return static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(num_octets, 8), 32), 32, most_threads));
}

template <class D, class T, int x_batch, int R>
void launch_octets(const Context& ctx, Product p) {
  p.x_tiles = static_cast<int>(ceil_div(p.num_x, x_batch));
  const int T_threads = threads_for(p.num_octets), groups = most_threads / T_threads;
  const int64_t blocks = ceil_div(p.rows, R * groups) * p.x_tiles;
  SLUICE_ASSERT(blocks <= INT32_MAX);
  const dim3 block(static_cast<unsigned>(T_threads), static_cast<unsigned>(groups));
  octets_kernel<D, T, x_batch, R><<<static_cast<unsigned>(blocks), block, 0, stream_of(ctx)>>>(p);
}

template <class D, class T, bool aligned>
void multiply_octets(const Context& ctx, const Product& p) {
  if constexpr (aligned) {
    // Few rows: more threads that each do less hide the latency.
    const int64_t threads = static_cast<int64_t>(p.rows) * threads_for(p.num_octets);
    const int64_t enough = static_cast<int64_t>(facts_of(ctx).num_multiprocessors) * 2048;
    if (p.num_x == 1 && p.x_wide && threads < enough) return launch_octets<D, T, 1, 1>(ctx, p);
    if (p.num_x == 1 && p.x_wide) return launch_octets<D, T, 1, 4>(ctx, p);
  }
  launch_octets<D, T, 4, 4>(ctx, p);
}

void multiply_octets(const Context& ctx, const WeightMatvec& args) {
  const Weight& w = args.weight;
  const int64_t N = args.x.shape[0];
  const Product p = {.weight = WeightView(w),
                     .rows = static_cast<int>(w.rows),
                     .cols = static_cast<int>(w.cols),
                     .num_octets = static_cast<int>(ceil_div(w.cols, 8)),
                     .num_x = static_cast<int>(N),
                     .x_tiles = 1,
                     .x = args.x.data,
                     .y = args.y.data,
                     .x_wide = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 &&
                               (N == 1 || w.cols * size_of(args.x.dtype) % 16 == 0),
                     .y_bf16 = args.y.dtype == DType::bf16};
  const bool plain = block_cols(w.format) == 1 && w.format != WeightFormat::affine;
  const auto multiply = [&]<class D, bool aligned>() {
    if (args.x.dtype == DType::bf16) multiply_octets<D, __nv_bfloat16, aligned>(ctx, p);
    else multiply_octets<D, float, aligned>(ctx, p);
  };
  if (p.weight.aligned() && (!plain || p.weight.row_bytes % 16 == 0))
    with_decoder<16>(w, [&]<class D>() { multiply.template operator()<D, true>(); });
  else with_decoder<1>(w, [&]<class D>() { multiply.template operator()<D, false>(); });
}

// ---- By tiles -------------------------------------------------------------------------------------------------------

// Whether the matrix lies as the tiles' copies need it. From the weight alone, so that all its products are of one
// kind.
bool lies_in_tiles(const Weight& w) {
  const auto at = [](const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  if (w.cols == 0 || !at(w.data, 16)) return false;
  switch (w.format) {
    case WeightFormat::q4_1:
    case WeightFormat::q4_k:
    case WeightFormat::q5_k:
    case WeightFormat::q6_k: return true;
    case WeightFormat::q4_0:
    case WeightFormat::q8_0: return w.cols % 64 == 0;
    case WeightFormat::affine:
      return (w.bits == 4 || w.bits == 8) && w.scale_dtype != DType::f32 && w.cols / w.group_size % 2 == 0 &&
             at(w.scales, 4) && at(w.biases, 4);
    default: return false;
  }
}

template <class F>
bool multiply_tiles(const Context& ctx, const WeightMatvec& args) {
  const Weight& w = args.weight;
  const DeviceFacts& facts = facts_of(ctx);
  const WeightView view(w);
  const bool x_bf16 = args.x.dtype == DType::bf16, y_bf16 = args.y.dtype == DType::bf16;
  const int parts = x_bf16 ? 1 : tiles::float_parts;
  const int blocks = static_cast<int>(std::min<int64_t>(facts.num_multiprocessors, ceil_div(w.rows, tiles::tile_rows)));
  tiles::Product p{};
  p.data = view.data, p.scales = view.scales, p.biases = view.biases;
  p.row_bytes = view.row_bytes, p.scale_row_bytes = view.scale_row_bytes;
  if (w.format == WeightFormat::affine) {
    p.scale_bytes = static_cast<int>(tiles::chunk_cols / w.group_size * 2);
    p.scales_whole = w.cols % tiles::chunk_cols == 0 && reinterpret_cast<uintptr_t>(w.scales) % p.scale_bytes == 0 &&
                     reinterpret_cast<uintptr_t>(w.biases) % p.scale_bytes == 0;
    p.group_shift = view.group_shift - 2;
  }
  p.rows = static_cast<int>(w.rows), p.cols = static_cast<int>(w.cols);
  p.x_bf16 = x_bf16, p.y_bf16 = y_bf16;
  p.interleaved_head_dim = view.interleaved_head_dim;
  const int columns = tiles::columns_that_fit<F>(p, facts.shared_bytes_per_block), most_x = columns / parts;
  if (columns == 0) return false;
  check_cuda(cudaFuncSetAttribute(tiles::matvec_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(facts.shared_bytes_per_block)),
             "weight_matvec");
  const int64_t N = args.x.shape[0];
  for (int64_t n = 0; n < N; n += most_x) {
    p.num_x = static_cast<int>(std::min<int64_t>(most_x, N - n));
    p.x = static_cast<const std::byte*>(args.x.data) + n * w.cols * size_of(args.x.dtype);
    p.y = static_cast<std::byte*>(args.y.data) + n * w.rows * size_of(args.y.dtype);
    const tiles::Layout layout =
        tiles::lay_out<F>(p, p.num_x * parts, static_cast<int>(ceil_div(w.rows, blocks)), facts.shared_bytes_per_block);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(layout.warps) * 32);
    config.dynamicSmemBytes = layout.shared_bytes;
    config.stream = stream_of(ctx);
    config.attrs = &attribute;
    config.numAttrs = facts.hopper() ? 1 : 0;
    check_cuda(cudaLaunchKernelEx(&config, tiles::matvec_kernel<F>, p), "weight_matvec");
  }
  return true;
}

bool multiply_tiles_of_format(const Context& ctx, const WeightMatvec& args) {
  const Weight& w = args.weight;
  switch (w.format) {
    case WeightFormat::q4_0: return multiply_tiles<tiles::Q4>(ctx, args);
    case WeightFormat::q4_1: return multiply_tiles<tiles::Q4Min>(ctx, args);
    case WeightFormat::q8_0: return multiply_tiles<tiles::Q8>(ctx, args);
    case WeightFormat::q4_k: return multiply_tiles<tiles::Q45K<false>>(ctx, args);
    case WeightFormat::q5_k: return multiply_tiles<tiles::Q45K<true>>(ctx, args);
    case WeightFormat::q6_k: return multiply_tiles<tiles::Q6K>(ctx, args);
    default: break;
  }
  const bool bf16 = w.scale_dtype == DType::bf16;
  if (w.bits == 4)
    return bf16 ? multiply_tiles<tiles::Affine<4, true>>(ctx, args)
                : multiply_tiles<tiles::Affine<4, false>>(ctx, args);
  return bf16 ? multiply_tiles<tiles::Affine<8, true>>(ctx, args) : multiply_tiles<tiles::Affine<8, false>>(ctx, args);
}

}  // namespace

void weight_matvec(Context& ctx, const WeightMatvec& args) {
  const int64_t N = args.x.shape[0];
  if (ctx.counting() || N == 0 || args.weight.rows == 0) return;
  SLUICE_ASSERT(N <= INT32_MAX);
  if (!lies_in_tiles(args.weight) || !multiply_tiles_of_format(ctx, args)) multiply_octets(ctx, args);
  check_launch("weight_matvec");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(weight_matvec, WeightMatvec)
