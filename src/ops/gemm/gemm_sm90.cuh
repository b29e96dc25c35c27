// The matrix product of Hopper GPUs (wgmma, TMA): bf16 operands, float32 sums, any epilogue.
//
//   C[m, n] = epilogue( sum_r A2[m, r] B2[r, n]  +  sum_k A[m, k] B[k, n] )
//
//   GemmSm90 g{.M = N, .N = out, .K = in, .a = x, .lda = in, .b = w, .ldb = in};
//   if (gemm_sm90_takes(g))
//     gemm_sm90<Major::k, Major::k, LinearEpilogue>(ctx, g, {.y = y, .ldy = out}, "linear_forward");
//
// An operand of Major::k lies as [m, k] (B: [n, k], a weight), of Major::mn as [k, m] (B: [k, n]). The second pair,
// which is walked first, lies as the first does; it is LoRA's low-rank product and costs R / K more. Sums run over k in
// order, 16 at a time, in one accumulator: an element's bits depend on its row of A, its column of B, K and R alone.
//
// One persistent block an SM, 128 x tile_n of C at a time (tile_n 256, 192 or 128, whichever fills the waves best): a
// producer warp loads 64 k at once through a ring of stages, two warpgroups multiply 64 rows each. Blocks run in pairs
// (clusters) that share their columns: each loads half of B for both.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "ops/common/cuda_utils.cuh"
#include "ops/common/mma.cuh"
#include "ops/common/sm90.cuh"

