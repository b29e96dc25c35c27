#include "ops/rows/rows.h"

#include <algorithm>

#include "ops/common/cuda_utils.cuh"
#include "ops/common/pack.cuh"

namespace sluice::cuda {

namespace {

constexpr int block = 256;

// A block takes whole rows; `threads` of it share one, so that a row of `units` accesses takes each of them about four.
struct RowCut {
  dim3 threads;
  int64_t blocks;
  RowCut(int64_t rows, int64_t units) {
    const int across = units <= 128 ? 32 : units <= 512 ? 128 : block;
    threads = dim3(across, block / across);
    blocks = ceil_div(rows, threads.y);
  }
};

// y[m] = x[index[m]], or x[m] without an index, in units of whole bytes. A row outside [0, x_rows) has no values: NaN.
template <class Unit>
__global__ __launch_bounds__(block) void copy_rows(const Unit* __restrict__ x, int64_t x_stride, int64_t x_rows,
                                                   const int32_t* __restrict__ index, Unit* __restrict__ y,
                                                   int64_t y_stride, int64_t rows) {
  const int64_t m = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (m >= rows) return;
  const int64_t from = index != nullptr ? index[m] : m;
  y += m * y_stride;
  if (from < 0 || from >= x_rows) {
    Unit all_ones;
    memset(&all_ones, 0xff, sizeof all_ones);
    for (int64_t i = threadIdx.x; i < y_stride; i += blockDim.x) y[i] = all_ones;
    return;
  }
  x += from * x_stride;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < y_stride; i += blockDim.x) y[i] = x[i];
}

// Rows of `to` bytes from rows that are `from` bytes apart, by the widest accesses that fit.
void copy_rows(cudaStream_t stream, const std::byte* x, int64_t from, int64_t x_rows, const int32_t* index,
               std::byte* y, int64_t to, int64_t rows) {
  const auto launch = [&]<class Unit>(Unit) {
    constexpr auto size = static_cast<int64_t>(sizeof(Unit));
    const RowCut cut(rows, to / size);
    copy_rows<Unit><<<cut.blocks, cut.threads, 0, stream>>>(reinterpret_cast<const Unit*>(x), from / size, x_rows,
                                                            index, reinterpret_cast<Unit*>(y), to / size, rows);
  };
  const auto bits = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y) | static_cast<uintptr_t>(from | to);
  if (bits % 16 == 0) launch(uint4{});
  else if (bits % 4 == 0) launch(uint32_t{});
  else launch(uint16_t{});
}

constexpr int rows_of_block = 16;  // of y

// The first m with index[m] >= n, by a whole warp: 32 places at a time, so that few loads wait for one another.
__device__ int lower_bound(const int32_t* __restrict__ index, int M, int64_t n) {
  const int lane = threadIdx.x % 32;
  int low = 0, count = M;
  while (count > 0) {
    const int step = (count + 31) / 32;
    const bool less = index[low + min((lane + 1) * step, count) - 1] < n;
    const int k = __popc(__ballot_sync(0xffffffffU, less));  // of the parts of `step` elements, so many are all less
    const int rest = k == 32 ? 0 : min((k + 1) * step, count) - k * step - 1;
    low += min(k * step, count);
    count = rest;
  }
  return low;
}

// begin[i] = the first m with index[m] >= first + i, for i in [0, rows_of_block]; by a whole block.
__device__ void find_ranges(const int32_t* __restrict__ index, int M, int64_t first, int (&begin)[rows_of_block + 1]) {
  __shared__ int ends[2];
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  if (thread < 64) {
    const int end = lower_bound(index, M, first + thread / 32 * rows_of_block);
    if (thread % 32 == 0) ends[thread / 32] = end;
  }
  __syncthreads();
  if (thread <= rows_of_block) begin[thread] = ends[1];
  __syncthreads();
  for (int m = ends[0] + thread; m < ends[1]; m += block) {
    const int from = m == ends[0] ? 0 : static_cast<int>(index[m - 1] - first) + 1;
    const int to = min(static_cast<int>(index[m] - first), rows_of_block);
    for (int i = max(from, 0); i <= to; ++i) begin[i] = m;
  }
  __syncthreads();
}

