#include "ops/rmsnorm/rmsnorm.h"

#include "ops/common/cuda_utils.cuh"
#include "ops/common/pack.cuh"
#include "ops/rope/rope.cuh"

// A row (one group of C) is held in registers by `lanes` threads, in packs, so that memory is read once. Which layout depends
// on C and the dtypes alone; so does the order of the sums. Rows that may be heads have kernels of their own, which RoPE can
// follow. What has no packs (odd widths or addresses) takes a warp for each row.
namespace sluice::cuda {

namespace {

constexpr int max_block = 256;  // of the kernels without packs

template <int lanes_, int packs_>
struct Layout {
  static constexpr int lanes = lanes_, packs = packs_;
  static constexpr int threads = lanes > 32 ? lanes : 128;
  static constexpr int groups = threads / lanes;                      // of threads in a block
  static constexpr int blocks = (packs == 4 ? 1280 : 768) / threads;  // of an SM, at least
};

// Calls f with the layout for rows of so many packs; false when they are too wide for one.
template <class F>
bool with_layout(int64_t packs, F f) {
  if (packs <= 128) f(Layout<32, 4>{});
  else if (packs <= 256) f(Layout<32, 8>{});
  else if (packs <= 512) f(Layout<128, 4>{});
  else if (packs <= 1024) f(Layout<256, 4>{});
  else if (packs <= 2048) f(Layout<256, 8>{});
  else return false;
  return true;
}

// `heads` of one token at a time by one group of threads, which share their factors and angles. A row is exactly lanes * packs packs wide, so
// that a thread holds both halves of RoPE's pairs.
template <int lanes_, int packs_, int heads_>
struct HeadLayout {
  static constexpr int lanes = lanes_, packs = packs_, heads = heads_;
  static constexpr int threads = 128, blocks = 4;
  static constexpr int groups = threads / lanes;
};

// Calls f with the layout for heads of so many packs; false when there is none.
template <class F>
bool with_head_layout(int64_t packs, F f) {
  if (packs == 8) f(HeadLayout<4, 2, 4>{});
  else if (packs == 16) f(HeadLayout<8, 2, 4>{});
  else if (packs == 32) f(HeadLayout<16, 2, 4>{});
  else if (packs == 64) f(HeadLayout<32, 2, 4>{});
  else if (packs == 128) f(HeadLayout<32, 4, 2>{});
  else return false;
  return true;
}

// Adds up `count` values over the threads that hold a row, in a fixed order, the same in each of them. All threads of the block take part.
template <int lanes, int count>
__device__ void sum_over_group(float (&v)[count]) {
#pragma unroll
  for (int offset = (lanes < 32 ? lanes : 32) / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < count; ++i) v[i] += __shfl_xor_sync(0xffffffffU, v[i], offset);
  }
  if constexpr (lanes > 32) {
    constexpr int warps = lanes / 32;
    __shared__ float part[warps][count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (threadIdx.x % 32 == 0) part[threadIdx.x / 32][i] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      v[i] = part[0][i];
#pragma unroll
      for (int w = 1; w < warps; ++w) v[i] += part[w][i];
    }
  }
}

__device__ float rstd_of(float squares, int C, float eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(C) + eps);
}
__device__ float slope_of(float dot, float rstd, int C) { return dot * rstd * rstd * rstd / static_cast<float>(C); }

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
  int groups, C;  // groups: rows of a token
  float eps, offset;
  const float* weight;  // may be null
};

