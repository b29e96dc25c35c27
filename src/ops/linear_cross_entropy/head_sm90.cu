#include "ops/linear_cross_entropy/head_sm90.cuh"

#include <algorithm>
#include <atomic>

#include "ops/gemm/gemm_sm90.cuh"

namespace sluice::cuda {

namespace head_sm90_detail {

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The soft cap as the epilogues apply it. Logits that are masked are -inf, whatever the cap: x[v] = l[v] log2 e keeps a
// trace of z, which only infinities and NaN feel.
struct Cap {
  float to_exponent;  // z to 2 z / softcap log2 e
  float to_x;         // tanh to l log2 e
};
__device__ inline Cap cap_of(float softcap) { return {2.0F * log2_e / softcap, softcap * log2_e}; }

// tanh(z / softcap) = 1 - 2 / (1 + 2^(z to_exponent)), four by one reciprocal: 2^30 is far beyond where tanh is 1 in
// float32, and the product of four stays finite.
__device__ inline void tanh_of_four(const float* z, float to_exponent, float (&t)[4]) {
  float a[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = 1.0F + exp2_approx(fminf(z[i] * to_exponent, 30.0F));
  const float low = a[0] * a[1], high = a[2] * a[3], r = -2.0F * reciprocal_approx(low * high);
  const float of_low = r * high, of_high = r * low;
  t[0] = fmaf(of_low, a[1], 1.0F);
  t[1] = fmaf(of_low, a[0], 1.0F);
  t[2] = fmaf(of_high, a[3], 1.0F);
  t[3] = fmaf(of_high, a[2], 1.0F);
}
__device__ inline float capped_x(float z, float t, float to_x, float shift) {
  return fmaf(t, to_x, fmaf(z, 1e-30F, shift));
}

// Sums and maxima over the four lanes that hold a row.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffU, x, 1);
  return x + __shfl_xor_sync(0xffffffffU, x, 2);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffU, x, 2));
}

// What both epilogues of h W^T do with their 64 x 256 logits.
struct LogitsEpilogue {
  static constexpr bool between = false;
  using Params = HeadTiles;
  static constexpr int values = head_tile / 2;

  __device__ static void mask_columns(float (&z)[values], const GemmFragment& t) {
    if (t.col0 + head_tile <= t.N) return;
#pragma unroll
    for (int i = 0; i < values; ++i)
      if (t.col(i / 4) + i % 2 >= t.N) z[i] = -INFINITY;
  }

  // The targets of this thread's two rows, as columns of the part; -1 for rows that do not exist.
  __device__ static void load_targets(const Params& p, const GemmFragment& t, int (&target)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = t.row(half);
      const int64_t column = row < p.rows ? p.targets[row] - p.begin : -1;
      target[half] = column >= t.col0 && column < t.col0 + head_tile && column < t.N ? static_cast<int>(column) : -1;
    }
  }
  // Takes the targets' logits out of z, for the threads that hold them; found[half] says whether.
  __device__ static void take_targets(float (&z)[values], const GemmFragment& t, const int (&target)[2],
                                      float (&of_target)[2], bool (&found)[2]) {
    found[0] = found[1] = false;
    if (!__any_sync(0xffffffffU, target[0] >= 0 || target[1] >= 0)) return;
#pragma unroll
    for (int i = 0; i < values; ++i) {
      const int half = i / 2 % 2;
      if (t.col(i / 4) + i % 2 != target[half]) continue;
      of_target[half] = z[i];
      found[half] = true;
      z[i] = -INFINITY;
    }
  }

  // 64 columns of the warp's 16 rows, packed as pairs, to P by rows of 128 bytes.
  __device__ static void store_slab(const Params& p, const GemmFragment& t, int slab, const uint32_t (&pairs)[16]) {
    const int warp = t.thread / 32, lane = t.thread % 32;
    const auto at = [](int row, int chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); };
    uint8_t* const room = t.scratch + warp * 4096 + slab % 2 * 2048;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const uint32_t address = shared_address(room + at(lane % 8 + 8 * (lane / 8 % 2), 2 * h + lane / 16));
      stmatrix_x4(address, pairs[4 * h], pairs[4 * h + 1], pairs[4 * h + 2], pairs[4 * h + 3]);
    }
    __syncwarp();
    auto* const to = static_cast<__nv_bfloat16*>(p.p) + t.col0 + 64 * slab + 8 * (lane % 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int line = 4 * i + lane / 8, row = t.row0 + 16 * warp + line;
      const uint4 v = *reinterpret_cast<const uint4*>(room + at(line, lane % 8));
      if (row < p.rows) *reinterpret_cast<uint4*>(to + row * p.p_stride) = v;
    }
  }
};