// A pack, or one element.
template <class T, int size>
__device__ void load_some(const T* p, float (&v)[size]) {
  if constexpr (size == 1) v[0] = to_float(*p);
  else unpack(load_pack<size>(p), v);
}
template <class T, int size>
__device__ void store_some(T* p, const float (&v)[size]) {
  if constexpr (size == 1) *p = from_float<T>(v[0]);
  else store_pack(p, v);
}

// y[n] = sum over the m with index[m] = n of weight[m] * x[m], in order, in packs of `size` elements.
template <class X, class Y, int size>
__global__ __launch_bounds__(block) void weighted_sums(const X* __restrict__ x, const float* __restrict__ weight,
                                                       const int32_t* __restrict__ index, int M, Y* __restrict__ y,
                                                       int64_t N, int C) {
  __shared__ int begin[rows_of_block + 1];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * rows_of_block;
  find_ranges(index, M, first_row, begin);
  for (int row = threadIdx.y; row < rows_of_block && first_row + row < N; row += blockDim.y) {
    const int first = begin[row], count = begin[row + 1] - first;
    const X* from = x + static_cast<int64_t>(first) * C;
    Y* to = y + (first_row + row) * C;
    if (count <= 1) {  // most rows: several loads in flight
      const float w = count == 1 ? weight[first] : 0.0F;
#pragma unroll 4
      for (int c = threadIdx.x * size; c < C; c += blockDim.x * size) {
        float v[size] = {};
        if (count == 1) load_some(from + c, v);
#pragma unroll
        for (int j = 0; j < size; ++j) v[j] = fmaf(w, v[j], 0.0F);
        store_some(to + c, v);
      }
      continue;
    }
    for (int c = threadIdx.x * size; c < C; c += blockDim.x * size) {
      float sum[size] = {};
      for (int m = 0; m < count; ++m) {
        float v[size];
        load_some(from + static_cast<int64_t>(m) * C + c, v);
#pragma unroll
        for (int j = 0; j < size; ++j) sum[j] = fmaf(weight[first + m], v[j], sum[j]);
      }
      store_some(to + c, sum);
    }
  }
}

constexpr int elements_per_thread = 16;
constexpr int64_t elements_per_block = int64_t{block} * elements_per_thread;

// Whole blocks by packs; the last, and what is not aligned, by elements. Both with one rounding.
template <class X, class Y>
__global__ __launch_bounds__(block) void scale(const X* x, Y* y, float factor, bool add, int64_t count, bool packed) {
  const int64_t begin = blockIdx.x * elements_per_block, end = min(count, begin + elements_per_block);
  if (!packed || begin + elements_per_block > count) {
    for (int64_t i = begin + threadIdx.x; i < end; i += block) {
      y[i] = from_float<Y>(add ? fmaf(factor, to_float(x[i]), to_float(y[i])) : factor * to_float(x[i]));
    }
    return;
  }
  constexpr int n = pack_size<X, Y>, packs = elements_per_thread / n;
  Pack<X, n> xs[packs];
  Pack<Y, n> ys[packs];
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    const int64_t i = begin + (k * block + threadIdx.x) * n;
    xs[k] = load_pack<n>(x + i);
    ys[k] = {};
    if (add) ys[k] = load_pack<n>(y + i);
  }
#pragma unroll
  for (int k = 0; k < packs; ++k) {
    float v[n], old[n];
    unpack(xs[k], v);
    unpack(ys[k], old);
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = add ? fmaf(factor, v[j], old[j]) : factor * v[j];
    store_pack(y + begin + (k * block + threadIdx.x) * n, v);
  }
}

template <class F>
void with_types(const Tensor& x, const Tensor& y, F f) {
  with_type(x.dtype, [&]<class X>() { with_type(y.dtype, [&]<class Y>() { f.template operator()<X, Y>(); }); });
}

