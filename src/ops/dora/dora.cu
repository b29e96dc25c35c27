#include "ops/dora/dora.h"

#include <algorithm>

#include "ops/common/cuda_utils.cuh"
#include "ops/common/pack.cuh"
#include "ops/quant/quant.h"

// Panels of rows are dequantised to f32; a block then forms B A for a few rows of the panel, column by column in registers, so that
// A is read once for all of them.
namespace sluice::cuda {

namespace {

constexpr int block = 256, warps = block / 32;
constexpr int rows_at_once = 8;
constexpr int64_t panel_bytes = 32 << 20;

// norm[o] for rows [0, rows) of the panel. `b` [R, rows_at_once] in shared memory, zero beyond the last row. The order of a row's
// sums depends on `in` and R alone.
__global__ __launch_bounds__(block) void norms(const float* __restrict__ panel, const float* __restrict__ lora_a,
                                               const float* __restrict__ lora_b, float scale, float* __restrict__ norm,
                                               int64_t rows, int64_t in, int R) {
  extern __shared__ __align__(16) float b[];
  __shared__ float part[warps][rows_at_once];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * rows_at_once;
  for (int i = threadIdx.x; i < R * rows_at_once; i += block) {
    const int r = i / rows_at_once;
    const int64_t row = first + i % rows_at_once;
    b[i] = row < rows ? lora_b[row * R + r] : 0.0F;
  }
  __syncthreads();
  float sum[rows_at_once] = {};
  for (int64_t i = threadIdx.x; i < in; i += block) {
    float w[rows_at_once], delta[rows_at_once] = {};
#pragma unroll
    for (int k = 0; k < rows_at_once; ++k) w[k] = first + k < rows ? panel[(first + k) * in + i] : 0.0F;
#pragma unroll 4
    for (int r = 0; r < R; ++r) {
      const float a = lora_a[r * in + i];
      const auto* of_rank = reinterpret_cast<const float4*>(b + r * rows_at_once);
      const float4 low = of_rank[0], high = of_rank[1];
      const float factor[rows_at_once] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int k = 0; k < rows_at_once; ++k) delta[k] = fmaf(factor[k], a, delta[k]);
    }
#pragma unroll
    for (int k = 0; k < rows_at_once; ++k) {
      const float v = fmaf(scale, delta[k], w[k]);
      sum[k] = fmaf(v, v, sum[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < rows_at_once; ++k) {
    const float total = warp_sum(sum[k]);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32][k] = total;
  }
  __syncthreads();
  if (const int k = threadIdx.x; k < rows_at_once && first + k < rows) {
    float total = 0;
    for (int w = 0; w < warps; ++w) total += part[w][k];
    norm[first + k] = sqrtf(total);
  }
}

__global__ __launch_bounds__(block) void scale_columns(const float* __restrict__ magnitude,
                                                       const float* __restrict__ norm, float* y, int64_t N,
                                                       int64_t out) {
  const int64_t o = static_cast<int64_t>(blockIdx.x) * block + threadIdx.x;
  if (o >= out) return;
  const float ratio = norm[o] > 0 ? magnitude[o] / norm[o] : 0.0F;
  for (int64_t n = blockIdx.y; n < N; n += gridDim.y) y[n * out + o] *= ratio;
}

}  // namespace

void adapted_row_norms(Context& ctx, const AdaptedRowNorms& args) {
  const Weight& w = args.weight;
  const int64_t in = w.cols, R = args.lora_a.empty() ? 0 : args.lora_a.shape[0];
  ArenaScope scope(ctx.arena);
  const int64_t panel_rows = std::min(
      w.rows,
      std::max<int64_t>(panel_bytes / (std::max<int64_t>(in, 1) * 4) / rows_at_once * rows_at_once, rows_at_once));
  auto* panel = scope.array<float>(panel_rows * in);
  const auto load_panel = [&](int64_t begin, int64_t rows) {
    cuda::dequantize(ctx, {.weight = w, .row_begin = begin, .out = {panel, DType::f32, {rows, in}}});
  };
  if (ctx.counting()) return load_panel(0, panel_rows);
  const cudaStream_t stream = stream_of(ctx);
  const int64_t shared_bytes = R * rows_at_once * static_cast<int64_t>(sizeof(float));
  if (shared_bytes > (32 << 10)) {
    check_cuda(cudaFuncSetAttribute(norms, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
               "adapted_row_norms: shared memory for one rank's rows of B");
  }
  for (int64_t begin = 0; begin < w.rows; begin += panel_rows) {
    const int64_t rows = std::min(panel_rows, w.rows - begin);
    load_panel(begin, rows);
    norms<<<ceil_div(rows, rows_at_once), block, shared_bytes, stream>>>(
        panel, data_of<float>(args.lora_a), R > 0 ? data_of<float>(args.lora_b) + begin * R : nullptr, args.scale,
        data_of<float>(args.norm) + begin, rows, in, static_cast<int>(R));
  }
  check_launch("adapted_row_norms");
}

void apply_magnitude(Context& ctx, const ApplyMagnitude& args) {
  if (ctx.counting() || args.y.numel() == 0) return;
  const int64_t N = args.y.shape[0], out = args.y.shape[1];
  const dim3 grid(static_cast<unsigned>(ceil_div(out, block)), static_cast<unsigned>(std::min<int64_t>(N, 1024)));
  scale_columns<<<grid, block, 0, stream_of(ctx)>>>(data_of<float>(args.magnitude), data_of<float>(args.norm),
                                                    data_of<float>(args.y), N, out);
  check_launch("apply_magnitude");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(adapted_row_norms, AdaptedRowNorms)
SLUICE_CUDA_ENTRY(apply_magnitude, ApplyMagnitude)
