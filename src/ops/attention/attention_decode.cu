// One query for each sequence against its cache, in two kernels: blocks of the rows of a cache ("splits") for a kv head
// and up to eight of its query heads, then a sum over the splits in order. The first is decode_tiles.cuh's where it can
// be, or the one here.
//
// Splits are cut from the first visible row on, their size depends on the count of rows only: so a sequence's bits
// depend on nothing else.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/attention_decode.cuh"
#include "ops/attention/decode_tiles.cuh"
#include "ops/common/cuda_utils.cuh"
#include "ops/common/launch_early.cuh"

namespace sluice::cuda {
namespace {

using namespace decode;

constexpr int threads = 256, warps = threads / 32;
constexpr int rows_at_once = 4;  // of a thread: their loads are under way together
constexpr int most_split_rows = 512;
constexpr int most_head_dim = 512;

// How many splits a long cache is cut into: for one sequence and eight kv heads, two blocks for each multiprocessor of
// an H200. More than 64 cost more than they gain where there are several sequences.
int64_t splits_wanted(int64_t num_kv_heads) { return std::clamp<int64_t>(256 / num_kv_heads, 32, 64); }
int64_t split_rows_for(int64_t rows, int64_t wanted) {
  return std::clamp<int64_t>(round_up(ceil_div(rows, wanted), 64), 64, most_split_rows);
}
// At least the splits of this many rows or fewer, so that a plan for the longest holds for the others.
int64_t most_splits(int64_t rows, int64_t wanted) {
  return std::max(std::min(wanted, ceil_div(rows, 64)), ceil_div(rows, most_split_rows));
}

// The same for decode_tiles.cuh, whose blocks are one for each multiprocessor and take as many splits as there are.
// Never more splits than most_splits(rows, splits_wanted(…)).
int64_t tile_splits_wanted(int64_t num_kv_heads) { return std::clamp<int64_t>(128 / num_kv_heads, 8, 64); }
int64_t tile_split_rows_for(int64_t rows, int64_t wanted, int64_t D) {
  const int64_t least = D > 256 ? 256 : 128;  // a split's end costs as much as 64 KiB of a wide cache
  return std::max(round_up(ceil_div(rows, wanted), 128), least);
}

// Eight elements of a cache row as they are stored; those past `count` are zeros.
template <class T>
struct Octet {
  static constexpr int words = 2 * static_cast<int>(sizeof(T));
  uint32_t w[words];

  __device__ void load(const T* p, int count, bool wide) {
    if (wide && count >= 8) {
#pragma unroll
      for (int i = 0; i < words; i += 4) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(p) + i / 4);
        w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
      }
    } else {
      clear();
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (i >= count) break;
        if constexpr (std::is_same_v<T, float>) w[i] = __float_as_uint(__ldg(p + i));
        else w[i / 2] |= static_cast<uint32_t>(__bfloat16_as_ushort(p[i])) << (i % 2 * 16);
      }
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < words; ++i) w[i] = 0;
  }
  __device__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, float>) return __uint_as_float(w[i]);
    else return __uint_as_float(i % 2 == 0 ? w[i / 2] << 16 : w[i / 2] & 0xffff0000U);
  }
};

// Sums each of v[0 … n) over `lanes` lanes. Lanes end up with different values: v[i] of a lane is the sum number result
// + i, for i < the count returned. Each step gives half of the values to the partner.
template <int n, int lanes>
struct LaneSums {
  static constexpr int left = n / lanes > 1 ? n / lanes : 1;
  __device__ static int add(float (&v)[n], int lane) {
    int first = 0;
#pragma unroll
    for (int offset = lanes / 2, half = n / 2; offset > 0; offset /= 2, half /= 2) {
      if (half > 0) {
        const bool upper = (lane & offset) != 0;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const float kept = upper ? v[i + half] : v[i], given = upper ? v[i] : v[i + half];
          v[i] = kept + __shfl_xor_sync(0xffffffffU, given, offset);
        }
        if (upper) first += half;
      } else {
        v[0] += __shfl_xor_sync(0xffffffffU, v[0], offset);
      }
    }
    return first;
  }
};