// Forward: sums, and P when it is wanted. The numbers do not depend on whether it is.
struct ForwardEpilogue : LogitsEpilogue {
  template <int tile_n>
  __device__ static void run(const Params& p, float (&z)[tile_n / 2], const GemmFragment& t) {
    static_assert(tile_n == head_tile);
    if (t.row0 >= t.M) return;
    mask_columns(z, t);
    if (p.softcap > 0) reduce<true>(p, z, t);
    else reduce<false>(p, z, t);
  }

 private:
  template <bool capped>
  __device__ static void reduce(const Params& p, float (&z)[values], const GemmFragment& t) {
    const Cap cap = capped ? cap_of(p.softcap) : Cap{};
    float reference[2] = {0, 0}, largest[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = -INFINITY;
#pragma unroll
      for (int j = 0; j < values / 4; ++j) most = fmaxf(most, fmaxf(z[4 * j + 2 * half], z[4 * j + 2 * half + 1]));
      largest[half] = quad_max(most);
      // Under a low cap no logit is large enough for another reference.
      if (!(capped && cap.to_x <= 64.0F))
        reference[half] = reference_of(capped ? p.softcap * tanhf(largest[half] / p.softcap) : largest[half]);
    }
    int target[2];
    float of_target[2];
    bool found[2];
    load_targets(p, t, target);
    take_targets(z, t, target, of_target, found);
    float sum[2] = {0, 0}, of_p[2] = {0, 0};
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
      uint32_t pairs[16];
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // four columns of one row
        const int at = 32 * slab + 8 * (i / 2) + 2 * (i % 2), half = i % 2;
        const float d[4] = {z[at], z[at + 1], z[at + 4], z[at + 5]}, shift = -reference[half];
        float tanh_z[4] = {0, 0, 0, 0}, e[4];
        if constexpr (capped) tanh_of_four(d, cap.to_exponent, tanh_z);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          e[k] = exp2_approx(capped ? capped_x(d[k], tanh_z[k], cap.to_x, shift) : fmaf(d[k], log2_e, shift));
          sum[half] = __fadd_rn(sum[half], e[k]);
          if constexpr (capped) {
            e[k] = __fmul_rn(e[k], fmaf(-tanh_z[k], tanh_z[k], 1.0F));
            of_p[half] = __fadd_rn(of_p[half], e[k]);
          }
        }
        pairs[4 * (i / 2) + half] = pack_bf16(e[0], e[1]);
        pairs[4 * (i / 2) + 2 + half] = pack_bf16(e[2], e[3]);
      }
      if (p.p != nullptr) store_slab(p, t, slab, pairs);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = quad_sum(sum[half]), total_of_p = capped ? quad_sum(of_p[half]) : total;
      const int row = t.row(half);
      if (row >= p.rows) continue;
      if (t.thread % 4 == 0) {
        p.tiles[static_cast<int64_t>(row) * p.tile_stride + t.col0 / head_tile] = {total, reference[half], total_of_p,
                                                                                   largest[half]};
      }
      if (found[half]) p.at_target[row] = of_target[half];
    }
  }
};