namespace sluice::cuda {

struct GemmSm90 {
  int64_t M = 0, N = 0, K = 0;
  const void* a = nullptr;
  int64_t lda = 0;  // elements between rows as they lie
  const void* b = nullptr;
  int64_t ldb = 0;
  int64_t R = 0;  // of the second pair; 0: none
  const void* a2 = nullptr;
  int64_t lda2 = 0;
  const void* b2 = nullptr;
  int64_t ldb2 = 0;
};

// What TMA asks of an operand.
inline bool tma_takes(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
}
inline bool gemm_sm90_takes(const GemmSm90& g) {
  return g.M > 0 && g.N > 0 && g.K > 0 && tma_takes(g.a, g.lda) && tma_takes(g.b, g.ldb) &&
         (g.R == 0 || (tma_takes(g.a2, g.lda2) && tma_takes(g.b2, g.ldb2)));
}

// Where the accumulators of a thread lie: acc[4 j + 2 half + e] is row(half), col(j) + e. Rows >= M and columns >= N
// are padding.
struct GemmFragment {
  int row0, col0;  // of this warpgroup's 64 x tile_n
  int M, N;
  int warpgroup;     // 0 or 1: the upper or the lower half of the block's tile
  int thread;        // 0 … 127
  uint8_t* scratch;  // shared memory of this warpgroup, 16 KiB, aligned to 1024; keeps its contents from tile to tile
  // named_barrier_sync(barrier(), 128) is a barrier among the warpgroup's threads.
  __device__ int barrier() const { return 1 + warpgroup; }
  __device__ int row(int half) const { return row0 + 16 * (thread / 32) + (thread % 32) / 4 + 8 * half; }
  __device__ int col(int j) const { return col0 + 8 * j + 2 * (thread % 4); }
};

// An epilogue:
//   struct Params { … };                                         // goes to the kernel by value
//   static constexpr bool between = false;                       // true: `after_second_pair` is called between the two
// pairs
//   template <int tile_n>                                        // called by all 128 threads of each warpgroup, for
// every tile
//   __device__ static void run(const Params&, float (&acc)[tile_n / 2], const GemmFragment&);
//   template <int tile_n>
//   __device__ static void after_second_pair(const Params&, float (&acc)[tile_n / 2], const GemmFragment&);
//   __device__ static void beside(const Params&, int thread, int threads);  // may be missing: other work, by
// threads of all blocks that would idle; at most 40 registers

namespace gemm_sm90_detail {

constexpr int tile_m = 128, tile_k = 64, threads = 384, scratch_bytes = 16384, band = 16;

template <int tile_n_, Major major_a_, Major major_b_>
struct Tile {
  static constexpr int tile_n = tile_n_;
  static constexpr Major major_a = major_a_, major_b = major_b_;
  static constexpr int a_bytes = tile_m * 128, b_bytes = tile_n * 128, stage_bytes = a_bytes + b_bytes;
  static constexpr int stages = 196608 / stage_bytes;
  static constexpr int shared_bytes = 1024 + stages * stage_bytes + 2 * scratch_bytes + 128;
};

struct Extents {
  int M, N;
  int k_blocks, k2_blocks;  // of 64
  int k2_rest;              // blocks of 16 after them: a rank of 16 costs one step of wgmma, not four
  int units_m, tiles_n;     // a unit is `cluster` tiles, one below the other
  int cluster;              // 1 or 2
};

// Units in bands of rows, so that the blocks of a wave share rows of A and columns of B in L2.
__device__ inline void place(const Extents& e, int unit, int& unit_m, int& tile_n) {
  const int band_units = band / e.cluster, per_band = band_units * e.tiles_n;
  const int b = unit / per_band, rest = unit - b * per_band;
  const int rows = min(band_units, e.units_m - b * band_units);
  tile_n = rest / rows;
  unit_m = b * band_units + rest - tile_n * rows;
}

__device__ inline void tma_load_both(void* shared, const CUtensorMap* map, uint64_t* barrier, int col,
                                     int row) {  // to both blocks of the pair
#ifdef SLUICE_SM90A
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(col), "r"(row),
      "h"(static_cast<uint16_t>(3))
      : "memory");
#endif
}
__device__ inline void cluster_sync() {
#ifdef SLUICE_SM90A
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}
// Kernels of one stream may be launched while the one before still runs; what it wrote is there after this.
__device__ inline void wait_for_previous_kernel() {
#ifdef SLUICE_SM90A
  wait_for_kernels_before();
  launch_dependents();
#endif
}

template <class T, class Epilogue>
__global__ void __launch_bounds__(threads, 1)
    kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
           const __grid_constant__ CUtensorMap map_a2, const __grid_constant__ CUtensorMap map_b2,
           const __grid_constant__ Extents e, const __grid_constant__ typename Epilogue::Params params) {
#ifdef SLUICE_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const shared = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
  uint8_t* const scratch = shared + T::stages * T::stage_bytes;
  auto* const full = reinterpret_cast<uint64_t*>(scratch + 2 * scratch_bytes);
  uint64_t* const empty = full + T::stages;
  const int rank = e.cluster == 1 ? 0 : static_cast<int>(blockIdx.x & 1);
  if (threadIdx.x == 0) {
    for (int s = 0; s < T::stages; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, 8 * e.cluster);  // the consumers' warps, of both blocks of a pair
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (e.cluster > 1) cluster_sync();
  wait_for_previous_kernel();

  const int first = static_cast<int>(blockIdx.x) / e.cluster, step = static_cast<int>(gridDim.x) / e.cluster;
  const int units = e.units_m * e.tiles_n;
  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == T::stages) stage = 0, phase ^= 1;
  };

  if (threadIdx.x < 128) {
    registers_dealloc<40>();
    if (threadIdx.x < 32 && elect_one()) {
      for (int unit = first; unit < units; unit += step) {
        int unit_m, tile;
        place(e, unit, unit_m, tile);
        const int m0 = (unit_m * e.cluster + rank) * tile_m, n0 = tile * T::tile_n;
        const auto load = [&](const CUtensorMap* a, const CUtensorMap* b, int k0) {
          barrier_wait(empty + stage, phase ^ 1);
          uint64_t* const done = full + stage;
          barrier_expect_bytes(done, T::stage_bytes);
          uint8_t *const to_a = shared + stage * T::stage_bytes, *const to_b = to_a + T::a_bytes;
          if constexpr (T::major_a == Major::k) {
            tma_load(to_a, a, done, k0, m0);
          } else {
            for (int i = 0; i < tile_m / 64; ++i) tma_load(to_a + i * 8192, a, done, m0 + i * 64, k0);
          }
          // Of B, pieces in turn by the blocks of a pair, each for both.
          constexpr int pieces = T::major_b == Major::k ? 2 : T::tile_n / 64, width = T::tile_n / pieces;
          for (int i = 0; i < pieces; ++i) {
            if (e.cluster > 1 && i % 2 != rank) continue;
            uint8_t* const to = to_b + i * width * 128;
            const int n = n0 + i * width, col = T::major_b == Major::k ? k0 : n, row = T::major_b == Major::k ? n : k0;
            if (e.cluster > 1) tma_load_both(to, b, done, col, row);
            else tma_load(to, b, done, col, row);
          }
          advance();
        };
        for (int kb = 0; kb < e.k2_blocks; ++kb) load(&map_a2, &map_b2, kb * tile_k);
        for (int kb = 0; kb < e.k2_rest; ++kb) load(&map_a2, &map_b2, e.k2_blocks * tile_k + kb * 16);
        for (int kb = 0; kb < e.k_blocks; ++kb) load(&map_a, &map_b, kb * tile_k);
      }
    }
    if constexpr (requires { &Epilogue::beside; }) {
      constexpr int idle = 96;  // the producer's other warps
      if (threadIdx.x >= 32)
        Epilogue::beside(params, static_cast<int>(blockIdx.x) * idle + static_cast<int>(threadIdx.x) - 32,
                         static_cast<int>(gridDim.x) * idle);
    }
  } else {
    registers_alloc<232>();
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1, lane = static_cast<int>(threadIdx.x) % 32;
    float acc[T::tile_n / 2];
#pragma unroll
    for (float& value : acc) value = 0;
    const bool has_pair2 = e.k2_blocks + e.k2_rest > 0;
    int in_flight = -1;  // the stage that the last group of wgmma reads
    const auto release = [&] {
      if (lane < e.cluster) barrier_arrive_at(empty + in_flight, lane);
    };
    const auto multiply = [&]<int steps>(bool overwrite) {  // `steps` times 16 k of a stage
      barrier_wait(full + stage, phase);
      const uint32_t at_a = shared_address(shared) + stage * T::stage_bytes + warpgroup * 8192;
      const uint32_t at_b = shared_address(shared) + stage * T::stage_bytes + T::a_bytes;
      const uint64_t a = T::major_a == Major::k ? descriptor_k(at_a) : descriptor_mn(at_a, 8192);
      const uint64_t b = T::major_b == Major::k ? descriptor_k(at_b) : descriptor_mn(at_b, 8192);
      constexpr uint64_t step_a = (T::major_a == Major::k ? 32 : 2048) / 16,
                         step_b = (T::major_b == Major::k ? 32 : 2048) / 16;
      wgmma_fence_registers(acc);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < steps; ++k) {
        wgmma_ss<T::tile_n, T::major_a, T::major_b>(acc, a + k * step_a, b + k * step_b, overwrite && k == 0 ? 0 : 1);
      }
      wgmma_commit();
      wgmma_fence_registers(acc);
      if (in_flight >= 0) {
        wgmma_wait<1>();
        release();
      }
      in_flight = stage;
      advance();
    };
    const auto drain = [&] {
      wgmma_wait<0>();
      wgmma_fence_registers(acc);
      if (in_flight >= 0) release();
      in_flight = -1;
    };
    GemmFragment fragment{
        0, 0, e.M, e.N, warpgroup, static_cast<int>(threadIdx.x) % 128, scratch + warpgroup * scratch_bytes};
    for (int unit = first; unit < units; unit += step) {
      int unit_m, tile;
      place(e, unit, unit_m, tile);
      fragment.row0 = (unit_m * e.cluster + rank) * tile_m + warpgroup * 64;
      fragment.col0 = tile * T::tile_n;
      for (int kb = 0; kb < e.k2_blocks; ++kb) multiply.template operator()<4>(kb == 0);
      for (int kb = 0; kb < e.k2_rest; ++kb) multiply.template operator()<1>(kb == 0 && e.k2_blocks == 0);
      if constexpr (Epilogue::between) {
        drain();
        if (has_pair2) Epilogue::template after_second_pair<T::tile_n>(params, acc, fragment);
      }
      for (int kb = 0; kb < e.k_blocks; ++kb) multiply.template operator()<4>(kb == 0 && !has_pair2);
      drain();
      Epilogue::template run<T::tile_n>(params, acc, fragment);
    }
  }
  if (e.cluster > 1) cluster_sync();  // the other block may still write here
