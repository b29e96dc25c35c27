#include <algorithm>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "ops/quant/quant.h"
#include "ops/quant/quant_decode.cuh"

namespace sluice::cuda {
namespace {

// What lies where: row i of the output is row row_begin + i of the weight, or row ids[i].
struct Panel {
  WeightView weight;
  int64_t row_begin, rows;
  int64_t row_bytes_begin;  // of plain floats: where a row's first column lies
  const int32_t* ids;
  int64_t weight_rows;
  float scale;
  int octet_begin, octets, cols, column_blocks;  // octets: of a row
};

constexpr int most_threads = 256;
constexpr int rows_of_thread = 4;  // their loads are under way together

template <class T, bool wide>
__device__ void store_octet(const float (&w)[8], T* out, int count) {
  if constexpr (!wide) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) out[i] = from_float<T>(w[i]);
    }
  } else if constexpr (std::is_same_v<T, float>) {
    *reinterpret_cast<float4*>(out) = {w[0], w[1], w[2], w[3]};
    *reinterpret_cast<float4*>(out + 4) = {w[4], w[5], w[6], w[7]};
  } else {
    Bf16x8 v;
#pragma unroll
    for (int i = 0; i < 4; ++i) v.v[i] = __floats2bfloat162_rn(w[2 * i], w[2 * i + 1]);
    *reinterpret_cast<Bf16x8*>(out) = v;
  }
}

// A thread writes one octet of a few consecutive rows, its neighbours the octets beside it. wide: whole octets at 16 bytes.
template <class D, class T, bool gather, bool wide>
__global__ __launch_bounds__(most_threads) void dequantize_kernel(const Panel panel, T* out) {
  const int octet = static_cast<int>((blockIdx.x % panel.column_blocks) * blockDim.x + threadIdx.x);
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x / panel.column_blocks) * blockDim.y + threadIdx.y) * rows_of_thread;
  if (octet >= panel.octets || first >= panel.rows) return;
  const int place = panel.octet_begin + octet, count = panel.cols - octet * 8;
  const bool jumps = gather || panel.weight.interleaved_head_dim != 0;  // rows do not follow each other
  using Raw = decltype(D::load(panel.weight, Row{}, 0));
  Raw raw[rows_of_thread];
  bool known[rows_of_thread];
  Row row;
  if (!jumps) row = panel.weight.row(static_cast<uint32_t>(panel.row_begin + first));
#pragma unroll
  for (int r = 0; r < rows_of_thread; ++r) {
    known[r] = first + r < panel.rows;
    if (jumps && known[r]) {
      int64_t source = panel.row_begin + first + r;
      if constexpr (gather) {
        source = __ldg(panel.ids + first + r);
        known[r] = source >= 0 && source < panel.weight_rows;
      }
      if (known[r]) row = panel.weight.row(static_cast<uint32_t>(source));
    }
    if (known[r]) {
      if constexpr (D::plain)
        raw[r] = D::load(panel.weight, {row.data + panel.row_bytes_begin, nullptr, nullptr}, place, wide ? 8 : count);
      else raw[r] = D::load(panel.weight, row, place);
    }
    if (!jumps) {
      row.data += panel.weight.row_bytes;
      row.scales += panel.weight.scale_row_bytes;
      row.biases += panel.weight.scale_row_bytes;
    }
  }
  out += first * panel.cols + octet * 8;
#pragma unroll
  for (int r = 0; r < rows_of_thread; ++r, out += panel.cols) {
    if (first + r >= panel.rows) return;
    float w[8];
    D::decode(panel.weight, raw[r], place, w);
    if constexpr (gather) {
#pragma unroll
      for (int i = 0; i < 8; ++i) w[i] = known[r] ? __fmul_rn(w[i], panel.scale) : __uint_as_float(0x7fc00000U);
    }
    store_octet<T, wide>(w, out, count);
  }
}

struct Job {
  const Weight& weight;
  int64_t row_begin = 0, col_begin = 0;
  const int32_t* ids = nullptr;
  float scale = 1;
  Tensor out;
};

