#include "ops/adamw/adamw.h"

#include <cmath>
#include <vector>

#include "ops/common/cuda_utils.cuh"
#include "ops/common/pack.cuh"

namespace sluice::cuda {

namespace {

constexpr int block = 256, width = 4;         // elements of an access
constexpr int64_t elements_per_item = 16384;  // the block of a partial sum: fixed, as on the CPU

// The factors of an update that do not depend on the element, formed in float64.
struct Factors {
  float beta1, beta2, rest1, rest2, decay, step, root, eps, grad_scale;
  explicit Factors(const AdamW& a)
      : beta1(a.beta1),
        beta2(a.beta2),
        rest1(1 - a.beta1),
        rest2(1 - a.beta2),
        decay(static_cast<float>(1 - static_cast<double>(a.lr) * a.weight_decay)),
        step(static_cast<float>(a.lr / (1 - std::pow(static_cast<double>(a.beta1), static_cast<double>(a.t))))),
        root(static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(a.beta2), static_cast<double>(a.t))))),
        eps(a.eps),
        grad_scale(a.grad_scale) {}
};

struct Tensors {
  float *p, *m, *v;
  const float* g;
};

// Every rounding is spelled out, so that an element has the same bits wherever it stands.
__device__ void update(const Factors& f, float g, float& p, float& m, float& v) {
  g = __fmul_rn(g, f.grad_scale);
  m = fmaf(f.beta1, m, __fmul_rn(f.rest1, g));
  v = fmaf(f.beta2, v, __fmul_rn(f.rest2, __fmul_rn(g, g)));
  p = __fsub_rn(__fmul_rn(p, f.decay), __fdiv_rn(__fmul_rn(f.step, m), fmaf(__fsqrt_rn(v), f.root, f.eps)));
}

__global__ __launch_bounds__(block) void update_all(Tensors t, Factors f, int64_t n, bool packed) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * block + threadIdx.x) * width;
  if (packed && begin + width <= n) {
    float p[width], m[width], v[width], g[width];
    unpack(load_pack<width>(t.p + begin), p);
    unpack(load_pack<width>(t.m + begin), m);
    unpack(load_pack<width>(t.v + begin), v);
    unpack(load_pack<width>(t.g + begin), g);
#pragma unroll
    for (int j = 0; j < width; ++j) update(f, g[j], p[j], m[j], v[j]);
    store_pack(t.p + begin, p);
    store_pack(t.m + begin, m);
    store_pack(t.v + begin, v);
    return;
  }
  for (int64_t i = begin; i < min(n, begin + width); ++i) update(f, t.g[i], t.p[i], t.m[i], t.v[i]);
}

// partial[2 * item] = the sum of squares of one item, partial[2 * item + 1] = how many elements are not finite. Thread t sums
// elements 4 t … 4 t + 3 of each run of 1,024; then pairs of threads, the same for any alignment.
__global__ __launch_bounds__(block) void sum_items(const float* g, int64_t n, double* partial, bool packed) {
  __shared__ double sums[block];
  __shared__ int counts[block];
  const int64_t item = static_cast<int64_t>(blockIdx.x) * elements_per_item;
  double sum = 0;
  int not_finite = 0;
#pragma unroll 4
  for (int run = 0; run < elements_per_item; run += block * width) {
    const int64_t i = item + run + threadIdx.x * width;
    float v[width] = {};
    if (packed && i + width <= n) {
      unpack(load_pack<width>(g + i), v);
    } else {
#pragma unroll
      for (int j = 0; j < width; ++j) v[j] = i + j < n ? g[i + j] : 0.0F;
    }
#pragma unroll
    for (int j = 0; j < width; ++j) {
      sum = fma(static_cast<double>(v[j]), static_cast<double>(v[j]), sum);
      not_finite += isfinite(v[j]) ? 0 : 1;
    }
  }
  sums[threadIdx.x] = sum;
  counts[threadIdx.x] = not_finite;
  for (int half = block / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      sums[threadIdx.x] += sums[threadIdx.x + half];
      counts[threadIdx.x] += counts[threadIdx.x + half];
    }
  }
  if (threadIdx.x == 0) {
    partial[2 * blockIdx.x] = sums[0];
    partial[2 * blockIdx.x + 1] = counts[0];
  }
}

}  // namespace

void adamw(Context& ctx, const AdamW& args) {
  if (ctx.counting()) return;
  const int64_t n = args.p.numel();
  const Tensors t{.p = data_of<float>(args.p),
                  .m = data_of<float>(args.m),
                  .v = data_of<float>(args.v),
                  .g = data_of<float>(args.g)};
  const bool packed = aligned_to_packs({t.p, t.m, t.v, t.g});
  update_all<<<ceil_div(n, block * width), block, 0, stream_of(ctx)>>>(t, Factors(args), n, packed);
  check_launch("adamw");
}

// Waits: the result is host memory.
void sum_of_squares(Context& ctx, const SumOfSquares& args) {
  const int64_t n = args.g.numel(), items = ceil_div(n, elements_per_item);
  ArenaScope scope(ctx.arena);
  auto* partial = scope.array<double>(2 * items);
  if (ctx.counting()) return;
  const cudaStream_t stream = stream_of(ctx);
  const float* g = data_of<float>(args.g);
  sum_items<<<items, block, 0, stream>>>(g, n, partial, aligned_to_packs({g}));
  check_launch("sum_of_squares");
  std::vector<double> host(static_cast<size_t>(2 * items));
  check_cuda(cudaMemcpyAsync(host.data(), partial, host.size() * sizeof(double), cudaMemcpyDefault, stream),
             "sum_of_squares: copying sums");
  check_cuda(cudaStreamSynchronize(stream), "sum_of_squares: waiting for the sums or for work before them");
  double sum = 0, not_finite = 0;
  for (size_t i = 0; i < host.size(); i += 2) {
    sum += host[i];
    not_finite += host[i + 1];
  }
  args.result[0] += sum;
  args.result[1] += not_finite;
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(adamw, AdamW)
SLUICE_CUDA_ENTRY(sum_of_squares, SumOfSquares)
