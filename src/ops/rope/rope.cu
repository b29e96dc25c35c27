#include "ops/rope/rope.h"

#include <algorithm>

#include "ops/common/cuda_utils.cuh"
#include "ops/common/pack.cuh"
#include "ops/rope/rope.cuh"

namespace sluice::cuda {

namespace {

constexpr int block = 256;
constexpr int heads_at_once = 4;  // that a thread turns by the same angles
constexpr int max_angles = 256;   // frequencies that travel as a kernel parameter: 2 KiB

struct Frequencies {
  double of[max_angles];
  double factor;
};

// Columns [begin, begin + count) of the cosines and sines; a warp's lanes take neighbouring angles of one token.
__global__ __launch_bounds__(block) void form_table(const __grid_constant__ Frequencies f, const int32_t* positions,
                                                    float* table, int64_t N, int half, int begin, int count) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (n >= N) return;
  const double position = positions[n];
  float* row = table + n * 2 * half + begin;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    double sine, cosine;
    sincos(position * f.of[i], &sine, &cosine);
    row[i] = static_cast<float>(f.factor * cosine);
    row[half + i] = static_cast<float>(f.factor * sine);
  }
}

struct Shape3 {
  int64_t N;
  int heads, half;
};

// A thread takes a pack of pairs of up to heads_at_once heads of one token. Heads of a thread are `stride` apart, so that neighbouring
// threads read neighbouring memory.
template <class T, class U>
__global__ __launch_bounds__(block) void rotate_packs(const T* x, const float* table, U* y, Shape3 s, int stride,
                                                      int tokens, float sign) {
  constexpr int size = pack_size<T, U>;
  const int packs = s.half / size, units = packs * stride;
  for (int u = threadIdx.x; u < tokens * units; u += blockDim.x) {
    const int t = u / units, in_token = u - t * units, head = in_token / packs, c = (in_token - head * packs) * size;
    const int64_t n = static_cast<int64_t>(blockIdx.x) * tokens + t;
    if (n >= s.N) return;
    const float* angles = table + n * 2 * s.half + c;
    const int64_t begin = n * s.heads * 2 * s.half + c;
    Pack<T, size> a[heads_at_once], b[heads_at_once];
#pragma unroll
    for (int k = 0; k < heads_at_once; ++k) {
      const int h = head + k * stride;
      if (h >= s.heads) continue;
      const T* p = x + begin + static_cast<int64_t>(h) * 2 * s.half;
      a[k] = load_pack<size>(p);
      b[k] = load_pack<size>(p + s.half);
    }
    float cosine[size], sine[size];
    unpack(load_constant_pack<size>(angles), cosine);
    unpack(load_constant_pack<size>(angles + s.half), sine);
#pragma unroll
    for (int j = 0; j < size; ++j) sine[j] *= sign;
#pragma unroll
    for (int k = 0; k < heads_at_once; ++k) {
      const int h = head + k * stride;
      if (h >= s.heads) continue;
      float first[size], second[size];
      unpack(a[k], first);
      unpack(b[k], second);
#pragma unroll
      for (int j = 0; j < size; ++j) {
        const Turned r = turn(first[j], second[j], cosine[j], sine[j]);
        first[j] = r.first, second[j] = r.second;
      }
      U* q = y + begin + static_cast<int64_t>(h) * 2 * s.half;
      store_pack(q, first);
      store_pack(q + s.half, second);
    }
  }
}

// A block for each token, a thread for each pair.
template <class T, class U>
__global__ __launch_bounds__(block) void rotate_scalar(const T* x, const float* table, U* y, Shape3 s, float sign) {
  const int64_t n = blockIdx.x;
  const float* angles = table + n * 2 * s.half;
  for (int u = threadIdx.x; u < s.heads * s.half; u += blockDim.x) {
    const int head = u / s.half, i = u - head * s.half;
    const int64_t at = (n * s.heads + head) * 2 * s.half + i;
    const Turned r = turn(to_float(x[at]), to_float(x[at + s.half]), angles[i], angles[s.half + i] * sign);
    y[at] = from_float<U>(r.first);
    y[at + s.half] = from_float<U>(r.second);
  }
}

template <class T, class U>
void rotate(cudaStream_t stream, const Rope& args, const Shape3& s) {
  const T* x = data_of<T>(args.x);
  const float* table = data_of<float>(args.table);
  U* y = data_of<U>(args.y);
  const float sign = args.inverse ? -1.0F : 1.0F;
  constexpr int size = pack_size<T, U>;
  if (s.half % size != 0 || !aligned_to_packs({x, table, y})) {
    rotate_scalar<<<s.N, block, 0, stream>>>(x, table, y, s, sign);
    return;
  }
  const int stride = static_cast<int>(ceil_div(s.heads, heads_at_once)), units = s.half / size * stride;
  const int tokens = std::max(1, block / units),
            threads = static_cast<int>(std::min<int64_t>(block, round_up(tokens * units, 32)));
  rotate_packs<<<ceil_div(s.N, tokens), threads, 0, stream>>>(x, table, y, s, stride, tokens, sign);
}

}  // namespace

void rope_table(Context& ctx, const RopeTable& args) {
  if (ctx.counting() || args.table.numel() == 0) return;
  const int64_t N = args.table.shape[0];
  const int half = static_cast<int>(args.table.shape[1] / 2);
  const cudaStream_t stream = stream_of(ctx);
  for (int begin = 0; begin < half; begin += max_angles) {
    const int count = std::min(max_angles, half - begin);
    Frequencies f;
    f.factor = args.factor;
    std::copy_n(args.frequencies + begin, count, f.of);
    const dim3 threads(32, block / 32);
    form_table<<<ceil_div(N, threads.y), threads, 0, stream>>>(f, data_of<int32_t>(args.positions),
                                                               data_of<float>(args.table), N, half, begin, count);
  }
  check_launch("rope_table");
}

void rope(Context& ctx, const Rope& args) {
  if (ctx.counting() || args.x.numel() == 0) return;
  const int64_t width = args.x.shape[1], heads = width / args.head_dim;
  SLUICE_ASSERT(width < (int64_t{1} << 30));
  const Shape3 s{.N = args.x.shape[0], .heads = static_cast<int>(heads), .half = static_cast<int>(args.head_dim / 2)};
  const cudaStream_t stream = stream_of(ctx);
  with_type(args.x.dtype,
            [&]<class T>() { with_type(args.y.dtype, [&]<class U>() { rotate<T, U>(stream, args, s); }); });
  check_launch("rope");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(rope_table, RopeTable)
SLUICE_CUDA_ENTRY(rope, Rope)