// Backward by blocks: coefficients g p dl/dz of all but the target, whose own goes to `at_target`.
struct BackwardEpilogue : LogitsEpilogue {
  template <int tile_n>
  __device__ static void run(const Params& p, float (&z)[tile_n / 2], const GemmFragment& t) {
    static_assert(tile_n == head_tile);
    if (t.row0 >= t.M) return;
    mask_columns(z, t);
    int target[2];
    float of_target[2];
    bool found[2];
    load_targets(p, t, target);
    take_targets(z, t, target, of_target, found);
    float lse[2] = {0, 0}, g[2] = {0, 0}, shift[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = t.row(half);
      if (row < p.rows) lse[half] = p.lse[row], g[half] = p.g[row];
      shift[half] = -lse[half] * log2_e;
      if (!found[half]) continue;
      const float tanh_z = p.softcap > 0 ? tanhf(of_target[half] / p.softcap) : 0.0F;
      const float l = p.softcap > 0 ? p.softcap * tanh_z : of_target[half];
      of_target[half] = coefficient_at_target(l, lse[half], g[half], fmaf(-tanh_z, tanh_z, 1.0F));
    }
    if (p.softcap > 0) to_coefficients<true>(z, cap_of(p.softcap), shift, g);
    else to_coefficients<false>(z, Cap{}, shift, g);
    bool skipped[2] = {false, false};
    if (p.skip_below > 0) skip(p, z, t, of_target, found, skipped);
#pragma unroll
    for (int slab = 0; slab < 4; ++slab) {
      uint32_t pairs[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float* const d = z + 32 * slab + 2 * i;
        pairs[i] = skipped[i % 2] ? 0U : pack_bf16(d[0], d[1]);
      }
      store_slab(p, t, slab, pairs);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (found[half]) p.at_target[t.row(half)] = skipped[half] ? 0.0F : of_target[half];
  }

 private:
  template <bool capped>
  __device__ static void to_coefficients(float (&z)[values], const Cap& cap, const float (&shift)[2],
                                         const float (&g)[2]) {
#pragma unroll
    for (int i = 0; i < values / 4; ++i) {  // four columns of one row
      const int at = 8 * (i / 2) + 2 * (i % 2), half = i % 2;
      float d[4] = {z[at], z[at + 1], z[at + 4], z[at + 5]}, tanh_z[4] = {0, 0, 0, 0};
      if constexpr (capped) tanh_of_four(d, cap.to_exponent, tanh_z);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float x = capped ? capped_x(d[k], tanh_z[k], cap.to_x, shift[half]) : fmaf(d[k], log2_e, shift[half]);
        d[k] = __fmul_rn(exp2_approx(x), g[half]);
        if constexpr (capped) d[k] = __fmul_rn(d[k], fmaf(-tanh_z[k], tanh_z[k], 1.0F));
      }
      z[at] = d[0], z[at + 1] = d[1], z[at + 4] = d[2], z[at + 5] = d[3];
    }
  }
  __device__ static void skip(const Params& p, const float (&z)[values], const GemmFragment& t,
                              const float (&of_target)[2], const bool (&found)[2], bool (&skipped)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = found[half] ? fabsf(of_target[half]) : 0.0F, largest = sum;
#pragma unroll
      for (int j = 0; j < values / 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float k = fabsf(z[4 * j + 2 * half + e]);
          sum += k;
          largest = fmaxf(largest, k);
        }
      sum = quad_sum(sum);
      skipped[half] = quad_max(largest) < p.skip_below && sum == sum;  // NaN is not skipped
      const int row = t.row(half);
      if (t.thread % 4 == 0 && row < p.rows) {
        p.tiles[static_cast<int64_t>(row) * p.tile_stride + t.col0 / head_tile] = {sum, skipped[half] ? sum : 0.0F,
                                                                                   0.0F, 0.0F};
      }
    }
  }
};

// acc [rows, C] += P W, the vocabulary in blocks. As gemm_sm90's kernel (see there), with two differences: the product of
// each block of the vocabulary is a work item of its own, so that few rows fill the device, and it is added to what the
// blocks before have left, in their order: a tile's turn says how many have. Items are taken in order of blocks, so the
// item that a block waits for was started before it.
namespace sm90 = gemm_sm90_detail;
inline constexpr int steps_per_block = head_block / sm90::tile_k;

