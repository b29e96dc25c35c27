#include "ops/rmsnorm/rmsnorm.h"

#include "ops/common/cuda_utils.cuh"
#include "ops/common/pack.cuh"

// A row (one group of C) is held in registers by `lanes` threads, in packs, so that memory is read once. Which layout depends
// on C and the dtypes alone; so does the order of the sums. What has no packs (odd widths or addresses) takes a warp for each row.
namespace sluice::cuda {

namespace {

constexpr int max_block = 256;

// `rows` rows at a time by one group of threads: narrow rows need several loads in flight.
template <int lanes_, int packs_, int rows_>
struct Layout {
  static constexpr int lanes = lanes_, packs = packs_, rows = rows_;
  static constexpr int threads = lanes > 32 ? lanes : packs > 1 ? 128 : max_block;
  static constexpr int groups = threads / lanes;                                        // of threads in a block
  static constexpr int blocks = (rows > 1 ? 1024 : packs == 4 ? 1280 : 768) / threads;  // of an SM, at least
  static_assert(lanes <= 32 || rows == 1);                                              // one sum through shared memory
};

// Calls f with the layout for rows of so many packs; false when they are too wide for one.
template <class F>
bool with_layout(int64_t packs, F f) {
  if (packs <= 8) f(Layout<8, 1, 4>{});
  else if (packs <= 16) f(Layout<16, 1, 4>{});
  else if (packs <= 32) f(Layout<32, 1, 4>{});
  else if (packs <= 128) f(Layout<32, 4, 1>{});
  else if (packs <= 256) f(Layout<32, 8, 1>{});
  else if (packs <= 512) f(Layout<128, 4, 1>{});
  else if (packs <= 1024) f(Layout<256, 4, 1>{});
  else if (packs <= 2048) f(Layout<256, 8, 1>{});
  else return false;
  return true;
}

// The sum over the threads that hold a row, in a fixed order, the same in each of them. All threads of the block take part.
template <int lanes>
__device__ float2 sum_of_group(float2 v) {
#pragma unroll
  for (int offset = (lanes < 32 ? lanes : 32) / 2; offset > 0; offset /= 2) {
    v.x += __shfl_xor_sync(0xffffffffU, v.x, offset);
    v.y += __shfl_xor_sync(0xffffffffU, v.y, offset);
  }
  if constexpr (lanes > 32) {
    constexpr int warps = lanes / 32;
    __shared__ float2 part[warps];
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[0];
#pragma unroll
    for (int w = 1; w < warps; ++w) v.x += part[w].x, v.y += part[w].y;
  }
  return v;
}

__device__ float rstd_of(float squares, int C, float eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(C) + eps);
}

__device__ float factor_at(const float* weight, float offset, int c) {
  return weight != nullptr ? offset + __ldg(weight + c) : 1.0F;
}
template <int n>
__device__ void factors_at(const float* weight, float offset, int c, float (&f)[n]) {
  if (weight != nullptr) unpack(load_constant_pack<n>(weight + c), f);
#pragma unroll
  for (int j = 0; j < n; ++j) f[j] = weight != nullptr ? offset + f[j] : 1.0F;
}

struct Rows {
  int64_t count;
  int C;
  float eps, offset;
  const float* weight;  // may be null
};

template <class T, class L>
__global__ __launch_bounds__(L::threads, L::blocks) void forward_packs(const T* x, const T* residual, T* y, Rows r) {
  constexpr int n = pack_size<T>;
  const int lane = threadIdx.x % L::lanes, num_packs = r.C / n;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (L::groups * L::rows) + threadIdx.x / L::lanes;
  Pack<T, n> xs[L::rows][L::packs], added[L::rows][L::packs];
#pragma unroll
  for (int k = 0; k < L::rows; ++k) {
    const int64_t row = first + k * L::groups;
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      const int p = lane + i * L::lanes;
      xs[k][i] = added[k][i] = {};
      if (row >= r.count || p >= num_packs) continue;
      xs[k][i] = load_pack<n>(x + row * r.C + p * n);
      if (residual != nullptr) added[k][i] = load_pack<n>(residual + row * r.C + p * n);
    }
  }
#pragma unroll
  for (int k = 0; k < L::rows; ++k) {
    const int64_t row = first + k * L::groups;
    float v[n], f[n], squares = 0;
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      unpack(xs[k][i], v);
#pragma unroll
      for (int j = 0; j < n; ++j) squares += v[j] * v[j];
    }
    const float rstd = rstd_of(sum_of_group<L::lanes>({squares, 0}).x, r.C, r.eps);
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      const int p = lane + i * L::lanes;
      if (row >= r.count || p >= num_packs) continue;
      unpack(xs[k][i], v);
      factors_at(r.weight, r.offset, p * n, f);
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] = v[j] * rstd * f[j];
      if (residual != nullptr) {
        unpack(added[k][i], f);
#pragma unroll
        for (int j = 0; j < n; ++j) v[j] += f[j];
      }
      store_pack(y + row * r.C + p * n, v);
    }
  }
}