#endif
}

// Clusters of `cluster` blocks, begun while the kernel before ends (wait_for_previous_kernel).
inline std::array<cudaLaunchAttribute, 2> launch_attributes(int cluster) {
  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = static_cast<unsigned>(cluster);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  return attributes;
}

template <class T, class Epilogue>
void launch(const DeviceFacts& facts, const GemmSm90& g, int cluster, const typename Epilogue::Params& params,
            const char* what) {
  const auto map = [](const void* data, int64_t extent, int64_t k, int64_t stride, Major major, int box) {
    return major == Major::k ? tensor_map(data, extent, k, stride, box) : tensor_map(data, k, extent, stride, 64);
  };
  const CUtensorMap a = map(g.a, g.M, g.K, g.lda, T::major_a, tile_m),
                    b = map(g.b, g.N, g.K, g.ldb, T::major_b, T::tile_n / 2);
  const CUtensorMap a2 = g.R > 0 ? map(g.a2, g.M, g.R, g.lda2, T::major_a, tile_m) : a,
                    b2 = g.R > 0 ? map(g.b2, g.N, g.R, g.ldb2, T::major_b, T::tile_n / 2) : b;
  const int64_t rest = g.R % tile_k <= 32 ? g.R % tile_k : 0;
  const Extents e{.M = static_cast<int>(g.M),
                  .N = static_cast<int>(g.N),
                  .k_blocks = static_cast<int>(ceil_div(g.K, tile_k)),
                  .k2_blocks = static_cast<int>(ceil_div(g.R - rest, tile_k)),
                  .k2_rest = static_cast<int>(ceil_div(rest, 16)),
                  .units_m = static_cast<int>(ceil_div(g.M, tile_m * cluster)),
                  .tiles_n = static_cast<int>(ceil_div(g.N, T::tile_n)),
                  .cluster = cluster};
  static std::atomic<uint64_t> prepared{0};  // a bit for each device
  const uint64_t bit = uint64_t{1} << facts.index;
  if ((prepared.load() & bit) == 0) {
    check_cuda(cudaFuncSetAttribute(kernel<T, Epilogue>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::shared_bytes),
               what);
    prepared.fetch_or(bit);
  }
  const int slots = facts.num_multiprocessors / cluster;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(slots, e.units_m * e.tiles_n) * cluster));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = T::shared_bytes;
  config.stream = facts.stream;
  const std::array attributes = launch_attributes(cluster);
  config.attrs = const_cast<cudaLaunchAttribute*>(attributes.data());
  config.numAttrs = attributes.size();
  check_cuda(cudaLaunchKernelEx(&config, kernel<T, Epilogue>, a, b, a2, b2, e, params), what);
}

}  // namespace gemm_sm90_detail