// A thread holds the octets lane, lane + lanes, … (`octets` of them) of the rows row_group, row_group + groups, … of
// its split, for both the scores and the sums; `heads` query heads share what is read.
template <class T, int lanes, int octets, int heads>
__global__ __launch_bounds__(threads) void decode_split_kernel(const __grid_constant__ Table table, const Shared s) {
  constexpr int groups = threads / lanes, step = groups * rows_at_once;
  // The next rows are read while these are worked on, where the registers suffice.
  constexpr bool ahead = sizeof(T) == 2 && octets == 1;
  __shared__ alignas(16) float score[most_split_rows * heads];  // [rows, heads]
  __shared__ float partial[warps][lanes * octets * 8];
  __shared__ float tops[warps][heads], sums[warps][heads];

  const Entry& e = table.entries[blockIdx.z];
  const int first = static_cast<int>(blockIdx.x) * e.split_rows, rows = min(e.split_rows, e.rows - first);
  if (rows <= 0) return;
  const int kv_head = static_cast<int>(blockIdx.y) / s.head_blocks, group = s.H / s.K;
  const int head_begin = kv_head * group + static_cast<int>(blockIdx.y) % s.head_blocks * heads;
  const int num_heads = min(heads, (kv_head + 1) * group - head_begin);  // what the others hold is not used
  const int tid = static_cast<int>(threadIdx.x), lane = tid % lanes, row_group = tid / lanes;

  const int64_t stride = static_cast<int64_t>(s.K) * s.D, column = static_cast<int64_t>(kv_head) * s.D + lane * 8;
  using Rows = Octet<T>[rows_at_once][octets];
  const auto load = [&](const void* cache, int base, Rows& x) {
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
      const int r = base + u * groups + row_group;
      int64_t row = e.first + first + r;
      if (e.ring > 0 && row >= e.ring) row -= e.ring;
      const T* p = static_cast<const T*>(cache) + row * stride + column;
#pragma unroll
      for (int c = 0; c < octets; ++c) {
        if (r < rows) x[u][c].load(p + c * lanes * 8, s.D - (lane + c * lanes) * 8, s.wide_rows);
        else x[u][c].clear();
      }
    }
  };

  Rows x;
  load(e.k, 0, x);
  {
    float q[heads][octets * 8];
#pragma unroll
    for (int h = 0; h < heads; ++h) {
      const int64_t at = (static_cast<int64_t>(e.index) * s.H + head_begin + min(h, num_heads - 1)) * s.D;
#pragma unroll
      for (int c = 0; c < octets; ++c) {
        const int d = (lane + c * lanes) * 8;
        if (s.bf16_io) {
          Octet<__nv_bfloat16> part;
          part.load(static_cast<const __nv_bfloat16*>(s.q) + at + d, s.D - d, s.wide_q);
#pragma unroll
          for (int i = 0; i < 8; ++i) q[h][c * 8 + i] = part[i];
        } else {
          Octet<float> part;
          part.load(static_cast<const float*>(s.q) + at + d, s.D - d, s.wide_q);
#pragma unroll
          for (int i = 0; i < 8; ++i) q[h][c * 8 + i] = part[i];
        }
      }
    }
    for (int base = 0; base < rows; base += step) {
      Rows next;
      if constexpr (ahead) {
        const bool more = base + step < rows;
        load(more ? e.k : e.v, more ? base + step : 0, next);
      }
      float dot[rows_at_once * heads] = {};
#pragma unroll
      for (int u = 0; u < rows_at_once; ++u) {
#pragma unroll
        for (int c = 0; c < octets; ++c) {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const float k = x[u][c][i];
#pragma unroll
            for (int h = 0; h < heads; ++h) dot[u * heads + h] = fmaf(q[h][c * 8 + i], k, dot[u * heads + h]);
          }
        }
      }
      using Sums = LaneSums<rows_at_once * heads, lanes>;
      const int number = Sums::add(dot, lane);
#pragma unroll
      for (int i = 0; i < Sums::left; ++i) {  // lanes that hold the same sum write the same
        const int u = (number + i) / heads, h = (number + i) % heads, r = base + u * groups + row_group;
        float value = dot[i] * s.scale;
        if (s.softcap > 0) value = s.softcap * tanhf(value / s.softcap);
        if (r < rows) score[r * heads + h] = value;
      }
      if constexpr (ahead) {
#pragma unroll
        for (int u = 0; u < rows_at_once; ++u) x[u][0] = next[u][0];
      } else if (base + step < rows) {
        load(e.k, base + step, x);
      }
    }
  }
  if constexpr (!ahead) load(e.v, 0, x);
  __syncthreads();

  // The scores of a head become exp(S - top): a thread holds every 256th of [rows, heads], so one head's.
  const int64_t part = e.part + blockIdx.x;
  {
    constexpr int held = most_split_rows * heads / threads;
    const int h = tid % heads, warp = tid / 32;
    const auto across_lanes = [](float value, auto combine) {
#pragma unroll
      for (int offset = 16; offset >= heads; offset /= 2)
        value = combine(value, __shfl_xor_sync(0xffffffffU, value, offset));
      return value;
    };
    float value[held], top = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int at = tid + i * threads;
      value[i] = at < rows * heads ? score[at] : -INFINITY;
      top = fmaxf(top, value[i]);
    }
    top = across_lanes(top, [](float a, float b) { return fmaxf(a, b); });
    if (tid % 32 < heads) tops[warp][h] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < warps; ++w) top = fmaxf(top, tops[w][h]);
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int at = tid + i * threads;
      if (at < rows * heads) {
        const float p = expf(value[i] - top);
        score[at] = p;
        sum += p;
      }
    }
    sum = across_lanes(sum, [](float a, float b) { return a + b; });
    if (tid % 32 < heads) sums[warp][h] = sum;
    __syncthreads();
    if (tid < num_heads) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) total += sums[w][tid];
      s.parts.top[part * s.H + head_begin + tid] = top;
      s.parts.sum[part * s.H + head_begin + tid] = total;
    }
  }

  float acc[heads][octets * 8] = {};
  for (int base = 0; base < rows; base += step) {
    Rows next;
    if constexpr (ahead) {
      if (base + step < rows) load(e.v, base + step, next);
    }
#pragma unroll
    for (int u = 0; u < rows_at_once; ++u) {
      const int r = min(base + u * groups + row_group,
                        rows - 1);  // rows past the last are zeros
      float p[heads];
      if constexpr (heads % 4 == 0) {
#pragma unroll
        for (int h = 0; h < heads; h += 4) {
          const float4 four = *reinterpret_cast<const float4*>(score + r * heads + h);
          p[h] = four.x, p[h + 1] = four.y, p[h + 2] = four.z, p[h + 3] = four.w;
        }
      } else {
#pragma unroll
        for (int h = 0; h < heads; ++h) p[h] = score[r * heads + h];
      }
#pragma unroll
      for (int c = 0; c < octets; ++c) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float v = x[u][c][i];
#pragma unroll
          for (int h = 0; h < heads; ++h) acc[h][c * 8 + i] = fmaf(p[h], v, acc[h][c * 8 + i]);
        }
      }
    }
    if constexpr (ahead) {
#pragma unroll
      for (int u = 0; u < rows_at_once; ++u) x[u][0] = next[u][0];
    } else if (base + step < rows) {
      load(e.v, base + step, x);
    }
  }

  // Sums of the row groups: those of a warp, then the warps in order.