template <class T, class TDy, class TDx, class L>
__global__ __launch_bounds__(L::threads) void backward_packs(const T* x, const TDy* dy, TDx* dx, bool add, Rows r) {
  constexpr int n = pack_size<T, TDy, TDx>, at_once = L::packs < 4 ? L::packs : 4;  // packs of the old dx in registers
  const int lane = threadIdx.x % L::lanes, num_packs = r.C / n;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (L::groups * L::rows) + threadIdx.x / L::lanes;
  Pack<T, n> xs[L::rows][L::packs];
  Pack<TDy, n> dys[L::rows][L::packs];
#pragma unroll
  for (int k = 0; k < L::rows; ++k) {
    const int64_t row = first + k * L::groups;
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      const int p = lane + i * L::lanes;
      xs[k][i] = {};
      dys[k][i] = {};
      if (row >= r.count || p >= num_packs) continue;
      xs[k][i] = load_pack<n>(x + row * r.C + p * n);
      dys[k][i] = load_pack<n>(dy + row * r.C + p * n);
    }
  }
#pragma unroll
  for (int k = 0; k < L::rows; ++k) {
    const int64_t row = first + k * L::groups;
    float v[n], d[n], f[n];
    float2 sums = {0, 0};  // of x^2 and of dy factor x
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      const int p = lane + i * L::lanes;
      if (p >= num_packs) continue;
      unpack(xs[k][i], v);
      unpack(dys[k][i], d);
      factors_at(r.weight, r.offset, p * n, f);
#pragma unroll
      for (int j = 0; j < n; ++j) {
        sums.x += v[j] * v[j];
        sums.y += d[j] * f[j] * v[j];
      }
    }
    sums = sum_of_group<L::lanes>(sums);
    const float rstd = rstd_of(sums.x, r.C, r.eps);
    const float slope = sums.y * rstd * rstd * rstd / static_cast<float>(r.C);
#pragma unroll
    for (int begin = 0; begin < L::packs; begin += at_once) {
      Pack<TDx, n> old[at_once];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int p = lane + (begin + i) * L::lanes;
        old[i] = {};
        if (add && row < r.count && p < num_packs) old[i] = load_pack<n>(dx + row * r.C + p * n);
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int p = lane + (begin + i) * L::lanes;
        if (row >= r.count || p >= num_packs) continue;
        unpack(xs[k][begin + i], v);
        unpack(dys[k][begin + i], d);
        factors_at(r.weight, r.offset, p * n, f);
#pragma unroll
        for (int j = 0; j < n; ++j) v[j] = d[j] * f[j] * rstd - v[j] * slope;
        if (add) {
          unpack(old[i], d);
#pragma unroll
          for (int j = 0; j < n; ++j) v[j] += d[j];
        }
        store_pack(dx + row * r.C + p * n, v);
      }
    }
  }
}

template <class T>
__global__ __launch_bounds__(max_block) void forward_scalar(const T* x, const T* residual, T* y, Rows r) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * max_block + threadIdx.x) / 32;
  if (row >= r.count) return;
  x += row * r.C, y += row * r.C;
  if (residual != nullptr) residual += row * r.C;
  float squares = 0;
  for (int c = lane; c < r.C; c += 32) squares += to_float(x[c]) * to_float(x[c]);
  const float rstd = rstd_of(warp_sum(squares), r.C, r.eps);
  for (int c = lane; c < r.C; c += 32) {
    float v = to_float(x[c]) * rstd * factor_at(r.weight, r.offset, c);
    if (residual != nullptr) v += to_float(residual[c]);
    y[c] = from_float<T>(v);
  }
}