// C of `g`, which gemm_sm90_takes, on the context's stream. `only_tile_n` 128, 192 or 256: that tile alone is compiled.
template <Major major_a, Major major_b, class Epilogue, int only_tile_n = 0>
void gemm_sm90(const Context& ctx, const GemmSm90& g, const typename Epilogue::Params& params, const char* what) {
  namespace detail = gemm_sm90_detail;
  const DeviceFacts& facts = facts_of(ctx);
  const int64_t tiles_m = ceil_div(g.M, detail::tile_m);
  const int cluster = tiles_m > 1 && (tiles_m % 2 == 0 || tiles_m >= 8) ? 2 : 1;
  // In units of a 128 x 256 tile's time; narrow tiles load more for each product.
  const auto time = [&](int64_t tile_n) {
    const int64_t units = ceil_div(tiles_m, cluster) * ceil_div(g.N, tile_n);
    return static_cast<double>(ceil_div(units, facts.num_multiprocessors / cluster)) * (tile_n == 256   ? 1.0
                                                                                        : tile_n == 192 ? 0.77
                                                                                                        : 0.54);
  };
  const auto run = [&]<int tile_n>() {
    detail::launch<detail::Tile<tile_n, major_a, major_b>, Epilogue>(facts, g, cluster, params, what);
  };
  if constexpr (only_tile_n != 0) {
    run.template operator()<only_tile_n>();
  } else if (time(256) <= std::min(time(192), time(128))) {
    run.template operator()<256>();
  } else if (time(192) <= time(128)) {
    run.template operator()<192>();
  } else {
    run.template operator()<128>();
  }
}