template <class T, class L>
__global__ __launch_bounds__(L::threads, L::blocks) void forward_packs(const T* x, const T* residual, T* y, Rows r) {
  constexpr int n = pack_size<T>;
  const int lane = threadIdx.x % L::lanes, num_packs = r.C / n;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * L::groups + threadIdx.x / L::lanes;
  Pack<T, n> xs[L::packs], added[L::packs];
#pragma unroll
  for (int i = 0; i < L::packs; ++i) {
    const int p = lane + i * L::lanes;
    xs[i] = added[i] = {};
    if (row >= r.count || p >= num_packs) continue;
    xs[i] = load_pack<n>(x + row * r.C + p * n);
    if (residual != nullptr) added[i] = load_pack<n>(residual + row * r.C + p * n);
  }
  float v[n], f[n], squares[1] = {};
#pragma unroll
  for (int i = 0; i < L::packs; ++i) {
    unpack(xs[i], v);
#pragma unroll
    for (int j = 0; j < n; ++j) squares[0] += v[j] * v[j];
  }
  sum_over_group<L::lanes>(squares);
  const float rstd = rstd_of(squares[0], r.C, r.eps);
#pragma unroll
  for (int i = 0; i < L::packs; ++i) {
    const int p = lane + i * L::lanes;
    if (row >= r.count || p >= num_packs) continue;
    unpack(xs[i], v);
    factors_at(r.weight, r.offset, p * n, f);
#pragma unroll
    for (int j = 0; j < n; ++j) v[j] = v[j] * rstd * f[j];
    if (residual != nullptr) {
      unpack(added[i], f);
#pragma unroll
      for (int j = 0; j < n; ++j) v[j] += f[j];
    }
    store_pack(y + row * r.C + p * n, v);
  }
}

template <class T, class TDy, class TDx, class L>
__global__ __launch_bounds__(L::threads, L::packs == 8 ? 2 : 1) void backward_packs(const T* x, const TDy* dy, TDx* dx,
                                                                                    bool add, Rows r) {
  constexpr int n = pack_size<T, TDy, TDx>, at_once = L::packs < 4 ? L::packs : 4;  // packs of the old dx in registers
  const int lane = threadIdx.x % L::lanes, num_packs = r.C / n;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * L::groups + threadIdx.x / L::lanes;
  Pack<T, n> xs[L::packs];
  Pack<TDy, n> dys[L::packs];
#pragma unroll
  for (int i = 0; i < L::packs; ++i) {
    const int p = lane + i * L::lanes;
    xs[i] = {};
    dys[i] = {};
    if (row >= r.count || p >= num_packs) continue;
    xs[i] = load_pack<n>(x + row * r.C + p * n);
    dys[i] = load_pack<n>(dy + row * r.C + p * n);
  }
  float v[n], d[n], f[n];
  float sums[2] = {};  // of x^2 and of dy factor x
#pragma unroll
  for (int i = 0; i < L::packs; ++i) {
    const int p = lane + i * L::lanes;
    if (p >= num_packs) continue;
    unpack(xs[i], v);
    unpack(dys[i], d);
    factors_at(r.weight, r.offset, p * n, f);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      sums[0] += v[j] * v[j];
      sums[1] += d[j] * f[j] * v[j];
    }
  }
  sum_over_group<L::lanes>(sums);
  const float rstd = rstd_of(sums[0], r.C, r.eps), slope = slope_of(sums[1], rstd, r.C);
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
      unpack(xs[begin + i], v);
      unpack(dys[begin + i], d);
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

// The heads of a group of threads: of one token, `stride` apart, so that neighbouring groups access neighbouring memory.
template <class L>
struct Heads {
  int64_t token;
  int first, stride, count;  // count: of the token
  bool inside;
  __device__ Heads(const Rows& r, int stride_) : stride(stride_), count(r.groups) {
    const unsigned unit = blockIdx.x * L::groups + threadIdx.x / L::lanes;
    token = unit / stride, first = static_cast<int>(unit % stride);
    inside = token * count < r.count;
  }
  __device__ bool has(int k) const { return inside && first + k * stride < count; }
  __device__ int64_t row(int k) const { return token * count + first + k * stride; }
};

// Cosines and sines of the columns that begin at each of `halves` packs.
template <class L, int n>
struct Angles {
  static constexpr int halves = L::packs / 2;
  float cosine[halves][n], sine[halves][n];
  __device__ Angles(const float* table, const Heads<L>& heads, int C, int lane) {
    if (table == nullptr || !heads.inside) return;
    table += heads.token * C + lane * n;
#pragma unroll
    for (int i = 0; i < halves; ++i) {
      unpack(load_constant_pack<n>(table + i * L::lanes * n), cosine[i]);
      unpack(load_constant_pack<n>(table + C / 2 + i * L::lanes * n), sine[i]);
    }
  }
  __device__ void turn(int i, float (&a)[n], float (&b)[n], float sign) const {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const Turned turned = cuda::turn(a[j], b[j], cosine[i][j], sign * sine[i][j]);
      a[j] = turned.first, b[j] = turned.second;
    }
  }
};

