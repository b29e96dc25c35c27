#include "ops/linear/linear_adapter.cuh"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <type_traits>

#include "ops/common/sm90.cuh"
#include "ops/common/write.h"
#include "ops/dora/dora.h"
#include "ops/gemm/gemm_cublas.cuh"
#include "ops/linear/linear_pass_sm90.cuh"

namespace sluice::cuda {

namespace {

constexpr int threads = 256;

// A kernel that begins with wait_for_previous_kernel.
template <class... Parameters, class... Arguments>
void launch(const Context& ctx, void (*kernel)(Parameters...), unsigned blocks, const char* what,
            Arguments... arguments) {
  const DeviceFacts& facts = facts_of(ctx);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = facts.stream;
  const std::array attributes = gemm_sm90_detail::launch_attributes(1);
  config.attrs = const_cast<cudaLaunchAttribute*>(attributes.data());
  config.numAttrs = facts.hopper() ? attributes.size() : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), what);
}

unsigned blocks_for(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(items, threads), 1, 1 << 20));
}

struct Prepare {
  int64_t R, padded, in, out;
  const float *lora_a, *lora_b, *magnitude, *norm;
  void *a, *b, *b_t;
  float* ratio;
};

template <class T>
__global__ void __launch_bounds__(threads) prepare_kernel(const __grid_constant__ Prepare p) {
  gemm_sm90_detail::wait_for_previous_kernel();
  const int64_t count_a = p.padded * p.in, count_b = p.padded * p.out, count_ratio = p.ratio != nullptr ? p.out : 0;
  const int64_t all = count_a + count_b + count_ratio;
  for (int64_t item = int64_t{blockIdx.x} * threads + threadIdx.x; item < all; item += int64_t{gridDim.x} * threads) {
    int64_t i = item;
    if (i < count_a) {
      static_cast<T*>(p.a)[i] = from_float<T>(i < p.R * p.in ? p.lora_a[i] : 0.0F);
      continue;
    }
    i -= count_a;
    if (i < count_b) {
      if (p.b != nullptr) {
        const int64_t o = i / p.padded, r = i - o * p.padded;
        static_cast<T*>(p.b)[i] = from_float<T>(r < p.R ? p.lora_b[o * p.R + r] : 0.0F);
      } else {
        const int64_t r = i / p.out, o = i - r * p.out;
        static_cast<T*>(p.b_t)[i] = from_float<T>(r < p.R ? p.lora_b[o * p.R + r] : 0.0F);
      }
      continue;
    }
    i -= count_b;
    p.ratio[i] = p.norm[i] > 0 ? p.magnitude[i] / p.norm[i] : 0.0F;
  }
}

// core/rng.h's philox.
__device__ uint4 philox_words(uint64_t seed, uint64_t stream, uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53U, c0), low0 = 0xD2511F53U * c0;
    const uint32_t high1 = __umulhi(0xCD9E8D57U, c2), low1 = 0xCD9E8D57U * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return make_uint4(c0, c1, c2, c3);
}