// y = [col_scale *] acc + bias [+ residual], or y += that; rounded once.
struct LinearEpilogue {
  static constexpr bool between = false;
  struct Params {
    void* y = nullptr;  // [M, N], rows ldy elements apart
    int64_t ldy = 0;
    DType dtype = DType::bf16;                // of y
    bool add = false;                         // to y
    const float* col_scale = nullptr;         // [N]
    const float* bias = nullptr;              // [N]
    const __nv_bfloat16* residual = nullptr;  // [M, N], rows ldr apart; may be y. With y bf16 only
    int64_t ldr = 0;
    const uint32_t* keep =
        nullptr;  // [M, keep_words], bit c % 32 of word c / 32: where the second pair's product stays (MaskedEpilogue)
    int64_t keep_words = 0;
  };

  template <int tile_n>
  __device__ static void run(const Params& p, float (&acc)[tile_n / 2], const GemmFragment& t) {
    if (t.row0 >= t.M) return;
    scale_and_shift<tile_n>(p, acc, t);
    if (p.dtype == DType::f32) store_f32<tile_n>(p, acc, t);
    else store_bf16<tile_n>(p, acc, t);
  }

 private:
  template <int tile_n>
  __device__ static void scale_and_shift(const Params& p, float (&acc)[tile_n / 2], const GemmFragment& t) {
    if (p.col_scale == nullptr && p.bias == nullptr) return;
#pragma unroll
    for (int j = 0; j < tile_n / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int col = t.col(j) + e;
        const bool inside = col < t.N;
        const float scale = p.col_scale != nullptr && inside ? p.col_scale[col] : 1.0F;
        const float shift = p.bias != nullptr && inside ? p.bias[col] : 0.0F;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          acc[4 * j + 2 * half + e] = __fadd_rn(__fmul_rn(acc[4 * j + 2 * half + e], scale), shift);
      }
    }
  }

  template <int tile_n>
  __device__ static void store_f32(const Params& p, float (&acc)[tile_n / 2], const GemmFragment& t) {
    auto* const y = static_cast<float*>(p.y);
    const bool pairs = p.ldy % 2 == 0 && t.N % 2 == 0 && reinterpret_cast<uintptr_t>(y) % 8 == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = t.row(half);
      if (row >= t.M) continue;
      float* const to = y + row * p.ldy;
#pragma unroll
      for (int j = 0; j < tile_n / 8; ++j) {
        const int col = t.col(j);
        const float* const d = acc + 4 * j + 2 * half;
        if (pairs) {
          if (col >= t.N) continue;
          float2 v = make_float2(d[0], d[1]);
          if (p.add) {
            const float2 old = *reinterpret_cast<const float2*>(to + col);
            v = make_float2(old.x + v.x, old.y + v.y);
          }
          *reinterpret_cast<float2*>(to + col) = v;
        } else {
          if (col < t.N) to[col] = p.add ? to[col] + d[0] : d[0];
          if (col + 1 < t.N) to[col + 1] = p.add ? to[col + 1] + d[1] : d[1];
        }
      }
    }
  }

  // Each warp turns its 16 rows through its own shared memory, 64 columns at a time, into rows of 128 bytes.
  template <int tile_n>
  __device__ static void store_bf16(const Params& p, float (&acc)[tile_n / 2], const GemmFragment& t) {
    const int warp = t.thread / 32, lane = t.thread % 32;
    auto* const y = static_cast<__nv_bfloat16*>(p.y);
    const __nv_bfloat16* const residual = p.add ? y : p.residual;
    const int64_t ldr = p.add ? p.ldy : p.ldr;
    const bool wide = t.N % 8 == 0 && tma_aligned(y, p.ldy) && (residual == nullptr || tma_aligned(residual, ldr));
    const int warp_row = t.row0 + 16 * warp, line = lane / 8, chunk = lane % 8;  // line of 4, 16 bytes of 128
    // For stmatrix and ldmatrix: which row and 16 bytes this lane addresses.
    const int matrix_row = lane % 8 + 8 * (lane / 8 % 2), matrix_chunk = lane / 16;
    __syncwarp();
    uint4 old[4];
    const auto load_residual = [&](int pass) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp_row + 4 * i + line, col = t.col0 + 64 * pass + 8 * chunk;
        old[i] = load_8(residual + row * ldr + col, row < t.M ? t.N - col : 0, wide);
      }
    };
    if (residual != nullptr) load_residual(0);
