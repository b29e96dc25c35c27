// Matrix-vector products with a matrix in any of its storage formats, for one to a few rows of x.
//
// Most quantised formats go to tensor cores (matvec_tiles.cuh). The others are multiplied here, by octets of weights: T
// threads share the octets of R rows of the weight, thread t taking the octets t, t + T, …; T depends on the count of
// columns only. Each (row of x, output) has one sum in each thread, fed in that order, then the sums of a warp and of
// the warps are added by a fixed tree: so a result depends neither on N nor on R.
#include <algorithm>
#include <atomic>

#include "ops/common/launch_early.cuh"
#include "ops/quant/matvec_tiles.cuh"
#include "ops/quant/projections.h"
#include "ops/quant/quant_decode.cuh"

namespace sluice::cuda {
namespace {

// ---- By octets ------------------------------------------------------------------------------------------------------

constexpr int most_threads = 128;  // of a block

struct Part {
  WeightView weight;
  void* y;
  int rows, first_group;
};
struct Product {
  Part parts[most_parts_of_kernel];  // alike; those that are missing begin past the last group
  int cols, num_octets, num_x;       // num_x: rows of x and y
  int x_tiles, groups;
  const void* x;
  bool x_wide;  // every octet of x can be read by 16-byte loads
  bool y_bf16;
  bool add;    // to y
  bool gated;  // y = act(part 0's) * (part 1's): half of a group's rows are of one each
  Activation activation;
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
__global__ __launch_bounds__(most_threads,
                             x_batch* R > 8 ? 3 : 4) void octets_kernel(const __grid_constant__ Product p) {
  __shared__ float sums[most_threads / 32][x_batch * R];
  launch_dependents();
  wait_for_kernels_before();
  const int x_begin = static_cast<int>(blockIdx.x % p.x_tiles) * x_batch;
  const int own_group = static_cast<int>(blockIdx.x / p.x_tiles * blockDim.y + threadIdx.y);
  const int group = min(own_group, p.groups - 1);
  const int number = p.gated ? 0 : (group >= p.parts[1].first_group) + (group >= p.parts[2].first_group);
  const int R_own = p.gated ? R / 2 : R;  // rows of a part
  const int64_t first = static_cast<int64_t>(group - p.parts[number].first_group) * R_own;
  const int num_rows = p.parts[number].rows;
  const WeightView& weight = p.parts[0].weight;  // but for where its rows lie, any part's
  Row rows[R];
#pragma unroll
  for (int r = 0; r < R; ++r) {  // missing rows repeat the last
    const bool second = p.gated && r >= R_own;
    const Part& part = p.parts[second ? 1 : number];
    const int64_t row = first + (second ? r - R_own : r);
    rows[r] = part.weight.row(static_cast<uint32_t>(min(row, static_cast<int64_t>(num_rows - 1))));
  }
  const T* x[x_batch];
#pragma unroll
  for (int n = 0; n < x_batch; ++n)
    x[n] = static_cast<const T*>(p.x) + static_cast<int64_t>(min(x_begin + n, p.num_x - 1)) * p.cols;

  float sum[x_batch][R] = {};
  decltype(D::load(weight, rows[0], 0)) raw[R];
  const auto load = [&](int r, int octet) {
    if (octet >= p.num_octets) return;
    if constexpr (D::plain) raw[r] = D::load(weight, rows[r], octet, p.cols - octet * 8);
    else raw[r] = D::load(weight, rows[r], octet);
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
        D::decode(weight, raw[r], octet, w[r]);
        load(r, next);
      }
    }
#pragma unroll
    for (int n = 0; n < x_batch; ++n) {
      float v[8];
      load_octet(x[n] + octet * 8, D::plain ? p.cols - octet * 8 : 8, x_batch == 1 || p.x_wide, v);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if constexpr (x_batch == 1) D::decode(weight, raw[r], octet, w[0]);
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
  if (own_group > group || n >= x_batch || x_begin + n >= p.num_x || r >= R_own || first + r >= num_rows) return;
  const auto total_of = [&](int row) {
    float total = sums[threadIdx.y * warps][n * R + row];
    for (int w = 1; w < warps; ++w) total = __fadd_rn(total, sums[threadIdx.y * warps + w][n * R + row]);
    return total;
  };
  float total = total_of(r);
  if (p.gated) total = tiles::act(p.activation, total) * total_of(R_own + r);
  const int64_t at = static_cast<int64_t>(x_begin + n) * num_rows + first + r;
  tiles::store(p.parts[number].y, at, p.y_bf16, p.add, total);
}

// Threads that share a row: about eight octets each.
int threads_for(int64_t num_octets) {
  return static_cast<int>(std::clamp<int64_t>(round_up(ceil_div(num_octets, 8), 32), 32, most_threads));
}

template <class D, class T, int x_batch, int R>
void launch_octets(const Context& ctx, Product p) {
  p.x_tiles = static_cast<int>(ceil_div(p.num_x, x_batch));
  p.groups = 0;
  for (Part& part : p.parts) {
    part.first_group = part.rows == 0 ? INT32_MAX : p.groups;
    if (!p.gated || &part == p.parts) p.groups += static_cast<int>(ceil_div(part.rows, p.gated ? R / 2 : R));
  }
  const int T_threads = threads_for(p.num_octets), groups = most_threads / T_threads;
  const int64_t blocks = ceil_div(p.groups, groups) * p.x_tiles;
  SLUICE_ASSERT(blocks <= INT32_MAX);
  launch_early(ctx, octets_kernel<D, T, x_batch, R>, dim3(static_cast<unsigned>(blocks)),
               dim3(static_cast<unsigned>(T_threads), static_cast<unsigned>(groups)), 0, "weight_matvec", p);
}

template <class D, class T, bool aligned>
void multiply_octets(const Context& ctx, const Product& p) {
  if constexpr (aligned) {
    // Few rows: more threads that each do less hide the latency.
    int64_t rows = 0;
    for (const Part& part : p.parts) rows += part.rows;
    const int64_t threads = rows * threads_for(p.num_octets);
    const int64_t enough = static_cast<int64_t>(facts_of(ctx).num_multiprocessors) * 2048;
    if (p.num_x == 1 && p.x_wide && threads < enough && !p.gated) return launch_octets<D, T, 1, 1>(ctx, p);
    if (p.num_x == 1 && p.x_wide) return launch_octets<D, T, 1, 4>(ctx, p);
  }
  launch_octets<D, T, 4, 4>(ctx, p);
}

void multiply_octets(const Context& ctx, const Projections& args) {
  const Weight& first = *args.parts.front().weight;
  const int64_t N = args.x.shape[0];
  const WeightView view(first);
  Product p = {.parts = {{.weight = view}, {.weight = view}, {.weight = view}},
               .cols = static_cast<int>(first.cols),
               .num_octets = static_cast<int>(ceil_div(first.cols, 8)),
               .num_x = static_cast<int>(N),
               .x_tiles = 1,
               .groups = 0,
               .x = args.x.data,
               .x_wide = reinterpret_cast<uintptr_t>(args.x.data) % 16 == 0 &&
                         (N == 1 || first.cols * size_of(args.x.dtype) % 16 == 0),
               .y_bf16 = args.parts.front().y.dtype == DType::bf16,
               .add = args.write == Write::add,
               .gated = args.gate.has_value(),
               .activation = args.gate.value_or(Activation::silu)};
  bool aligned = true;
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const Weight& w = *args.parts[i].weight;
    p.parts[i] = {
        .weight = WeightView(w), .y = args.parts[i].y.data, .rows = static_cast<int>(w.rows), .first_group = 0};
    const bool plain = block_cols(w.format) == 1 && w.format != WeightFormat::affine;
    aligned = aligned && p.parts[i].weight.aligned() && (!plain || p.parts[i].weight.row_bytes % 16 == 0);
  }
  const auto multiply = [&]<class D, bool is_aligned>() {
    if (args.x.dtype == DType::bf16) multiply_octets<D, __nv_bfloat16, is_aligned>(ctx, p);
    else multiply_octets<D, float, is_aligned>(ctx, p);
  };
  if (aligned) with_decoder<16>(first, [&]<class D>() { multiply.template operator()<D, true>(); });
  else with_decoder<1>(first, [&]<class D>() { multiply.template operator()<D, false>(); });
}

// ---- By tiles -------------------------------------------------------------------------------------------------------

template <class F>
void multiply_tiles(const Context& ctx, const Projections& args) {
  const DeviceFacts& facts = facts_of(ctx);
  const Weight& first = *args.parts.front().weight;
  const bool x_bf16 = args.x.dtype == DType::bf16;
  tiles::Product p{};
  p.scales_whole = first.cols % tiles::chunk_cols == 0;
  p.cols = static_cast<int>(first.cols);
  p.parts = x_bf16 ? 1 : tiles::float_parts;
  p.x_bf16 = x_bf16, p.y_bf16 = args.parts.front().y.dtype == DType::bf16;
  p.add = args.write == Write::add;
  p.gated = args.gate.has_value();
  p.activation = args.gate.value_or(Activation::silu);
  p.normed = args.norm.has_value();
  if (args.norm) {
    p.norm_weight = static_cast<const float*>(args.norm->weight.data);
    p.norm_eps = args.norm->eps, p.norm_offset = args.norm->offset;
  }
  for (size_t i = 0; i < std::size(p.matrices); ++i) {
    tiles::Matrix& m = p.matrices[i];
    m.first_tile = INT32_MAX;
    if (i >= args.parts.size()) continue;
    const Weight& w = *args.parts[i].weight;
    const WeightView view(w);
    m = {.data = view.data,
         .scales = view.scales,
         .biases = view.biases,
         .y = nullptr,
         .rows = static_cast<int>(w.rows),
         .first_tile = p.tiles,
         .interleaved_head_dim = view.interleaved_head_dim};
    p.tiles += static_cast<int>(ceil_div(w.rows, tiles::tile_rows));
    p.row_bytes = view.row_bytes, p.scale_row_bytes = view.scale_row_bytes;
    if (w.format != WeightFormat::affine) continue;
    p.scale_bytes = static_cast<int>(tiles::chunk_cols / w.group_size * 2);
    p.group_shift = view.group_shift - 2;
    p.scales_whole = p.scales_whole && p.scale_bytes == 8 && reinterpret_cast<uintptr_t>(w.scales) % 8 == 0 &&
                     reinterpret_cast<uintptr_t>(w.biases) % 8 == 0;
  }
  const auto kernel = tiles::matvec_kernel<F>;
  static std::atomic<uint64_t> prepared = 0;  // devices
  const uint64_t device = uint64_t{1} << (facts.index % 64);
  if ((prepared.load() & device) == 0) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(facts.shared_bytes_per_block)),
               "weight_matvec");
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    static_cast<int>(cudaSharedmemCarveoutMaxShared)),
               "weight_matvec");
    prepared |= device;
  }
  const int64_t N = args.x.shape[0];
  for (int64_t n = 0; n < N; n += p.num_x) {
    const tiles::Layout layout = tiles::lay_out<F>(p, N - n, facts.num_multiprocessors, facts.shared_bytes_per_block);
    p.x = static_cast<const std::byte*>(args.x.data) + n * first.cols * size_of(args.x.dtype);
    for (size_t i = 0; i < args.parts.size(); ++i) {
      const Tensor& y = args.parts[i].y;
      if (!y.empty()) p.matrices[i].y = static_cast<std::byte*>(y.data) + n * y.shape[1] * size_of(y.dtype);
    }
    launch_early(ctx, kernel, dim3(static_cast<unsigned>(layout.blocks)),
                 dim3(static_cast<unsigned>(layout.warps) * 32), layout.shared_bytes, "weight_matvec", p);
  }
}

void multiply_tiles_of_format(const Context& ctx, const Projections& args) {
  const Weight& w = *args.parts.front().weight;
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
  if (ctx.counting() || args.x.shape[0] == 0 || args.weight.rows == 0) return;
  cuda::projections(ctx, {.x = args.x, .parts = {{&args.weight, args.y}}});
}

void projections(Context& ctx, const Projections& args) {
  if (ctx.counting() || args.x.shape[0] == 0) return;
  SLUICE_ASSERT(args.x.shape[0] <= INT32_MAX);
  if (lies_in_tiles(*args.parts.front().weight)) multiply_tiles_of_format(ctx, args);
  else multiply_octets(ctx, args);
  check_launch("weight_matvec");
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(weight_matvec, WeightMatvec)
SLUICE_CUDA_ENTRY(projections, Projections)