template <int tile_n_>
struct GradientTile {
  static constexpr int tile_n = tile_n_,
                       slabs = (tile_n + 63) / 64;  // of 64 columns; what is past tile_n is loaded for nothing
  static constexpr int a_bytes = sm90::tile_m * 128, b_bytes = slabs * 8192, stage_bytes = a_bytes + b_bytes;
  static constexpr int stages = 212992 / stage_bytes;
  static constexpr int shared_bytes = 1024 + stages * stage_bytes + 128;
};

struct GradientArgs {
  sm90::Extents e;  // k_blocks: of all columns
  int blocks;
  float* acc;
  int64_t C;
  const BlockScale* scales;
  bool first;
  int* turns;
};

__device__ inline int load_acquire(const int* from) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline void store_release(int* to, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

template <int tile_n>
__device__ void add_to_gradient(const GradientArgs& a, int block, float (&acc)[tile_n / 2], const GemmFragment& t,
                                int* turn) {
  if (a.blocks > 1) {
    if (t.thread == 0) {
      while (load_acquire(turn) != block) __nanosleep(100);
    }
    named_barrier_sync(t.barrier(), 128);
  }
  if (t.row0 < t.M) {
    const bool first = a.first && block == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = t.row(half);
      if (row >= t.M) continue;
      const BlockScale scale =
          a.scales != nullptr ? a.scales[static_cast<int64_t>(block) * t.M + row] : BlockScale{1.0F, 1.0F};
      float* const to = a.acc + row * a.C;
      constexpr int group = 8;  // accesses in flight
#pragma unroll
      for (int j0 = 0; j0 < tile_n / 8; j0 += group) {
        float2 old[group];
#pragma unroll
        for (int j = 0; j < group && j0 + j < tile_n / 8; ++j) {
          const int col = t.col(j0 + j);
          old[j] = !first && col < t.N ? __ldcg(reinterpret_cast<const float2*>(to + col)) : make_float2(0, 0);
        }
#pragma unroll
        for (int j = 0; j < group && j0 + j < tile_n / 8; ++j) {
          const int col = t.col(j0 + j);
          const float* const d = acc + 4 * (j0 + j) + 2 * half;
          if (col >= t.N) continue;
          __stcg(reinterpret_cast<float2*>(to + col), make_float2(fmaf(old[j].x, scale.of_old, d[0] * scale.of_new),
                                                                  fmaf(old[j].y, scale.of_old, d[1] * scale.of_new)));
        }
      }
    }
  }
  if (a.blocks > 1) {
    __threadfence();
    named_barrier_sync(t.barrier(), 128);
    if (t.thread == 0) store_release(turn, block + 1);
  }
}

