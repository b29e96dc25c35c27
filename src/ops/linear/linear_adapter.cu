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
  int64_t num_zeros;
  uint32_t* zeros;
};

template <class T>
__global__ void __launch_bounds__(threads) prepare_kernel(const __grid_constant__ Prepare p) {
  gemm_sm90_detail::wait_for_previous_kernel();
  const int64_t count_a = p.padded * p.in, count_b = p.padded * p.out, count_ratio = p.ratio != nullptr ? p.out : 0;
  const int64_t all = count_a + count_b + count_ratio + p.num_zeros;
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
    if (i < count_ratio) {
      p.ratio[i] = p.norm[i] > 0 ? p.magnitude[i] / p.norm[i] : 0.0F;
      continue;
    }
    p.zeros[i - count_ratio] = 0;
  }
}

// Eight elements a thread: their bits are a byte of keep. rows * ceil(cols / 8) < 2^31.
template <class T>
__global__ void __launch_bounds__(threads) drop_kernel(const __grid_constant__ Draws draws, const T* x, uint32_t rows,
                                                       uint32_t cols, int64_t words, uint8_t* keep, T* xd, bool wide) {
  gemm_sm90_detail::wait_for_previous_kernel();
  const uint32_t octets = (cols + 7) / 8;
  for (uint32_t i = blockIdx.x * threads + threadIdx.x; i < rows * octets; i += gridDim.x * threads) {
    const uint32_t row = i / octets, octet = i - row * octets;
    const int64_t at = int64_t{row} * cols + octet * 8;
    const uint64_t begin = static_cast<uint64_t>(draws.row_begin + row) * cols + octet * 8;
    const int skip = static_cast<int>(begin % 4);
    uint32_t bits = 0;
    for (int b = 0; b < (skip == 0 ? 2 : 3); ++b) {
      bits |= kept_of_four(draws, begin / 4 + static_cast<uint64_t>(b)) << (4 * b);
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

__global__ void __launch_bounds__(threads) add_partials_kernel(const __grid_constant__ Partials p) {
  gemm_sm90_detail::wait_for_previous_kernel();
  add_partials(p, static_cast<int>(blockIdx.x * threads + threadIdx.x), static_cast<int>(gridDim.x) * threads);
}

}  // namespace

AdapterOperands adapter_operands(Context& ctx, const AdapterWeights& w, float scale, float p, DType dtype,
                                 bool backward, int64_t num_zeros) {
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
  ad.zeros = ctx.arena.array<uint32_t>(num_zeros);
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
                     .ratio = ad.ratio,
                     .num_zeros = num_zeros,
                     .zeros = ad.zeros};
  const int64_t items = ad.padded * (ad.in + ad.out) + ad.out + num_zeros;
  with_type(dtype, [&]<class T>() { launch(ctx, prepare_kernel<T>, blocks_for(items), "preparing an adapter", args); });
  return ad;
}

void drop(const Context& ctx, const Dropout& dropout, DType dtype, const void* x, int64_t rows, int64_t cols,
          uint32_t* keep, void* xd) {
  const bool wide =
      cols % 8 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0 && reinterpret_cast<uintptr_t>(xd) % 16 == 0;
  const int64_t octets = ceil_div(cols, 8), piece = std::max<int64_t>((int64_t{1} << 30) / octets, 1);
  for (int64_t row = 0; row < rows; row += piece) {
    const int64_t count = std::min(piece, rows - row);
    Dropout d = dropout;
    d.row_begin += row;
    with_type(dtype, [&]<class T>() {
      launch(ctx, drop_kernel<T>, blocks_for(count * octets), "dropout", draws_of(d),
             x != nullptr ? static_cast<const T*>(x) + row * cols : nullptr, static_cast<uint32_t>(count),
             static_cast<uint32_t>(cols), keep_words(cols),
             keep != nullptr ? reinterpret_cast<uint8_t*>(keep + row * keep_words(cols)) : nullptr,
             xd != nullptr ? static_cast<T*>(xd) + row * cols : nullptr, wide);
    });
  }
}

int64_t adapter_pass_sums(bool hopper, int64_t rows, int64_t padded) { return hopper ? 0 : rows * padded; }

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

void add_partials(const Context& ctx, const Partials& p) {
  launch(ctx, add_partials_kernel, blocks_for(int64_t{p.padded / 4} * (p.in + p.out)), "adding an adapter's gradients",
         p);
}

}  // namespace sluice::cuda