// Eight elements a thread: their bits are a byte of keep.
template <class T>
__global__ void __launch_bounds__(threads)
    drop_kernel(const __grid_constant__ Dropout dropout, uint32_t threshold, const T* x, int64_t rows, int64_t cols,
                int64_t words, uint8_t* keep, T* xd, bool wide) {
  gemm_sm90_detail::wait_for_previous_kernel();
  const int64_t octets = ceil_div(cols, 8);
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < rows * octets; i += int64_t{gridDim.x} * threads) {
    const int64_t row = i / octets, octet = i - row * octets, at = row * cols + octet * 8;
    const uint64_t begin =
        static_cast<uint64_t>(dropout.row_begin + row) * static_cast<uint64_t>(cols) + static_cast<uint64_t>(octet * 8);
    const int skip = static_cast<int>(begin % 4);
    uint32_t bits = 0;
    for (int b = 0; b < (skip == 0 ? 2 : 3); ++b) {
      const uint4 four = philox_words(dropout.seed, dropout.stream, begin / 4 + static_cast<uint64_t>(b));
      bits |= ((four.x >> 8) >= threshold ? 1U : 0U) << (4 * b) | ((four.y >> 8) >= threshold ? 2U : 0U) << (4 * b) |
              ((four.z >> 8) >= threshold ? 4U : 0U) << (4 * b) | ((four.w >> 8) >= threshold ? 8U : 0U) << (4 * b);
    }
    bits >>= skip;
    if (keep != nullptr) keep[row * words * 4 + octet] = static_cast<uint8_t>(bits);
    if (xd == nullptr) continue;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      if (wide) {
        uint4 v = *reinterpret_cast<const uint4*>(x + at);
        const auto mask = [&](int pair) {
          return ((bits >> (2 * pair) & 1U) != 0 ? 0xFFFFU : 0U) |
                 ((bits >> (2 * pair + 1) & 1U) != 0 ? 0xFFFF0000U : 0U);
        };
        v = make_uint4(v.x & mask(0), v.y & mask(1), v.z & mask(2), v.w & mask(3));
        *reinterpret_cast<uint4*>(xd + at) = v;
        continue;
      }
    }
    for (int j = 0; j < 8 && octet * 8 + j < cols; ++j)
      xd[at + j] = (bits >> j & 1U) != 0 ? x[at + j] : from_float<T>(0.0F);
  }
}

template <class T>
__global__ void __launch_bounds__(threads) round_kernel(int64_t count, float factor, const float* from, T* to) {
  for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < count; i += int64_t{gridDim.x} * threads)
    to[i] = from_float<T>(from[i] * factor);
}

struct Partials {
  int64_t chunks;
  int R, padded, in, out;
  const float *a, *b;
  float *da, *db;
};

__global__ void __launch_bounds__(threads) add_partials_kernel(const __grid_constant__ Partials p) {
  gemm_sm90_detail::wait_for_previous_kernel();
  const int64_t count_a = int64_t{p.in} * p.padded, count_b = int64_t{p.out} * p.padded;
  for (int64_t item = int64_t{blockIdx.x} * threads + threadIdx.x; item < count_a + count_b;
       item += int64_t{gridDim.x} * threads) {
    const bool is_a = item < count_a;
    const int64_t i = is_a ? item : item - count_a, stride = is_a ? count_a : count_b;
    const auto col = static_cast<int>(i / p.padded), r = static_cast<int>(i - int64_t{col} * p.padded);
    if (r >= p.R) continue;
    const float* from = (is_a ? p.a : p.b) + i;
    float* const to = is_a ? p.da + int64_t{r} * p.in + col : p.db + int64_t{col} * p.R + r;
    float sum = *to;
#pragma unroll 16
    for (int64_t chunk = 0; chunk < p.chunks; ++chunk, from += stride) sum += *from;
    *to = sum;
  }
}

}  // namespace

AdapterOperands adapter_operands(Context& ctx, const AdapterWeights& w, float scale, float p, DType dtype,
                                 bool backward) {
  AdapterOperands ad{.R = w.lora_a.shape[0],
                     .padded = round_up(w.lora_a.shape[0], 8),
                     .in = w.lora_a.shape[1],
                     .out = w.lora_b.shape[0],
                     .dtype = dtype,
                     .factor = scale / (1 - p)};
  const int64_t size = size_of(dtype);
  ad.a = ctx.arena.bytes(ad.padded * ad.in * size);
  (backward ? ad.b_t : ad.b) = ctx.arena.bytes(ad.padded * ad.out * size);
  if (!w.magnitude.empty()) ad.ratio = ctx.arena.array<float>(ad.out);
  if (ctx.counting()) return ad;
  const Prepare args{.R = ad.R,
                     .padded = ad.padded,
                     .in = ad.in,
                     .out = ad.out,
                     .lora_a = w.lora_a.as<float>(),
                     .lora_b = w.lora_b.as<float>(),
                     .magnitude = w.magnitude.as<float>(),
                     .norm = w.norm.as<float>(),
                     .a = ad.a,
                     .b = ad.b,
                     .b_t = ad.b_t,
                     .ratio = ad.ratio};
  const int64_t items = ad.padded * (ad.in + ad.out) + ad.out;
  with_type(dtype, [&]<class T>() { launch(ctx, prepare_kernel<T>, blocks_for(items), "preparing an adapter", args); });
  return ad;
}