template <class T, class TDy, class TDx>
__global__ __launch_bounds__(max_block) void backward_scalar(const T* x, const TDy* dy, TDx* dx, bool add, Rows r) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * max_block + threadIdx.x) / 32;
  if (row >= r.count) return;
  x += row * r.C, dy += row * r.C, dx += row * r.C;
  float squares = 0, dot = 0;
  for (int c = lane; c < r.C; c += 32) {
    const float v = to_float(x[c]);
    squares += v * v;
    dot += to_float(dy[c]) * factor_at(r.weight, r.offset, c) * v;
  }
  const float rstd = rstd_of(warp_sum(squares), r.C, r.eps);
  const float slope = warp_sum(dot) * rstd * rstd * rstd / static_cast<float>(r.C);
  for (int c = lane; c < r.C; c += 32) {
    float v = to_float(dy[c]) * factor_at(r.weight, r.offset, c) * rstd - to_float(x[c]) * slope;
    if (add) v += to_float(dx[c]);
    dx[c] = from_float<TDx>(v);
  }
}

template <class T>
void forward(cudaStream_t stream, const RmsNormForward& args, const Rows& r) {
  const T *x = data_of<T>(args.x), *residual = data_of<T>(args.residual);
  T* y = data_of<T>(args.y);
  constexpr int n = pack_size<T>;
  const bool packed = r.C % n == 0 && aligned_to_packs({x, residual, y, r.weight});
  if (packed && with_layout(r.C / n, [&]<class L>(L) {
        forward_packs<T, L><<<ceil_div(r.count, L::groups * L::rows), L::threads, 0, stream>>>(x, residual, y, r);
      })) {
    return;
  }
  forward_scalar<<<ceil_div(r.count, max_block / 32), max_block, 0, stream>>>(x, residual, y, r);
}

template <class T, class TDy, class TDx>
void backward(cudaStream_t stream, const RmsNormBackward& args, const Rows& r) {
  const T* x = data_of<T>(args.x);
  const TDy* dy = data_of<TDy>(args.dy);
  TDx* dx = data_of<TDx>(args.dx);
  const bool add = args.write == Write::add;
  constexpr int n = pack_size<T, TDy, TDx>;
  const bool packed = r.C % n == 0 && aligned_to_packs({x, dy, dx, r.weight});
  if (packed && with_layout(r.C / n, [&]<class L>(L) {
        backward_packs<T, TDy, TDx, L>
            <<<ceil_div(r.count, L::groups * L::rows), L::threads, 0, stream>>>(x, dy, dx, add, r);
      })) {
    return;
  }
  backward_scalar<<<ceil_div(r.count, max_block / 32), max_block, 0, stream>>>(x, dy, dx, add, r);
}

template <class Args>
Rows rows_of(const Args& args) {
  const int64_t C = args.x.shape[1] / args.groups;
  SLUICE_ASSERT(C < (int64_t{1} << 30));
  return {.count = args.x.shape[0] * args.groups,
          .C = static_cast<int>(C),
          .eps = args.eps,
          .offset = args.offset,
          .weight = data_of<float>(args.weight)};
}

}  // namespace

void rmsnorm_forward(Context& ctx, const RmsNormForward& args) {
  if (ctx.counting() || args.x.numel() == 0) return;
  const cudaStream_t stream = stream_of(ctx);
  with_type(args.x.dtype, [&]<class T>() { forward<T>(stream, args, rows_of(args)); });
  check_launch("rmsnorm_forward");
}

void rmsnorm_backward(Context& ctx, const RmsNormBackward& args) {
  if (ctx.counting() || args.x.numel() == 0) return;
  const cudaStream_t stream = stream_of(ctx);
  if (args.x.dtype == DType::f32) {
    backward<float, float, float>(stream, args, rows_of(args));
  } else {
    with_type(args.dy.dtype, [&]<class TDy>() {
      with_type(args.dx.dtype, [&]<class TDx>() { backward<__nv_bfloat16, TDy, TDx>(stream, args, rows_of(args)); });
    });
  }
  check_launch("rmsnorm_backward");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(rmsnorm_forward, RmsNormForward)
SLUICE_CUDA_ENTRY(rmsnorm_backward, RmsNormBackward)