#pragma unroll
  for (int h = 0; h < heads; ++h) {
    if (h >= num_heads) break;
#pragma unroll
    for (int i = 0; i < octets * 8; ++i) {
      float x = acc[h][i];
#pragma unroll
      for (int offset = lanes; offset < 32; offset *= 2) x += __shfl_xor_sync(0xffffffffU, x, offset);
      if (tid % 32 < lanes) partial[tid / 32][(lane + i / 8 * lanes) * 8 + i % 8] = x;
    }
    __syncthreads();
    for (int d = tid; d < s.depth; d += threads) {
      float x = 0;
      if (d < lanes * octets * 8) {
#pragma unroll
        for (int w = 0; w < warps; ++w) x += partial[w][d];
      }
      s.parts.acc[(part * s.H + head_begin + h) * s.depth + d] = x;
    }
    __syncthreads();
  }
}

// o = sum over splits of exp(top - largest) acc, over the same of the sums. A block for each head; warp w takes the
// splits w, w + 8, …
__global__ __launch_bounds__(threads) void combine_kernel(const __grid_constant__ Table table, const Shared s) {
  constexpr int columns = most_head_dim / 128;  // groups of four of a lane
  launch_dependents();
  wait_for_kernels_before();
  __shared__ float partial[warps][most_head_dim];
  __shared__ float sums[warps];
  const Entry& e = table.entries[blockIdx.y];
  const int head = static_cast<int>(blockIdx.x), splits = (e.rows + e.split_rows - 1) / e.split_rows;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;

  float top = -INFINITY;
  for (int i = lane; i < splits; i += 32) top = fmaxf(top, s.parts.top[(e.part + i) * s.H + head]);
  top = warp_max(top);
  float total[columns * 4] = {}, sum = 0;
#pragma unroll 4
  for (int i = warp; i < splits; i += warps) {
    const int64_t at = (e.part + i) * s.H + head;
    const float factor = expf(s.parts.top[at] - top);
    sum = fmaf(factor, s.parts.sum[at], sum);
    const float* acc = s.parts.acc + at * s.depth;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      const int d = lane * 4 + c * 128;
      if (d >= s.depth) break;
      const float4 x = *reinterpret_cast<const float4*>(acc + d);
      total[4 * c] = fmaf(factor, x.x, total[4 * c]);
      total[4 * c + 1] = fmaf(factor, x.y, total[4 * c + 1]);
      total[4 * c + 2] = fmaf(factor, x.z, total[4 * c + 2]);
      total[4 * c + 3] = fmaf(factor, x.w, total[4 * c + 3]);
    }
  }