template <bool gather>
void dequantize_rows(const Context& ctx, const Job& job) {
  const int64_t rows = job.out.shape[0], cols = job.out.shape[1];
  if (rows == 0 || cols == 0) return;
  const Weight& w = job.weight;
  const bool plain = block_cols(w.format) == 1;
  const int64_t octets = ceil_div(cols, 8), row_bytes_begin = plain ? job.col_begin * block_bytes(w.format) : 0;
  const int64_t column_blocks = ceil_div(octets, most_threads);
  const int64_t threads = round_up(ceil_div(octets, column_blocks), 32), groups = most_threads / threads;
  const int64_t blocks = ceil_div(rows, groups * rows_of_thread) * column_blocks;
  SLUICE_ASSERT(blocks <= INT32_MAX);
  const Panel panel = {.weight = WeightView(w),
                       .row_begin = job.row_begin,
                       .rows = rows,
                       .row_bytes_begin = row_bytes_begin,
                       .ids = job.ids,
                       .weight_rows = w.rows,
                       .scale = job.scale,
                       .octet_begin = plain ? 0 : static_cast<int>(job.col_begin / 8),
                       .octets = static_cast<int>(octets),
                       .cols = static_cast<int>(cols),
                       .column_blocks = static_cast<int>(column_blocks)};
  const bool aligned = panel.weight.aligned() && cols % 8 == 0 && reinterpret_cast<uintptr_t>(job.out.data) % 16 == 0 &&
                       (!plain || (panel.weight.row_bytes % 16 == 0 && row_bytes_begin % 16 == 0));
  with_type(job.out.dtype, [&]<class T>() {
    T* const out = static_cast<T*>(job.out.data);
    const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(groups));
    const auto launch = [&]<class D, bool wide>() {
      dequantize_kernel<D, T, gather, wide><<<static_cast<unsigned>(blocks), block, 0, stream_of(ctx)>>>(panel, out);
    };
    if (aligned) with_decoder<16>(w, [&]<class D>() { launch.template operator()<D, true>(); });
    else with_decoder<1>(w, [&]<class D>() { launch.template operator()<D, false>(); });
  });
  check_launch(gather ? "gather_weight_rows" : "dequantize");
}

// first[0]: the first n whose id is outside [0, rows), or N; first[1]: that id.
__global__ __launch_bounds__(1024) void first_unknown_id_kernel(const int32_t* ids, int N, int64_t rows,
                                                                int32_t* first) {
  __shared__ int32_t smallest;
  if (threadIdx.x == 0) smallest = N;
  __syncthreads();
  for (int n = static_cast<int>(threadIdx.x); n < N; n += 1024) {
    if (ids[n] < 0 || ids[n] >= rows) {
      atomicMin(&smallest, n);
      break;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    first[0] = smallest;
    first[1] = smallest < N ? ids[smallest] : 0;
  }
}

}  // namespace

void dequantize(Context& ctx, const Dequantize& args) {
  if (ctx.counting()) return;
  dequantize_rows<false>(
      ctx, {.weight = args.weight, .row_begin = args.row_begin, .col_begin = args.col_begin, .out = args.out});
}

// Waits for the device: an id outside the table is told from the host.
void gather_weight_rows(Context& ctx, const GatherWeightRows& args) {
  ArenaScope scope(ctx.arena);
  auto* const first = scope.array<int32_t>(2);
  const int64_t N = args.ids.shape[0];
  if (ctx.counting() || N == 0) return;
  SLUICE_ASSERT(N <= INT32_MAX);
  const auto* ids = args.ids.as<int32_t>();
  first_unknown_id_kernel<<<1, 1024, 0, stream_of(ctx)>>>(ids, static_cast<int>(N), args.table.rows, first);
  check_launch("gather_weight_rows");
  dequantize_rows<true>(ctx, {.weight = args.table, .ids = ids, .scale = args.scale, .out = args.y});
  int32_t found[2] = {};
  check_cuda(cudaMemcpyAsync(found, first, sizeof found, cudaMemcpyDefault, stream_of(ctx)), "gather_weight_rows");
  check_cuda(cudaStreamSynchronize(stream_of(ctx)), "gather_weight_rows");
  if (found[0] < N) {
    throw Error(ErrorCode::bad_config, "token " + std::to_string(found[0]) + ": id " + std::to_string(found[1]) +
                                           ", the embedding has rows 0 to " + std::to_string(args.table.rows - 1) +
                                           "; is the tokenizer from another model?");
  }
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(dequantize, Dequantize)
SLUICE_CUDA_ENTRY(gather_weight_rows, GatherWeightRows)