// As if stored and loaded again.
template <class T, int n>
__device__ void round_to(float (&v)[n]) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
#pragma unroll
    for (int j = 0; j < n; j += 2) unpack_pair(pack_pair(v[j], v[j + 1]), v[j], v[j + 1]);
  }
}

template <class T, class L>
__global__ __launch_bounds__(L::threads, L::blocks) void forward_heads(const T* x, const float* table, T* y, Rows r,
                                                                       int stride) {
  constexpr int n = pack_size<T>, halves = L::packs / 2;
  const int lane = threadIdx.x % L::lanes;
  const Heads<L> heads(r, stride);
  Pack<T, n> xs[L::heads][L::packs];
#pragma unroll
  for (int k = 0; k < L::heads; ++k) {
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      xs[k][i] = {};
      if (heads.has(k)) xs[k][i] = load_pack<n>(x + heads.row(k) * r.C + (lane + i * L::lanes) * n);
    }
  }
  float f[L::packs][n], rstd[L::heads] = {};
#pragma unroll
  for (int i = 0; i < L::packs; ++i) factors_at(r.weight, r.offset, (lane + i * L::lanes) * n, f[i]);
  const Angles<L, n> angles(table, heads, r.C, lane);
#pragma unroll
  for (int k = 0; k < L::heads; ++k) {
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      float v[n];
      unpack(xs[k][i], v);
#pragma unroll
      for (int j = 0; j < n; ++j) rstd[k] += v[j] * v[j];
    }
  }
  sum_over_group<L::lanes>(rstd);
#pragma unroll
  for (int k = 0; k < L::heads; ++k) {
    if (!heads.has(k)) continue;
    rstd[k] = rstd_of(rstd[k], r.C, r.eps);
#pragma unroll
    for (int i = 0; i < halves; ++i) {
      float a[n], b[n];
      unpack(xs[k][i], a);
      unpack(xs[k][i + halves], b);
#pragma unroll
      for (int j = 0; j < n; ++j) a[j] = a[j] * rstd[k] * f[i][j], b[j] = b[j] * rstd[k] * f[i + halves][j];
      if (table != nullptr) {
        round_to<T>(a), round_to<T>(b);
        angles.turn(i, a, b, 1);
      }
      T* to = y + heads.row(k) * r.C + (lane + i * L::lanes) * n;
      store_pack(to, a);
      store_pack(to + r.C / 2, b);
    }
  }
}

template <class T, class TDy, class TDx, class L>
__global__ __launch_bounds__(L::threads, pack_size<T, TDy, TDx> == 8
                                             ? 4 - L::packs / 2
                                             : L::blocks) void backward_heads(const T* x, const float* table,
                                                                              const TDy* dy, TDx* dx, bool add, Rows r,
                                                                              int stride) {
  constexpr int n = pack_size<T, TDy, TDx>, halves = L::packs / 2;
  const int lane = threadIdx.x % L::lanes;
  const Heads<L> heads(r, stride);
  Pack<T, n> xs[L::heads][L::packs];
  Pack<TDy, n> dys[L::heads][L::packs];
#pragma unroll
  for (int k = 0; k < L::heads; ++k) {
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      xs[k][i] = {};
      dys[k][i] = {};
      if (!heads.has(k)) continue;
      const int64_t at = heads.row(k) * r.C + (lane + i * L::lanes) * n;
      xs[k][i] = load_pack<n>(x + at);
      dys[k][i] = load_pack<n>(dy + at);
    }
  }
  float f[L::packs][n];
#pragma unroll
  for (int i = 0; i < L::packs; ++i) factors_at(r.weight, r.offset, (lane + i * L::lanes) * n, f[i]);
  const Angles<L, n> angles(table, heads, r.C, lane);
  // dy factor of two packs of a head.
  const auto gradients = [&](int k, int i, float(&a)[n], float(&b)[n]) {
    unpack(dys[k][i], a);
    unpack(dys[k][i + halves], b);
    if (table != nullptr) angles.turn(i, a, b, -1);
#pragma unroll
    for (int j = 0; j < n; ++j) a[j] *= f[i][j], b[j] *= f[i + halves][j];
  };
  float sums[2 * L::heads] = {};  // of x^2 and of dy factor x