template <class T>
__global__ void __launch_bounds__(sm90::threads, 1)
    gradient_kernel(const __grid_constant__ CUtensorMap map_p, const __grid_constant__ CUtensorMap map_w,
                    const __grid_constant__ GradientArgs a) {
#ifdef SLUICE_SM90A
  extern __shared__ uint8_t shared_raw[];
  uint8_t* const shared = shared_raw + (1024 - shared_address(shared_raw) % 1024) % 1024;
  auto* const full = reinterpret_cast<uint64_t*>(shared + T::stages * T::stage_bytes);
  uint64_t* const empty = full + T::stages;
  const sm90::Extents& e = a.e;
  const int rank = e.cluster == 1 ? 0 : static_cast<int>(blockIdx.x & 1);
  if (threadIdx.x == 0) {
    for (int s = 0; s < T::stages; ++s) {
      barrier_init(full + s, 1);
      barrier_init(empty + s, 8 * e.cluster);  // the consumers' warps, of both blocks of a pair
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (e.cluster > 1) sm90::cluster_sync();

  const int first = static_cast<int>(blockIdx.x) / e.cluster, step = static_cast<int>(gridDim.x) / e.cluster;
  const int units_per_block = e.units_m * e.tiles_n, units = units_per_block * a.blocks;
  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == T::stages) stage = 0, phase ^= 1;
  };

  if (threadIdx.x < 128) {
    registers_dealloc<40>();
    if (threadIdx.x < 32 && elect_one()) {
      for (int unit = first; unit < units; unit += step) {
        const int block = unit / units_per_block;
        int unit_m, tile;
        sm90::place(e, unit - block * units_per_block, unit_m, tile);
        const int m0 = (unit_m * e.cluster + rank) * sm90::tile_m, n0 = tile * T::tile_n;
        const int k_begin = block * steps_per_block, k_end = min(k_begin + steps_per_block, e.k_blocks);
        for (int kb = k_begin; kb < k_end; ++kb) {
          barrier_wait(empty + stage, phase ^ 1);
          uint64_t* const done = full + stage;
          barrier_expect_bytes(done, T::stage_bytes);
          uint8_t *const to_p = shared + stage * T::stage_bytes, *const to_w = to_p + T::a_bytes;
          tma_load(to_p, &map_p, done, kb * sm90::tile_k, m0);
          for (int slab = 0; slab < T::slabs; ++slab) {
            if (e.cluster == 1) tma_load(to_w + slab * 8192, &map_w, done, n0 + slab * 64, kb * sm90::tile_k);
            else if (slab % 2 == rank)
              sm90::tma_load_both(to_w + slab * 8192, &map_w, done, n0 + slab * 64, kb * sm90::tile_k);
          }
          advance();
        }
      }
    }
  } else {
    registers_alloc<232>();
    const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1, lane = static_cast<int>(threadIdx.x) % 32;
    float acc[T::tile_n / 2];
#pragma unroll
    for (float& value : acc) value = 0;
    GemmFragment fragment{0, 0, e.M, e.N, warpgroup, static_cast<int>(threadIdx.x) % 128, nullptr};
    for (int unit = first; unit < units; unit += step) {
      const int block = unit / units_per_block;
      int unit_m, tile;
      sm90::place(e, unit - block * units_per_block, unit_m, tile);
      fragment.row0 = (unit_m * e.cluster + rank) * sm90::tile_m + warpgroup * 64;
      fragment.col0 = tile * T::tile_n;
      const int k_steps = min(steps_per_block, e.k_blocks - block * steps_per_block);
      int in_flight = -1;  // the stage that the last group of wgmma reads
      const auto release = [&] {
        if (lane < e.cluster) barrier_arrive_at(empty + in_flight, lane);
      };
      for (int kb = 0; kb < k_steps; ++kb) {
        barrier_wait(full + stage, phase);
        const uint32_t at_p = shared_address(shared) + stage * T::stage_bytes;
        const uint64_t p = descriptor_k(at_p + warpgroup * 8192), w = descriptor_mn(at_p + T::a_bytes, 8192);
        wgmma_fence_registers(acc);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          wgmma_ss<T::tile_n, Major::k, Major::mn>(acc, p + k * 2, w + k * 128, kb == 0 && k == 0 ? 0 : 1);
        }
        wgmma_commit();
        wgmma_fence_registers(acc);
        if (in_flight >= 0) {
          wgmma_wait<1>();
          release();
        }
        in_flight = stage;
        advance();
      }
      wgmma_wait<0>();
      wgmma_fence_registers(acc);
      release();
      int* const turn = a.turns + (fragment.row0 / 64 * e.tiles_n + tile);
      add_to_gradient<T::tile_n>(a, block, acc, fragment, turn);
    }
  }
  if (e.cluster > 1) sm90::cluster_sync();  // the other block may still write here
#endif
}