// An index in memory that the host reads too (tests) is checked before use. One in device memory is not, which would cost a
// wait: there a bad index gives NaN (gather) or is left out (scatter).
const int32_t* readable_index(cudaStream_t stream, const Tensor& index) {
  const auto* values = data_of<int32_t>(index);
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, values), "asking where an index lies");
  if (attributes.type == cudaMemoryTypeDevice) return nullptr;
  check_cuda(cudaStreamSynchronize(stream), "waiting for an index");
  return values;
}

}  // namespace

void gather_rows(Context& ctx, const GatherRows& args) {
  if (ctx.counting() || args.y.numel() == 0) return;
  const int64_t M = args.index.shape[0], row_bytes = args.x.shape[1] * size_of(args.x.dtype);
  const cudaStream_t stream = stream_of(ctx);
  if (const int32_t* index = readable_index(stream, args.index)) {
    SLUICE_ASSERT(std::all_of(index, index + M, [&](int32_t i) { return i >= 0 && i < args.x.shape[0]; }));
  }
  copy_rows(stream, data_of<std::byte>(args.x), row_bytes, args.x.shape[0], data_of<int32_t>(args.index),
            data_of<std::byte>(args.y), row_bytes, M);
  check_launch("gather_rows");
}

void gather_columns(Context& ctx, const GatherColumns& args) {
  if (ctx.counting() || args.y.numel() == 0) return;
  const int64_t size = size_of(args.y.dtype), rows = args.y.shape[0];
  copy_rows(stream_of(ctx), data_of<std::byte>(args.x) + args.begin * size, args.x.shape[1] * size, rows, nullptr,
            data_of<std::byte>(args.y), args.y.shape[1] * size, rows);
  check_launch("gather_columns");
}

void scatter_rows(Context& ctx, const ScatterRows& args) {
  if (ctx.counting() || args.y.numel() == 0) return;
  const int64_t M = args.x.shape[0], N = args.y.shape[0], C = args.y.shape[1];
  SLUICE_ASSERT(M < (int64_t{1} << 30) && C < (int64_t{1} << 30));
  const cudaStream_t stream = stream_of(ctx);
  if (M > 0) {
    if (const int32_t* index = readable_index(stream, args.index)) {
      SLUICE_ASSERT(std::is_sorted(index, index + M) && index[0] >= 0 && index[M - 1] < N);
    }
  }
  with_types(args.x, args.y, [&]<class X, class Y>() {
    constexpr int size = pack_size<X, Y>;
    const auto launch = [&](auto kernel, int64_t units) {
      kernel<<<ceil_div(N, rows_of_block), RowCut(N, units).threads, 0, stream>>>(
          data_of<X>(args.x), data_of<float>(args.weight), data_of<int32_t>(args.index), static_cast<int>(M),
          data_of<Y>(args.y), N, static_cast<int>(C));
    };
    if (C % size == 0 && aligned_to_packs({args.x.data, args.y.data})) launch(weighted_sums<X, Y, size>, C / size);
    else launch(weighted_sums<X, Y, 1>, C);
  });
  check_launch("scatter_rows");
}

void scale_into(Context& ctx, const ScaleInto& args) {
  const int64_t count = args.x.numel();
  if (ctx.counting() || count == 0) return;
  const cudaStream_t stream = stream_of(ctx);
  with_types(args.x, args.y, [&]<class X, class Y>() {
    scale<X, Y><<<ceil_div(count, elements_per_block), block, 0, stream>>>(
        data_of<X>(args.x), data_of<Y>(args.y), args.scale, args.write == Write::add, count,
        aligned_to_packs({args.x.data, args.y.data}));
  });
  check_launch("scale_into");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(gather_rows, GatherRows)
SLUICE_CUDA_ENTRY(gather_columns, GatherColumns)
SLUICE_CUDA_ENTRY(scatter_rows, ScatterRows)
SLUICE_CUDA_ENTRY(scale_into, ScaleInto)