#pragma unroll
  for (int k = 0; k < L::heads; ++k) {
#pragma unroll
    for (int i = 0; i < halves; ++i) {
      float a[n], b[n], v[n], w[n];
      gradients(k, i, a, b);
      unpack(xs[k][i], v);
      unpack(xs[k][i + halves], w);
#pragma unroll
      for (int j = 0; j < n; ++j) {
        sums[2 * k] = fmaf(w[j], w[j], fmaf(v[j], v[j], sums[2 * k]));
        sums[2 * k + 1] = fmaf(b[j], w[j], fmaf(a[j], v[j], sums[2 * k + 1]));
      }
    }
  }
  sum_over_group<L::lanes>(sums);
#pragma unroll
  for (int k = 0; k < L::heads; ++k) {
    if (!heads.has(k)) continue;
    const float rstd = rstd_of(sums[2 * k], r.C, r.eps), slope = slope_of(sums[2 * k + 1], rstd, r.C);
    TDx* const to = dx + heads.row(k) * r.C + lane * n;
    Pack<TDx, n> old[L::packs];
#pragma unroll
    for (int i = 0; i < L::packs; ++i) {
      old[i] = {};
      if (add) old[i] = load_pack<n>(to + i * L::lanes * n);
    }
#pragma unroll
    for (int i = 0; i < halves; ++i) {
      float a[n], b[n], v[n], w[n];
      gradients(k, i, a, b);
      unpack(xs[k][i], v);
      unpack(xs[k][i + halves], w);
#pragma unroll
      for (int j = 0; j < n; ++j) {
        a[j] = fmaf(a[j], rstd, -__fmul_rn(v[j], slope));
        b[j] = fmaf(b[j], rstd, -__fmul_rn(w[j], slope));
      }
      if (add) {
        unpack(old[i], v);
        unpack(old[i + halves], w);
#pragma unroll
        for (int j = 0; j < n; ++j) a[j] += v[j], b[j] += w[j];
      }
      store_pack(to + i * L::lanes * n, a);
      store_pack(to + r.C / 2 + i * L::lanes * n, b);
    }
  }
}

// What turns the columns of one row that are C / 2 apart; without a table nothing.
struct Turn {
  const float* cosine;  // null without a table
  int half;
  __device__ Turn(const float* table, const Rows& r, int64_t row)
      : cosine(table != nullptr ? table + row / r.groups * r.C : nullptr), half(r.C / 2) {}
  __device__ Turned operator()(float a, float b, int c, float sign) const {
    return turn(a, b, __ldg(cosine + c), sign * __ldg(cosine + half + c));
  }
};

template <class T>
__global__ __launch_bounds__(max_block) void forward_scalar(const T* x, const T* residual, const float* table, T* y,
                                                            Rows r) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * max_block + threadIdx.x) / 32;
  if (row >= r.count) return;
  x += row * r.C, y += row * r.C;
  if (residual != nullptr) residual += row * r.C;
  float squares = 0;
  for (int c = lane; c < r.C; c += 32) squares += to_float(x[c]) * to_float(x[c]);
  const float rstd = rstd_of(warp_sum(squares), r.C, r.eps);
  const auto normalised = [&](int c) { return to_float(x[c]) * rstd * factor_at(r.weight, r.offset, c); };
  if (table != nullptr) {
    const Turn turn(table, r, row);
    for (int c = lane; c < turn.half; c += 32) {
      const Turned turned =
          turn(to_float(from_float<T>(normalised(c))), to_float(from_float<T>(normalised(c + turn.half))), c, 1);
      y[c] = from_float<T>(turned.first);
      y[c + turn.half] = from_float<T>(turned.second);
    }
    return;
  }
  for (int c = lane; c < r.C; c += 32) {
    float v = normalised(c);
    if (residual != nullptr) v += to_float(residual[c]);
    y[c] = from_float<T>(v);
  }
}