template <int tile_n>
void launch_gradient(const DeviceFacts& facts, const HeadGradientSm90& args, int cluster) {
  using T = GradientTile<tile_n>;
  const char* const what = "linear_cross_entropy: gradient";
  const CUtensorMap p = tensor_map(args.p, args.rows, args.columns, args.p_stride, sm90::tile_m),
                    w = tensor_map(args.w, args.columns, args.C, args.C, 64);
  const GradientArgs a{.e = {.M = args.rows,
                             .N = static_cast<int>(args.C),
                             .k_blocks = static_cast<int>(ceil_div(args.columns, sm90::tile_k)),
                             .units_m = static_cast<int>(ceil_div(args.rows, sm90::tile_m * cluster)),
                             .tiles_n = static_cast<int>(ceil_div(args.C, tile_n)),
                             .cluster = cluster},
                       .blocks = static_cast<int>(ceil_div(args.columns, head_block)),
                       .acc = args.acc,
                       .C = args.C,
                       .scales = args.scales,
                       .first = args.first,
                       .turns = args.turns};
  static std::atomic<uint64_t> prepared{0};  // a bit for each device
  const uint64_t bit = uint64_t{1} << facts.index;
  if ((prepared.load() & bit) == 0) {
    check_cuda(cudaFuncSetAttribute(gradient_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::shared_bytes),
               what);
    prepared.fetch_or(bit);
  }
  const int slots = facts.num_multiprocessors / cluster, units = a.e.units_m * a.e.tiles_n * a.blocks;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(slots, units) * cluster));
  config.blockDim = dim3(sm90::threads);
  config.dynamicSmemBytes = T::shared_bytes;
  config.stream = facts.stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (a.blocks > 1) {  // blocks wait for one another: all must be there
    int at_once = 0;
    check_cuda(cudaOccupancyMaxActiveClusters(&at_once, gradient_kernel<T>, &config), what);
    SLUICE_ASSERT(at_once > 0);
    config.gridDim.x = static_cast<unsigned>(std::min(std::min(slots, at_once), units) * cluster);
    const int64_t turns = head_turns(args.rows, args.C);
    check_cuda(cudaMemsetAsync(args.turns, 0, static_cast<size_t>(turns) * sizeof(int), facts.stream), what);
  }
  check_cuda(cudaLaunchKernelEx(&config, gradient_kernel<T>, p, w, a), what);
}

inline int cluster_of(int64_t rows) {
  const int64_t tiles = ceil_div(rows, sm90::tile_m);
  return tiles > 1 && (tiles % 2 == 0 || tiles >= 8) ? 2 : 1;
}

}  // namespace head_sm90_detail

using namespace head_sm90_detail;

void head_logits_sm90(const Context& ctx, const HeadLogitsSm90& args) {
  const GemmSm90 g{
      .M = args.out.rows, .N = args.out.columns, .K = args.C, .a = args.h, .lda = args.C, .b = args.w, .ldb = args.C};
  if (args.backward)
    gemm_sm90<Major::k, Major::k, BackwardEpilogue, head_tile>(ctx, g, args.out, "linear_cross_entropy: coefficients");
  else gemm_sm90<Major::k, Major::k, ForwardEpilogue, head_tile>(ctx, g, args.out, "linear_cross_entropy: logits");
}

int64_t head_turns(int64_t rows, int64_t C) { return (ceil_div(rows, 2 * sm90::tile_m) * 4) * ceil_div(C, 160); }

void head_gradient_sm90(const Context& ctx, const HeadGradientSm90& args) {
  const DeviceFacts& facts = facts_of(ctx);
  const int cluster = cluster_of(args.rows);
  // In hundredths of the widest tile's time, which narrow ones miss by what they load for each product.
  const auto time = [&](int tile_n) {
    const int64_t units =
        ceil_div(args.rows, sm90::tile_m * cluster) * ceil_div(args.C, tile_n) * ceil_div(args.columns, head_block);
    return ceil_div(units, facts.num_multiprocessors / cluster) * (tile_n == 256 ? 100 : tile_n == 192 ? 90 : 82);
  };
  if (time(256) <= std::min(time(192), time(160))) launch_gradient<256>(facts, args, cluster);
  else if (time(192) <= time(160)) launch_gradient<192>(facts, args, cluster);
  else launch_gradient<160>(facts, args, cluster);
}

}  // namespace sluice::cuda
