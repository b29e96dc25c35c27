// Matrix-vector products with a quantised matrix, for one to a few rows of x.
//
// A row of the weight is a run of slices of 8 or 16 weights. T threads share the slices of R rows of the weight, thread t taking the
// slices t, t + T, …; T depends on the count of columns and the format only. Each (row of x, output) has one sum in each thread, fed in
// that order, then the sums of a warp and of the warps are added by a fixed tree: so a result depends neither on N nor on R.
#include <algorithm>
#include <type_traits>
#include "ops/quant/quant.h"
#include "ops/quant/quant_decode.cuh"
#include "ops/quant/matvec_slices.cuh"

namespace sluice::cuda {
namespace {

using namespace slices;

// ---- The kernel ---------------------------------------------------------------------------------------------------------------

constexpr int most_threads = 128;  // of a block
// Blocks of a multiprocessor, by what a thread's sums and codes take of the registers.
constexpr int blocks_at_once(int sums, bool coded) { return sums > 8 && coded ? 3 : sums > 1 ? 4 : 1; }

struct Product {
  WeightView weight;
  int rows, cols, num_slices, num_x;  // num_x: rows of x and y
  int x_tiles;
  uint32_t data_step, scale_step;  // halfwords of codes and of scales from a thread's slice to its next
  const void* x;
  void* y;
  bool x_wide;  // every run of x can be read by 16-byte loads
  bool y_bf16;
};

template <class T>
__device__ void load_run(const T* x, int count, bool wide, float* v) {
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

// x as the slices want it (S::prepare), for products with many rows of the weight: for 32 slices at a time four planes of float4 and one of
// the two sums, each with the slices side by side.
struct Prepared {
  static constexpr int64_t floats_of_slice = 18;
};
__host__ __device__ inline int64_t prepared_floats(int64_t num_slices) {
  return round_up(num_slices, 32) * Prepared::floats_of_slice;
}
template <class X>
__device__ void load_prepared(const float* x, int slice, X& v) {
  const float* at = x + static_cast<int64_t>(slice >> 5) * (32 * Prepared::floats_of_slice);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = *reinterpret_cast<const float4*>(at + i * 128 + (slice & 31) * 4);
    v.v[4 * i] = four.x, v.v[4 * i + 1] = four.y, v.v[4 * i + 2] = four.z, v.v[4 * i + 3] = four.w;
  }
  const float2 two = *reinterpret_cast<const float2*>(at + 512 + (slice & 31) * 2);
  v.sum[0] = two.x, v.sum[1] = two.y;
}
// A thread for each slice of a row of x; rows by blockIdx.y.
template <class S, class T>
__global__ __launch_bounds__(128) void prepare_kernel(const T* x, int cols, int num_slices, bool wide, float* out) {
  const int slice = static_cast<int>(blockIdx.x * 128 + threadIdx.x);
  if (slice >= num_slices) return;
  x += static_cast<int64_t>(blockIdx.y) * cols;
  typename S::X v;
#pragma unroll
  for (int run = 0; run < 2; ++run) load_run(x + S::column(slice, run), 8, wide, v.v + 8 * run);
  S::prepare(v);
  float* at = out + blockIdx.y * prepared_floats(num_slices) +
              static_cast<int64_t>(slice >> 5) * (32 * Prepared::floats_of_slice);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    *reinterpret_cast<float4*>(at + i * 128 + (slice & 31) * 4) = {v.v[4 * i], v.v[4 * i + 1], v.v[4 * i + 2],
                                                                   v.v[4 * i + 3]};
  *reinterpret_cast<float2*>(at + 512 + (slice & 31) * 2) = {v.sum[0], v.sum[1]};
}

__device__ inline const uint8_t* moved(const uint8_t* p, uint32_t halfwords) {
  return reinterpret_cast<const uint8_t*>(reinterpret_cast<const uint16_t*>(p) + halfwords);
}

// Threads (T, groups): a group shares R rows of the weight, for x_batch rows of x; one row of x must be x_wide.
// T: of x, or Prepared.
template <class S, class T, int x_batch, int R>
__global__ __launch_bounds__(most_threads, blocks_at_once(x_batch* R, S::coded)) void matvec_kernel(const Product p) {
  constexpr bool prepared = std::is_same_v<T, Prepared>;
  using Element = std::conditional_t<prepared, float, T>;
  __shared__ float sums[most_threads / 32][x_batch * R];
  const int x_begin = static_cast<int>(blockIdx.x % p.x_tiles) * x_batch;
  const int64_t first = (static_cast<int64_t>(blockIdx.x / p.x_tiles) * blockDim.y + threadIdx.y) * R;
  Row rows[R];
#pragma unroll
  for (int r = 0; r < R; ++r)  // missing rows repeat the last
    rows[r] = p.weight.row(static_cast<uint32_t>(min(first + r, static_cast<int64_t>(p.rows - 1))));
  const int64_t x_row = prepared ? prepared_floats(p.num_slices) : p.cols;
  const Element* x[x_batch];
#pragma unroll
  for (int n = 0; n < x_batch; ++n) x[n] = static_cast<const Element*>(p.x) + min(x_begin + n, p.num_x - 1) * x_row;

  // From a thread's slice to its next it is a whole number of blocks: data_step halfwords of the codes.
  float sum[x_batch][R] = {};
  typename S::Raw raw[R];
  const int place = static_cast<int>(threadIdx.x);
  int slice = place;
  uint32_t data_at = 0, scale_at = 0;
#pragma unroll
  for (int r = 0; r < R; ++r) rows[r] = S::at(p.weight, rows[r], place);
  if (slice < p.num_slices) {
#pragma unroll
    for (int r = 0; r < R; ++r) raw[r] = S::load(p.weight, rows[r], place, p.cols - slice * 8);
  }
  while (slice < p.num_slices) {
    const int next = slice + static_cast<int>(blockDim.x);
    data_at += p.data_step;
    scale_at += p.scale_step;
    const auto load_next = [&](int r) {
      if (next >= p.num_slices) return;
      const Row row = {moved(rows[r].data, data_at), moved(rows[r].scales, scale_at), moved(rows[r].biases, scale_at)};
      raw[r] = S::load(p.weight, row, place, p.cols - next * 8);
    };
    typename S::Codes codes[x_batch == 1 ? 1 : R];
    if constexpr (x_batch > 1) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        codes[r] = S::decode(p.weight, raw[r], place);
        load_next(r);
      }
    }
#pragma unroll
    for (int n = 0; n < x_batch; ++n) {
      typename S::X v;
      if constexpr (prepared) {
        load_prepared(x[n], slice, v);
      } else {
#pragma unroll
        for (int run = 0; run < S::runs; ++run) {
          const int column = S::column(slice, run);
          load_run(x[n] + column, S::plain ? p.cols - column : 8, x_batch == 1 || p.x_wide, v.v + 8 * run);
        }
        S::prepare(v);
      }
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if constexpr (x_batch == 1) codes[0] = S::decode(p.weight, raw[r], place);
        sum[n][r] = S::add_product(codes[x_batch == 1 ? 0 : r], v, sum[n][r]);
        if constexpr (x_batch == 1) load_next(r);
      }
    }
    slice = next;
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
  total = __fmul_rn(total, S::sum_scale);
  const int64_t at = static_cast<int64_t>(x_begin + n) * p.rows + first + r;
  if (p.y_bf16) static_cast<__nv_bfloat16*>(p.y)[at] = from_float<__nv_bfloat16>(total);
  else static_cast<float*>(p.y)[at] = total;
}

