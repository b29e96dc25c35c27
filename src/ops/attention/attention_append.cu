#include "ops/attention/attention_append.h"

#include <algorithm>

#include "ops/common/launch_early.cuh"
#include "ops/common/mma.cuh"
#include "ops/rope/rope.cuh"

namespace sluice::cuda {
namespace {

constexpr int threads = 128, warps = threads / 32, most_sequences = 64;
constexpr int most_pairs = 2;  // of a thread: heads of up to 512

struct Target {
  void *k, *v;
  bool bf16;
};
struct Heads {
  Target targets[most_sequences];
  int H, K, D;
  float* q;
  const float *k, *v, *table;
  const float *q_weight, *k_weight;  // may be null
  bool norm_qk, norm_v;
  float eps, offset;
};

// A block for each head: those of q, of k, of v.
__global__ __launch_bounds__(threads) void append_kernel(const __grid_constant__ Heads a) {
  __shared__ float sums[warps];
  const int tid = static_cast<int>(threadIdx.x), half = a.D / 2;
  const int64_t b = blockIdx.y;
  int head = static_cast<int>(blockIdx.x);
  const bool is_q = head < a.H, is_v = head >= a.H + a.K;
  head -= is_q ? 0 : is_v ? a.H + a.K : a.H;
  const float* weight = is_q ? a.q_weight : is_v ? nullptr : a.k_weight;
  launch_dependents();
  float factor[most_pairs][2];
#pragma unroll
  for (int j = 0; j < most_pairs; ++j) {
    const int i = tid + j * threads;
    factor[j][0] = factor[j][1] = 1;
    if (weight == nullptr || i >= half) continue;
    factor[j][0] = a.offset + __ldg(weight + i), factor[j][1] = a.offset + __ldg(weight + half + i);
  }
  wait_for_kernels_before();

  const float* x = is_q ? a.q + b * a.H * a.D : (is_v ? a.v : a.k) + b * a.K * a.D;
  x += static_cast<int64_t>(head) * a.D;
  float v[most_pairs][2] = {}, angle[most_pairs][2] = {};
#pragma unroll
  for (int j = 0; j < most_pairs; ++j) {
    const int i = tid + j * threads;
    if (i >= half) continue;
    v[j][0] = x[i], v[j][1] = x[half + i];
    if (!is_v) angle[j][0] = a.table[b * a.D + i], angle[j][1] = a.table[b * a.D + half + i];
  }
  if (is_v ? a.norm_v : a.norm_qk) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < most_pairs; ++j) squares = fmaf(v[j][1], v[j][1], fmaf(v[j][0], v[j][0], squares));
    squares = warp_sum(squares);
    if (tid % 32 == 0) sums[tid / 32] = squares;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < warps; ++w) total += sums[w];
    const float rstd = 1.0F / sqrtf(total / static_cast<float>(a.D) + a.eps);
#pragma unroll
    for (int j = 0; j < most_pairs; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) v[j][e] = v[j][e] * rstd * factor[j][e];
    }
  }
  const Target& target = a.targets[b];
  const int64_t at = static_cast<int64_t>(head) * a.D;
#pragma unroll
  for (int j = 0; j < most_pairs; ++j) {
    const int i = tid + j * threads;
    if (i >= half) continue;
    Turned y = {v[j][0], v[j][1]};
    if (!is_v) y = turn(v[j][0], v[j][1], angle[j][0], angle[j][1]);
    if (is_q || !target.bf16) {
      float* to = is_q ? a.q + b * a.H * a.D : static_cast<float*>(is_v ? target.v : target.k);
      to[at + i] = y.first, to[at + half + i] = y.second;
    } else {
      auto* to = static_cast<__nv_bfloat16*>(is_v ? target.v : target.k);
      to[at + i] = __float2bfloat16_rn(y.first), to[at + half + i] = __float2bfloat16_rn(y.second);
    }
  }
}

}  // namespace

void attention_append(Context& ctx, const AttentionAppend& args) {
  if (ctx.counting()) return;
  const AttentionShape& s = args.shape;
  SLUICE_ASSERT(s.head_dim <= 2 * most_pairs * threads);
  const int64_t B = args.q.shape[0], wide = s.num_heads * s.head_dim, narrow = s.num_kv_heads * s.head_dim;
  const bool appends = !args.rows.empty();
  for (int64_t begin = 0; begin < B; begin += most_sequences) {
    const int64_t count = std::min<int64_t>(most_sequences, B - begin);
    Heads a{};
    a.H = static_cast<int>(s.num_heads), a.K = static_cast<int>(s.num_kv_heads), a.D = static_cast<int>(s.head_dim);
    a.q = static_cast<float*>(args.q.data) + begin * wide;
    a.table = static_cast<const float*>(args.table.data) + begin * s.head_dim;
    a.q_weight = static_cast<const float*>(args.q_weight.data);
    a.k_weight = static_cast<const float*>(args.k_weight.data);
    a.norm_qk = args.norm_qk, a.norm_v = args.norm_v, a.eps = args.eps, a.offset = args.offset;
    if (appends) {
      a.k = static_cast<const float*>(args.k.data) + begin * narrow;
      a.v = static_cast<const float*>(args.v.data) + begin * narrow;
      for (int64_t b = 0; b < count; ++b) {
        const AttentionAppend::Row& row = args.rows[static_cast<size_t>(begin + b)];
        a.targets[b] = {row.k.data, row.v.data, row.k.dtype == DType::bf16};
      }
    }
    const int64_t heads = s.num_heads + (appends ? 2 * s.num_kv_heads : 0);
    launch_early(ctx, append_kernel, dim3(static_cast<unsigned>(heads), static_cast<unsigned>(count)), dim3(threads), 0,
                 "attention_append", a);
  }
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(attention_append, AttentionAppend)