#pragma unroll
    for (int pass = 0; pass < tile_n / 64; ++pass) {
      if (t.col0 + 64 * pass >= t.N) break;
      uint8_t* const slab = t.scratch + warp * 4096 + pass % 2 * 2048;
      if (residual != nullptr) {
#pragma unroll
        for (int i = 0; i < 4; ++i) *reinterpret_cast<uint4*>(slab + at(4 * i + line, chunk)) = old[i];
        __syncwarp();
        if (pass + 1 < tile_n / 64) load_residual(pass + 1);
      }
#pragma unroll
      for (int h = 0; h < 4; ++h) {  // 16 columns: blocks j and j + 1
        const uint32_t address = shared_address(slab + at(matrix_row, 2 * h + matrix_chunk));
        float* const d = acc + 4 * (8 * pass + 2 * h);
        if (residual != nullptr) {
          uint32_t r[4];
          ldmatrix_x4(address, r);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            d[2 * i] += __uint_as_float(r[i] << 16);
            d[2 * i + 1] += __uint_as_float(r[i] & 0xFFFF0000U);
          }
        }
        stmatrix_x4(address, pack_bf16(d[0], d[1]), pack_bf16(d[2], d[3]), pack_bf16(d[4], d[5]),
                    pack_bf16(d[6], d[7]));
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = warp_row + 4 * i + line, col = t.col0 + 64 * pass + 8 * chunk;
        const uint4 v = *reinterpret_cast<const uint4*>(slab + at(4 * i + line, chunk));
        store_8(y + row * p.ldy + col, v, row < t.M ? t.N - col : 0, wide);
      }
    }
  }

  __device__ static bool tma_aligned(const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
  }
  __device__ static int at(int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }
  // Eight elements, of which `count` exist.
  __device__ static uint4 load_8(const __nv_bfloat16* from, int count, bool wide) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (wide) {
      if (count > 0) v = *reinterpret_cast<const uint4*>(from);
      return v;
    }
    const auto half = [&](int i) {
      return i < count ? static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(from + i)) : 0U;
    };
    v.x = half(0) | half(1) << 16;
    v.y = half(2) | half(3) << 16;
    v.z = half(4) | half(5) << 16;
    v.w = half(6) | half(7) << 16;
    return v;
  }
  __device__ static void store_8(__nv_bfloat16* to, uint4 v, int count, bool wide) {
    if (wide) {
      if (count > 0) *reinterpret_cast<uint4*>(to) = v;
      return;
    }
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i < count) *reinterpret_cast<uint16_t*>(to + i) = static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
    }
  }
};

// The same, where the second pair's product is masked (dropout in the backward).
struct MaskedEpilogue : LinearEpilogue {
  static constexpr bool between = true;
  template <int tile_n>
  __device__ static void after_second_pair(const Params& p, float (&acc)[tile_n / 2], const GemmFragment& t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = t.row(half);
#pragma unroll
      for (int w = 0; w < tile_n / 32; ++w) {
        const int col = t.col0 + 32 * w;
        const uint32_t word =
            (row < t.M && col < t.N ? p.keep[row * p.keep_words + col / 32] : 0U) >> (2 * (t.thread % 4));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float* const d = acc + 4 * (4 * w + j) + 2 * half;
          if ((word >> (8 * j) & 1U) == 0) d[0] = 0;
          if ((word >> (8 * j + 1) & 1U) == 0) d[1] = 0;
        }
      }
    }
  }
};

}  // namespace sluice::cuda