void drop(const Context& ctx, const Dropout& dropout, DType dtype, const void* x, int64_t rows, int64_t cols,
          uint32_t* keep, void* xd) {
  const auto threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(dropout.p) * 0x1p24));
  const bool wide =
      cols % 8 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0 && reinterpret_cast<uintptr_t>(xd) % 16 == 0;
  with_type(dtype, [&]<class T>() {
    launch(ctx, drop_kernel<T>, blocks_for(rows * ceil_div(cols, 8)), "dropout", dropout, threshold,
           static_cast<const T*>(x), rows, cols, keep_words(cols), reinterpret_cast<uint8_t*>(keep),
           static_cast<T*>(xd), wide);
  });
}

int64_t adapter_pass_sums(bool hopper, int64_t rows, int64_t cols, int64_t padded) {
  return hopper ? 0 : rows * padded;
}

void adapter_pass(const Context& ctx, bool hopper, const AdapterPass& p) {
  if (hopper) return pass_sm90::run(ctx, p);
  if (p.w != nullptr) {
    plain_gemm(ctx, {.m = p.rows,
                     .n = p.padded,
                     .k = p.cols,
                     .dtype = p.dtype,
                     .a = p.x,
                     .lda = p.cols,
                     .b = p.w,
                     .ldb = p.cols,
                     .transpose_b = true,
                     .c = p.sums,
                     .ldc = p.padded});
    const int64_t count = p.rows * p.padded;
    with_type(p.dtype, [&]<class T>() {
      round_kernel<T>
          <<<blocks_for(count), threads, 0, stream_of(ctx)>>>(count, p.factor, p.sums, static_cast<T*>(p.low));
    });
    check_launch("a thin product");
  }
  if (p.other == nullptr) return;
  const int64_t whole = p.rows / row_chunk, rest = p.rows % row_chunk, size = size_of(p.dtype);
  const auto chunks = [&](int64_t first, int64_t count, int64_t rows) {
    if (count == 0 || rows == 0) return;
    plain_gemm(ctx, {.m = p.cols,
                     .n = p.padded,
                     .k = rows,
                     .dtype = p.dtype,
                     .a = static_cast<const std::byte*>(p.x) + first * row_chunk * p.cols * size,
                     .lda = p.cols,
                     .transpose_a = true,
                     .b = static_cast<const std::byte*>(p.other) + first * row_chunk * p.padded * size,
                     .ldb = p.padded,
                     .c = p.partials + first * p.cols * p.padded,
                     .ldc = p.padded,
                     .batch = count,
                     .stride_a = row_chunk * p.cols,
                     .stride_b = row_chunk * p.padded,
                     .stride_c = p.cols * p.padded});
  };
  chunks(0, whole, row_chunk);
  chunks(whole, 1, rest);
}

void add_partials(const Context& ctx, const AdapterOperands& ad, int64_t chunks, const float* partials_a,
                  const float* partials_b, float* da, float* db) {
  const Partials args{.chunks = chunks,
                      .R = static_cast<int>(ad.R),
                      .padded = static_cast<int>(ad.padded),
                      .in = static_cast<int>(ad.in),
                      .out = static_cast<int>(ad.out),
                      .a = partials_a,
                      .b = partials_b,
                      .da = da,
                      .db = db};
  launch(ctx, add_partials_kernel, blocks_for(ad.padded * (ad.in + ad.out)), "adding an adapter's gradients", args);
}

}  // namespace sluice::cuda
