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

// The m with index[m] = n: [begin, end), by a whole warp.
struct Range {
  int begin, end;
};
__device__ Range equal_range(const int32_t* __restrict__ index, int M, int64_t n) {
  if (M == 0) return {0, 0};
  const int front = index[0], back = index[M - 1], lane = threadIdx.x % 32;
  if (n < front || n > back) return {0, 0};
  // Most indices count up by one, so that n stands as far behind the first as it is greater.
  const int guess = static_cast<int>(n - front) - 1, at = guess + lane;
  const int value = at < 0 ? -1 : at < M ? index[at] : INT32_MAX;
  const unsigned less = __ballot_sync(0xffffffffU, value < n), same = __ballot_sync(0xffffffffU, value == n);
  if ((less & 1) != 0 && (less | same) >> 31 == 0) {
    const int begin = guess + __popc(less);
    return {begin, begin + __popc(same)};
  }
  const int begin = lower_bound(index, M, n);
  for (int end = begin;; end += 32) {
    const unsigned others = __ballot_sync(0xffffffffU, end + lane >= M || index[end + lane] != n);
    if (others != 0) return {begin, end + __ffs(static_cast<int>(others)) - 1};
  }
}

// A pack, or one element.
template <class T, int size>
struct Some {
  Pack<T, size> pack;
  __device__ void load(const T* p) { pack = load_pack<size>(p); }
  __device__ void get(float (&v)[size]) const { unpack(pack, v); }
};
template <class T>
struct Some<T, 1> {
  T value;
  __device__ void load(const T* p) { value = *p; }
  __device__ void get(float (&v)[1]) const { v[0] = to_float(value); }
};
template <class T, int size>
__device__ void store_some(T* p, const float (&v)[size]) {
  if constexpr (size == 1) *p = from_float<T>(v[0]);
  else store_pack(p, v);
}

constexpr int packs_in_flight = 16;

// y[n] = sum over the m with index[m] = n of weight[m] * x[m], in order, in packs of `size` elements. A warp for each row.
template <class X, class Y, int size>
__global__ __launch_bounds__(block, 2) void weighted_sums(const X* __restrict__ x, const float* __restrict__ weight,
                                                          const int32_t* __restrict__ index, int M, Y* __restrict__ y,
                                                          int64_t N, int C) {
  const int lane = threadIdx.x % 32;
  // From the last row: the targets of a training row lie at its end, and what only stores can come after what waits for loads.
  const int64_t n = N - 1 - (static_cast<int64_t>(blockIdx.x) * (block / 32) + threadIdx.x / 32);
  if (n < 0) return;
  const auto [first, last] = equal_range(index, M, n);
  const X* const from = x + static_cast<int64_t>(first) * C;
  y += n * C;
  if (last - first <= 1) {  // most rows
    const float w = last > first ? weight[first] : 0.0F;
    for (int begin = lane * size; begin < C; begin += packs_in_flight * 32 * size) {
      Some<X, size> values[packs_in_flight] = {};
#pragma unroll
      for (int k = 0; k < packs_in_flight; ++k) {
        const int c = begin + k * 32 * size;
        if (last > first && c < C) values[k].load(from + c);
      }
#pragma unroll
      for (int k = 0; k < packs_in_flight; ++k) {
        const int c = begin + k * 32 * size;
        float v[size];
        values[k].get(v);
#pragma unroll
        for (int j = 0; j < size; ++j) v[j] = fmaf(w, v[j], 0.0F);
        if (c < C) store_some(y + c, v);
      }
    }
    return;
  }
  for (int c = lane * size; c < C; c += 32 * size) {
    float sum[size] = {};
    for (int m = first; m < last; ++m) {
      Some<X, size> values;
      values.load(from + static_cast<int64_t>(m - first) * C + c);
      float v[size];
      values.get(v);
#pragma unroll
      for (int j = 0; j < size; ++j) sum[j] = fmaf(weight[m], v[j], sum[j]);
    }
    store_some(y + c, sum);
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
    const auto launch = [&](auto kernel) {
      kernel<<<ceil_div(N, block / 32), block, 0, stream>>>(data_of<X>(args.x), data_of<float>(args.weight),
                                                            data_of<int32_t>(args.index), static_cast<int>(M),
                                                            data_of<Y>(args.y), N, static_cast<int>(C));
    };
    if (C % size == 0 && aligned_to_packs({args.x.data, args.y.data})) launch(weighted_sums<X, Y, size>);
    else launch(weighted_sums<X, Y, 1>);
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