template <class T, class TDy, class TDx>
__global__ __launch_bounds__(max_block) void backward_scalar(const T* x, const float* table, const TDy* dy, TDx* dx,
                                                             bool add, Rows r) {
  const int lane = threadIdx.x % 32;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * max_block + threadIdx.x) / 32;
  if (row >= r.count) return;
  x += row * r.C, dy += row * r.C, dx += row * r.C;
  const Turn turn(table, r, row);
  // Calls f(c, gradient) for the columns of this lane, those of a pair one after the other; both are read before f is called.
  const auto for_gradients = [&](auto f) {
    if (table == nullptr) {
      for (int c = lane; c < r.C; c += 32) f(c, to_float(dy[c]) * factor_at(r.weight, r.offset, c));
      return;
    }
    for (int c = lane; c < turn.half; c += 32) {
      const Turned turned = turn(to_float(dy[c]), to_float(dy[c + turn.half]), c, -1);
      f(c, turned.first * factor_at(r.weight, r.offset, c));
      f(c + turn.half, turned.second * factor_at(r.weight, r.offset, c + turn.half));
    }
  };
  float squares = 0, dot = 0;
  for_gradients([&](int c, float gradient) {
    const float v = to_float(x[c]);
    squares = fmaf(v, v, squares);
    dot = fmaf(gradient, v, dot);
  });
  const float rstd = rstd_of(warp_sum(squares), r.C, r.eps), slope = slope_of(warp_sum(dot), rstd, r.C);
  for_gradients([&](int c, float gradient) {
    float v = fmaf(gradient, rstd, -__fmul_rn(to_float(x[c]), slope));
    if (add) v += to_float(dx[c]);
    dx[c] = from_float<TDx>(v);
  });
}

// Calls f(stride, blocks) for the heads of a layout.
template <class L, class F>
void launch_heads(const Rows& r, F f) {
  const int64_t stride = ceil_div(r.groups, L::heads), units = r.count / r.groups * stride;
  SLUICE_ASSERT(units < (int64_t{1} << 31));
  f(static_cast<int>(stride), static_cast<unsigned>(ceil_div(units, L::groups)));
}

template <class T>
void forward(cudaStream_t stream, const RmsNormForward& args, const Rows& r) {
  const T *x = data_of<T>(args.x), *residual = data_of<T>(args.residual);
  const float* table = data_of<float>(args.table);
  T* y = data_of<T>(args.y);
  constexpr int n = pack_size<T>;
  const bool packed = r.C % n == 0 && aligned_to_packs({x, residual, y, r.weight, table});
  if (packed && residual == nullptr && with_head_layout(r.C / n, [&]<class L>(L) {
        launch_heads<L>(r, [&](int stride, unsigned blocks) {
          forward_heads<T, L><<<blocks, L::threads, 0, stream>>>(x, table, y, r, stride);
        });
      })) {
    return;
  }
  if (packed && table == nullptr && with_layout(r.C / n, [&]<class L>(L) {
        forward_packs<T, L><<<ceil_div(r.count, L::groups), L::threads, 0, stream>>>(x, residual, y, r);
      })) {
    return;
  }
  forward_scalar<<<ceil_div(r.count, max_block / 32), max_block, 0, stream>>>(x, residual, table, y, r);
}

template <class T, class TDy, class TDx>
void backward(cudaStream_t stream, const RmsNormBackward& args, const Rows& r) {
  const T* x = data_of<T>(args.x);
  const float* table = data_of<float>(args.table);
  const TDy* dy = data_of<TDy>(args.dy);
  TDx* dx = data_of<TDx>(args.dx);
  const bool add = args.write == Write::add;
  constexpr int n = pack_size<T, TDy, TDx>;
  const bool packed = r.C % n == 0 && aligned_to_packs({x, dy, dx, r.weight, table});
  if (packed && with_head_layout(r.C / n, [&]<class L>(L) {
        launch_heads<L>(r, [&](int stride, unsigned blocks) {
          backward_heads<T, TDy, TDx, L><<<blocks, L::threads, 0, stream>>>(x, table, dy, dx, add, r, stride);
        });
      })) {
    return;
  }
  if (packed && table == nullptr && with_layout(r.C / n, [&]<class L>(L) {
        backward_packs<T, TDy, TDx, L><<<ceil_div(r.count, L::groups), L::threads, 0, stream>>>(x, dy, dx, add, r);
      })) {
    return;
  }
  backward_scalar<<<ceil_div(r.count, max_block / 32), max_block, 0, stream>>>(x, table, dy, dx, add, r);
}

template <class Args>
Rows rows_of(const Args& args) {
  const int64_t C = args.x.shape[1] / args.groups;
  SLUICE_ASSERT(C < (int64_t{1} << 30) && args.groups < (int64_t{1} << 30));
  return {.count = args.x.shape[0] * args.groups,
          .groups = static_cast<int>(args.groups),
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