#pragma unroll
  for (int i = 0; i < columns * 4; ++i) partial[warp][lane * 4 + i / 4 * 128 + i % 4] = total[i];
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (int w = 0; w < warps; ++w) sum += sums[w];
  for (int d = tid; d < s.D; d += threads) {
    float x = 0;
#pragma unroll
    for (int w = 0; w < warps; ++w) x += partial[w][d];
    x /= sum;
    const int64_t at = (static_cast<int64_t>(e.index) * s.H + head) * s.D + d;
    if (s.bf16_io) static_cast<__nv_bfloat16*>(s.o)[at] = from_float<__nv_bfloat16>(x);
    else static_cast<float*>(s.o)[at] = x;
  }
}

template <class T, int lanes, int octets, int heads>
void launch_splits(cudaStream_t stream, const Table& table, Shared s, unsigned splits, unsigned sequences) {
  s.head_blocks = static_cast<int>(ceil_div(s.H / s.K, heads));
  const dim3 grid(splits, static_cast<unsigned>(s.K * s.head_blocks), sequences);
  decode_split_kernel<T, lanes, octets, heads><<<grid, threads, 0, stream>>>(table, s);
}

template <class T, int lanes, int octets>
void launch_for_heads(cudaStream_t stream, const Table& table, const Shared& s, unsigned splits, unsigned sequences) {
  const int group = s.H / s.K;
  if (group == 1) return launch_splits<T, lanes, octets, 1>(stream, table, s, splits, sequences);
  if constexpr (octets == 1) {  // more would not fit the registers
    if (group > 4) return launch_splits<T, lanes, octets, 8>(stream, table, s, splits, sequences);
  }
  launch_splits<T, lanes, octets, 4>(stream, table, s, splits, sequences);
}

template <class T>
void launch(const Context& ctx, const Table& table, const Shared& s, unsigned splits, unsigned sequences) {
  const cudaStream_t stream = stream_of(ctx);
  if (s.D <= 64) launch_for_heads<T, 8, 1>(stream, table, s, splits, sequences);
  else if (s.D <= 128) launch_for_heads<T, 16, 1>(stream, table, s, splits, sequences);
  else if (s.D <= 256) launch_for_heads<T, 32, 1>(stream, table, s, splits, sequences);
  else launch_for_heads<T, 32, 2>(stream, table, s, splits, sequences);
  check_launch("attention_decode");
}

template <int D>
void launch_tiles(const Context& ctx, const Table& table, Shared s, int splits, int sequences) {
  static_assert(tile_threads == threads);
  constexpr int bytes = TilePlan<D>::shared_bytes;
  check_cuda(cudaFuncSetAttribute(decode_tiles_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "attention_decode");
  s.head_blocks = static_cast<int>(ceil_div(s.H / s.K, tile_heads));
  const TileItems items{.count = sequences * s.K * s.head_blocks * splits, .splits = splits};
  const int blocks = std::min(items.count, facts_of(ctx).num_multiprocessors);
  launch_early(ctx, decode_tiles_kernel<D>, dim3(static_cast<unsigned>(blocks)), dim3(threads), bytes,
               "attention_decode", table, s, items);
}
// Whether heads of this width have tiles and a block of them fits.
bool has_tiles(const Context& ctx, int64_t D) {
  const int64_t bytes = D == 64    ? TilePlan<64>::shared_bytes
                        : D == 128 ? TilePlan<128>::shared_bytes
                        : D == 256 ? TilePlan<256>::shared_bytes
                        : D == 512 ? TilePlan<512>::shared_bytes
                                   : INT64_MAX;
  return bytes <= facts_of(ctx).shared_bytes_per_block;
}
void launch_tiles_for_width(const Context& ctx, const Table& table, const Shared& s, int splits, int sequences) {
  if (s.D == 64) launch_tiles<64>(ctx, table, s, splits, sequences);
  else if (s.D == 128) launch_tiles<128>(ctx, table, s, splits, sequences);
  else if (s.D == 256) launch_tiles<256>(ctx, table, s, splits, sequences);
  else launch_tiles<512>(ctx, table, s, splits, sequences);
}

}  // namespace