// Threads that share a row: about eight slices each.
int threads_for(int64_t num_slices) {
  return static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(num_slices, 8), 32), 32, most_threads));
}

template <class S, class T, int x_batch, int R>
void launch(const Context& ctx, Product p) {
  p.x_tiles = static_cast<int>(ceil_div(p.num_x, x_batch));
  const int T_threads = threads_for(p.num_slices), groups = most_threads / T_threads;
  const int64_t columns = static_cast<int64_t>(T_threads) * 8 * S::runs;
  if (p.cols > 0) {
    // Blocks keep their scales among the codes.
    const int64_t scale_row_bytes = p.weight.scale_row_bytes > 0 ? p.weight.scale_row_bytes : p.weight.row_bytes;
    p.data_step = static_cast<uint32_t>(columns * p.weight.row_bytes / p.cols / 2);
    p.scale_step = static_cast<uint32_t>(columns * scale_row_bytes / p.cols / 2);
  }
  const int64_t blocks = ceil_div(p.rows, R * groups) * p.x_tiles;
  SLUICE_ASSERT(blocks <= INT32_MAX);
  const dim3 block(static_cast<unsigned>(T_threads), static_cast<unsigned>(groups));
  matvec_kernel<S, T, x_batch, R><<<static_cast<unsigned>(blocks), block, 0, stream_of(ctx)>>>(p);
}

constexpr int most_x = 16;  // rows of x prepared at a time