void attention_decode(Context& ctx, const AttentionDecode& args) {
  const AttentionShape& shape = args.shape;
  SLUICE_ASSERT(shape.head_dim <= most_head_dim);
  const int64_t H = shape.num_heads, D = shape.head_dim, depth = round_up(D, 8);
  const auto B = static_cast<int64_t>(args.sequences.size());
  ArenaScope scope(ctx.arena);
  const int64_t wanted = splits_wanted(shape.num_kv_heads);
  int64_t num_parts = 0;
  for (const auto& s : args.sequences) num_parts += most_splits(s.end - s.begin, wanted);
  const Parts parts{scope.array<float>(num_parts * H), scope.array<float>(num_parts * H),
                    scope.array<float>(num_parts * H * depth)};
  if (ctx.counting()) return;

  const bool tiles = has_tiles(ctx, D);
  const auto run = [&](auto element, DType dtype, bool by_tiles) {
    constexpr int64_t value_bytes = sizeof(element);
    Shared shared = {
        .H = static_cast<int>(H),
        .K = static_cast<int>(shape.num_kv_heads),
        .D = static_cast<int>(D),
        .depth = static_cast<int>(depth),
        .head_blocks = 1,
        .scale = shape.scale,
        .softcap = shape.softcap,
        .q = args.q.data,
        .o = args.o.data,
        .bf16_io = args.q.dtype == DType::bf16,
        .wide_q = D * size_of(args.q.dtype) % 16 == 0 && reinterpret_cast<uintptr_t>(args.q.data) % 16 == 0,
        .wide_rows = true,
        .parts = parts};
    Table table;
    int64_t count = 0, most = 0, part = 0;
    const auto flush = [&] {
      if (count == 0) return;
      if (by_tiles) launch_tiles_for_width(ctx, table, shared, static_cast<int>(most), static_cast<int>(count));
      else launch<decltype(element)>(ctx, table, shared, static_cast<unsigned>(most), static_cast<unsigned>(count));
      launch_early(ctx, combine_kernel, dim3(static_cast<unsigned>(H), static_cast<unsigned>(count)), dim3(threads), 0,
                   "attention_decode", table, shared);
      count = most = 0;
      shared.wide_rows = true;
    };
    for (int64_t b = 0; b < B; ++b) {
      const auto& s = args.sequences[static_cast<size_t>(b)];
      const int64_t rows = s.end - s.begin, first_part = part;
      part += most_splits(rows, wanted);
      const bool wide = D * value_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(s.k.data) % 16 == 0 &&
                        reinterpret_cast<uintptr_t>(s.v.data) % 16 == 0;
      if (s.k.dtype != dtype || by_tiles != (tiles && wide && dtype == DType::bf16)) continue;
      SLUICE_ASSERT(std::max(rows, s.ring > 0 ? s.ring : s.end) <= INT32_MAX / 2);
      const int64_t split_rows = by_tiles ? tile_split_rows_for(rows, tile_splits_wanted(shape.num_kv_heads), D)
                                          : split_rows_for(rows, wanted);
      table.entries[count++] = {s.k.data,
                                s.v.data,
                                s.ring > 0 ? s.begin % s.ring : s.begin,
                                s.ring,
                                first_part,
                                static_cast<int32_t>(rows),
                                static_cast<int32_t>(split_rows),
                                static_cast<int32_t>(b)};
      most = std::max(most, ceil_div(rows, split_rows));
      shared.wide_rows = shared.wide_rows && wide;
      if (count == most_sequences) flush();
    }
    flush();
  };
  if (tiles) run(__nv_bfloat16(), DType::bf16, true);
  run(__nv_bfloat16(), DType::bf16, false);
  run(float(), DType::f32, false);
}

}  // namespace sluice::cuda

SLUICE_CUDA_ENTRY(attention_decode, AttentionDecode)