// scratch: prepared_floats for each of min(N, most_x) rows of x.
template <class S, class T, bool aligned>
void multiply(const Context& ctx, Product p, float* scratch) {
  p.num_slices = static_cast<int>(ceil_div(p.cols, 8 * S::runs));
  if constexpr (aligned) {
    // Few rows: more threads that each do less hide the latency.
    const int64_t threads = static_cast<int64_t>(p.rows) * threads_for(p.num_slices);
    const int64_t enough = static_cast<int64_t>(facts_of(ctx).num_multiprocessors) * 512;
    if (p.num_x == 1 && p.x_wide && threads < 4 * enough) return launch<S, T, 1, 1>(ctx, p);
    if constexpr (S::eight_rows) {
      if (p.num_x == 1 && p.x_wide && threads >= 6 * enough) return launch<S, T, 1, 8>(ctx, p);
    }
    if (p.num_x == 1 && p.x_wide) return launch<S, T, 1, 4>(ctx, p);
  }
  if constexpr (S::coded) {
    for (int n = 0; n < p.num_x && p.num_slices > 0; n += most_x) {
      Product part = p;
      part.num_x = std::min(most_x, p.num_x - n);
      part.x = scratch;
      part.y = static_cast<std::byte*>(p.y) + static_cast<int64_t>(n) * p.rows * (p.y_bf16 ? 2 : 4);
      const dim3 blocks(static_cast<unsigned>(ceil_div(p.num_slices, 128)), static_cast<unsigned>(part.num_x));
      prepare_kernel<S><<<blocks, 128, 0, stream_of(ctx)>>>(
          static_cast<const T*>(p.x) + static_cast<int64_t>(n) * p.cols, p.cols, p.num_slices, p.x_wide, scratch);
      launch<S, Prepared, 4, 4>(ctx, part);
    }
  } else {
    launch<S, T, 4, 4>(ctx, p);
  }
}

// The slices for a decoder; affine groups by the dtype of their scales.
template <class D, DType scale_dtype>
struct SliceFor {
  using type = OctetSlice<D>;
};
template <DType scale_dtype>
struct SliceFor<Affine<4, 16>, scale_dtype> {
  using type = AffineSlice<4, scale_dtype>;
};
template <DType scale_dtype>
struct SliceFor<Affine<8, 16>, scale_dtype> {
  using type = AffineSlice<8, scale_dtype>;
};
template <bool with_min>
struct SliceFor<Q4<with_min, 16>, DType::bf16> {
  using type = Q4Slice<with_min>;
};
template <>
struct SliceFor<Q8_0<16>, DType::bf16> {
  using type = Q8Slice;
};
template <bool five>
struct SliceFor<Q45K<five, 16>, DType::bf16> {
  using type = Q45KSlice<five>;
};
template <>
struct SliceFor<Q6K<16>, DType::bf16> {
  using type = Q6KSlice;
};

}  // namespace

void weight_matvec(Context& ctx, const WeightMatvec& args) {
  const Weight& w = args.weight;
  const int64_t N = args.x.shape[0];
  ArenaScope scope(ctx.arena);
  bool prepares = w.format == WeightFormat::affine && (w.bits == 4 || w.bits == 8);
  for (WeightFormat coded : {WeightFormat::q4_0, WeightFormat::q4_1, WeightFormat::q8_0, WeightFormat::q4_k,
                             WeightFormat::q5_k, WeightFormat::q6_k})
    prepares = prepares || w.format == coded;
  auto* const scratch =
      scope.array<float>(prepares ? std::min<int64_t>(N, most_x) * prepared_floats(ceil_div(w.cols, 16)) : 0);
  if (ctx.counting() || N == 0 || w.rows == 0) return;
  SLUICE_ASSERT(N <= INT32_MAX);
  const bool x_bf16 = args.x.dtype == DType::bf16;
  const Product p = {.weight = WeightView(w),
                     .rows = static_cast<int>(w.rows),
                     .cols = static_cast<int>(w.cols),
                     .num_slices = 0,
                     .num_x = static_cast<int>(N),
                     .x_tiles = 1,
                     .data_step = 0,
                     .scale_step = 0,
                     .x = args.x.data,
                     .y = args.y.data,
                     .x_wide = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 &&
                               (N == 1 || w.cols * size_of(args.x.dtype) % 16 == 0),
                     .y_bf16 = args.y.dtype == DType::bf16};
  const bool plain = block_cols(w.format) == 1;
  const bool aligned = p.weight.aligned() && (!plain || p.weight.row_bytes % 16 == 0);
  const auto multiply_by = [&]<class S, bool fast>() {
    if (x_bf16) multiply<S, __nv_bfloat16, fast>(ctx, p, scratch);
    else multiply<S, float, fast>(ctx, p, scratch);
  };
  const auto run = [&]<class D>() {
    if constexpr (std::is_same_v<D, Affine<4, 16>> || std::is_same_v<D, Affine<8, 16>>) {
      if (w.scale_dtype == DType::f32)
        return multiply_by.template operator()<typename SliceFor<D, DType::f32>::type, true>();
      if (w.scale_dtype == DType::f16)
        return multiply_by.template operator()<typename SliceFor<D, DType::f16>::type, true>();
    }
    multiply_by.template operator()<typename SliceFor<D, DType::bf16>::type, true>();
  };
  if (aligned) with_decoder<16>(w, run);
  else with_decoder<1>(w, [&]<class D>() { multiply_by.template operator()<OctetSlice<D>, false>(); });
  check_launch("weight_matvec");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(weight_matvec, WeightMatvec)
