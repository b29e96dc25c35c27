// The product of a quantised matrix with a few columns on tensor cores, bound by the memory that the codes lie in.
//
// A code of up to eight bits is a bf16 as it stands: its bits are code * 2^-133, exactly. So a multiply-add of a tile
// of codes needs no decoding but a mask for each pair. x is scaled by 2^80 and split into bf16 that add up to it, one
// of a bf16 x, three of a float: the columns of the product. Each scale's group of columns has its own product, in
// float32, which is then scaled and added.
//
// A warp takes tiles of 16 rows of the weight by chunks of 256 columns, from a ring in shared memory of its own that
// cp.async fills. A row's chunks go to k_warps warps in turn, whose sums are added in order: k_warps follows from the
// format and the columns alone, so a result depends neither on the other rows of x nor on those of the weight.
#pragma once

#include "ops/quant/matvec_formats.cuh"

namespace sluice::cuda::tiles {

// ---- The kernel -----------------------------------------------------------------------------------------------------

// A warp's copies of its chunks to its ring, in the order of their products. Lane l takes the pieces l, l + 32, … of a
// tile's rows, `of_row` to a row.
template <class F>
struct Copier {
  static constexpr bool by_rows = 32 % F::pieces == 0;
  static constexpr int of_row = by_rows ? F::pieces : F::stride, count = (of_row * tile_rows + 31) / 32;
  // Whether a row's chunks all lie as its first does to multiples of 16 bytes.
  static constexpr bool regular = F::chunk_bytes % 16 == 0;
  static constexpr bool all_wanted = by_rows;

  uint32_t at[count];  // of the pieces, from the tile's first row's chunk (not regular: from the multiple of 16 before)
  uint32_t wanted;     // bit j: whether piece number j is one
  uint32_t to, scales_to;
  const uint8_t *from, *scales;  // of the next chunk; this lane's
  int step, tile_step, scale_step, scale_tile_step;
  int row, chunk, end, whole_end;

  __device__ static int row_of(int lane, int j) {
    return by_rows ? lane / of_row + j * (32 / of_row) : (lane + 32 * j) / of_row;
  }
  __device__ static int piece_of(int lane, int j) { return by_rows ? lane % of_row : (lane + 32 * j) % of_row; }
  __device__ static uint32_t low_bits(const uint8_t* p) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) & 15;
  }

  // Rows [first_row, end_row) by tiles row_warp, row_warp + row_warps, …
  __device__ Copier(const Product& p, uint32_t ring, int first_row, int end_row, int k_warp, int row_warp, int lane)
      : wanted(0), row(k_warp < p.chunks ? first_row + row_warp * tile_rows : end_row), chunk(k_warp), end(end_row) {
    const uint32_t row_bytes = static_cast<uint32_t>(p.row_bytes), begin = low_bits(p.data + first_row * p.row_bytes);
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const int r = row_of(lane, j), piece = piece_of(lane, j);
      const uint32_t shift = F::aligned || !regular ? 0 : (begin + r * row_bytes) & 15;
      at[j] = r * row_bytes + piece * 16 - shift;
      const bool is_one =
          r < tile_rows && (regular ? piece * 16 < F::chunk_bytes + static_cast<int>(shift) : piece < F::pieces);
      wanted |= static_cast<uint32_t>(is_one) << j;
    }
    to = ring + (by_rows ? lane / of_row * (F::stride * 16) + lane % of_row * 16 : lane * 16);
    from = p.data + row * p.row_bytes + chunk * F::chunk_bytes;
    const int chunks_before = (p.chunks - 1 - k_warp) / p.k_warps;  // the last of a tile
    step = p.k_warps * F::chunk_bytes;
    tile_step = p.row_warps * tile_rows * static_cast<int>(p.row_bytes) - chunks_before * step;
    if constexpr (F::has_scales) {
      scales_to = ring + tile_rows * F::stride * 16 + (lane & 15) * (2 * p.scale_bytes) + (lane >> 4) * p.scale_bytes;
      scales = (lane < 16 ? p.scales : p.biases) + (row + (lane & 15)) * p.scale_row_bytes + chunk * p.scale_bytes;
      scale_step = p.k_warps * p.scale_bytes;
      scale_tile_step = p.row_warps * tile_rows * static_cast<int>(p.scale_row_bytes) - chunks_before * scale_step;
    }
    // Below this row every piece may be copied whole.
    const bool whole = p.cols % chunk_cols == 0 && (regular || row_bytes % 16 == 0);
    whole_end = whole ? min(end_row - tile_rows + 1, F::aligned ? p.rows : p.rows - tile_rows) : 0;
  }

  __device__ void copy_next(const Product& p, int stage, int lane) {
    if (row < end) {
      const uint32_t offset = stage * p.stage_bytes;
      if (row < whole_end) {
        const uint8_t* base = regular ? from : from - low_bits(from);
#pragma unroll
        for (int j = 0; j < count; ++j) {
          constexpr uint32_t apart = by_rows ? 32 / of_row * F::stride * 16 : 512;
          if (all_wanted || (wanted >> j & 1))
            copy_async<16>(to + offset + j * apart, base + static_cast<int32_t>(at[j]));
        }
      } else {
        copy_part(p, to - (by_rows ? lane / of_row * (F::stride * 16) + lane % of_row * 16 : lane * 16) + offset, lane);
      }
      if constexpr (F::has_scales) {
        if (row + (lane & 15) < end) {
          const uint32_t dst = scales_to + offset;
          if (p.scales_whole) {
            if (p.scale_bytes == 8) copy_async<8>(dst, scales);
            else if (p.scale_bytes == 4) copy_async<4>(dst, scales);
            else copy_async<16>(dst, scales);
          } else {
            const int left = static_cast<int>(p.scale_row_bytes) - chunk * p.scale_bytes;
            for (int b = 0; b < p.scale_bytes; b += 4) copy_async_part<4>(dst + b, scales + b, b < left ? 4 : 0);
          }
        }
      }
      chunk += p.k_warps;
      const bool last = chunk >= p.chunks;
      from += last ? tile_step : step;
      if constexpr (F::has_scales) scales += last ? scale_tile_step : scale_step;
      if (last) chunk &= p.k_warps - 1, row += p.row_warps * tile_rows;
    }
    copy_commit();
  }
  // What lies beyond a row's end becomes zeros.
  __device__ void copy_part(const Product& p, uint32_t stage, int lane) const {
    const int left = static_cast<int>(p.row_bytes) - chunk * F::chunk_bytes, valid = min(tile_rows, end - row);
    for (int i = lane; i < valid * F::pieces; i += 32) {
      const int r = i / F::pieces, piece = i % F::pieces;
      const uint8_t* begin = from + r * p.row_bytes;
      const int shift = F::aligned ? 0 : static_cast<int>(low_bits(begin));
      if (piece * 16 >= F::chunk_bytes + shift) continue;
      const int bytes_left = left + shift - piece * 16;
      copy_async_part<16>(stage + r * (F::stride * 16) + piece * 16, begin - shift + piece * 16,
                          bytes_left <= 0 ? 0 : min(bytes_left, 16));
    }
  }
};

// The first `count` of the bf16 that add up to a float, `apart` bytes from each other.
__device__ inline float write_parts(uint32_t at, uint32_t apart, float value, int count = float_parts) {
#pragma unroll
  for (int i = 0; i < float_parts; ++i) {
    if (i >= count) break;
    const __nv_bfloat16 rounded = __float2bfloat16_rn(value);
    value -= __bfloat162float(rounded);
    write(at + i * apart, rounded);
  }
  return value;  // the rest
}

// x and its sums in the order of the format's slots.
template <class F>
__device__ void lay_out_x(const Product& p) {
  const int parts = p.x_bf16 ? 1 : float_parts;
  for (int item = static_cast<int>(threadIdx.x); item < p.chunks * 32; item += static_cast<int>(blockDim.x)) {
    const int chunk = item >> 5, q = item >> 2 & 7, t = item & 3;
    float next[8];
    const auto load = [&](int n) {
      const int64_t row = static_cast<int64_t>(n) * p.cols;
      if (p.x_bf16) {
        const auto* x = static_cast<const __nv_bfloat16*>(p.x) + row;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int column = chunk * chunk_cols + F::slot(q, t, j).column;
          next[j] = column < p.cols ? __bfloat162float(x[column]) : 0.0F;
        }
      } else {
        const auto* x = static_cast<const float*>(p.x) + row;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int column = chunk * chunk_cols + F::slot(q, t, j).column;
          next[j] = column < p.cols ? x[column] : 0.0F;
        }
      }
    };
    load(0);
    for (int n = 0; n < p.num_x; ++n) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = next[j];
      if (n + 1 < p.num_x) load(n + 1);
      for (int part = 0; part < parts; ++part) {
        float sum[2] = {};
        uint32_t packed[4];
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const __nv_bfloat162 rounded = __floats2bfloat162_rn(v[j], v[j + 1]);
          const float r0 = __low2float(rounded), r1 = __high2float(rounded);
          v[j] -= r0, v[j + 1] -= r1;
          sum[j / 4] += r0 + r1;
          const float unit = F::slot(q, t, j).exponent == 0 ? x_unit : x_unit / 16;  // j + 1 has the same
          packed[j / 2] = __byte_perm(__float_as_uint(r0 * unit), __float_as_uint(r1 * unit), 0x7632U);
        }
        const int c = n * parts + part;
        write(p.x_at + c * p.x_plane + item * 16, make_uint4(packed[0], packed[1], packed[2], packed[3]));
        constexpr int sums = F::offset_bytes == 128 ? 2 : 1;
        if constexpr (sums == 1) sum[0] += sum[1];
#pragma unroll
        for (int i = 0; i < sums; ++i) {
          sum[i] += __shfl_xor_sync(0xffffffffU, sum[i], 1);
          sum[i] += __shfl_xor_sync(0xffffffffU, sum[i], 2);
          sum[i] *= F::sum_factor;
        }
        if constexpr (F::offset_bytes == 0) {
          if (t == 0) {
            const uint32_t at = p.sums_at + (c >> 1) * p.sums_plane + (item >> 2) * 8;
            write(at + (c & 1) * 4, sum[0]);
            if (c == p.columns - 1 && (c & 1) == 0) write(at + 4, 0.0F);
          }
        } else {
          const uint32_t at = p.sums_at + c * p.sums_plane + chunk * F::offset_bytes;
          if constexpr (F::offset_bytes == 64) {
            if (t == 0) write_parts(at + (q >> 1) * 16 + (q & 1) * 2, 4, sum[0]);
          } else {  // in the order of the block's scales
            float total = sum[0] + sum[1];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) total += __shfl_xor_sync(0xffffffffU, total, offset);
            if (t == 0) {
#pragma unroll
              for (int i = 0; i < 2; ++i)
                write_parts(at + ((q & 1) * 2 + i) * 32 + (q >> 2) * 4 + (q >> 1 & 1) * 2, 8, sum[i]);
              if (q < 4) write(at + q * 32 + 24, 0U);
            }
            __syncwarp();
            if (item % 32 == 0) {
              const float rest = write_parts(at + 24, 2, -total, 2);
              write_parts(at + 32 + 24, 2, rest, 1);
            }
          }
        }
      }
    }
  }
}

__device__ inline int output_row(const Product& p, int stored) {  // the inverse of Weight::stored_row
  if (p.interleaved_head_dim == 0) return stored;
  const uint32_t in_head = static_cast<uint32_t>(stored) % p.interleaved_head_dim;
  return stored - static_cast<int>(in_head) +
         static_cast<int>(in_head / 2 + (in_head & 1 ? p.interleaved_head_dim / 2 : 0));
}

template <class F>
__global__ __launch_bounds__(most_warps * 32, 1) void matvec_kernel(const __grid_constant__ Product p) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, num_warps = static_cast<int>(blockDim.x / 32);
  const Lane l = {tid % 32, tid % 32 / 4, tid % 4};
  const int k_warp = warp % p.k_warps, row_warp = warp / p.k_warps;
  const auto row_of = [&](unsigned block) {
    return static_cast<int>(static_cast<int64_t>(p.rows) * block / gridDim.x);
  };
  const int begin = row_of(blockIdx.x), end = row_of(blockIdx.x + 1);
  const int num_tiles = (end - begin + tile_rows - 1) / tile_rows;
  const uint32_t ring = p.ring_at + warp * F::stages * p.stage_bytes;
  Copier<F> copier(p, ring, begin, end, k_warp, row_warp, l.lane);
#pragma unroll
  for (int stage = 0; stage < F::stages - 1; ++stage) copier.copy_next(p, stage, l.lane);
  launch_dependents();
  for (int i = tid; i < 32; i += static_cast<int>(blockDim.x)) write(i * 16, make_uint4(0, 0, 0, 0));
  wait_for_kernels_before();
  lay_out_x<F>(p);
  __syncthreads();

  // Columns that are missing read the zeros at 0.
  Chunk k{};
  uint32_t x_at = 0, x_step = 0, sums_at = 0, sums_step = 0;
  if (l.lane / 4 < p.columns) {
    x_at = p.x_at + l.lane / 4 * p.x_plane + l.t * 16, x_step = 512;
    if constexpr (F::offset_bytes > 0)
      sums_at = p.sums_at + l.lane / 4 * p.sums_plane + l.t * (F::offset_bytes / 4), sums_step = F::offset_bytes;
  }
  if constexpr (F::offset_bytes == 0) {
    if (2 * l.t < p.columns) sums_at = p.sums_at + l.t * p.sums_plane, sums_step = 64;
  }
  const uint32_t row_bytes = static_cast<uint32_t>(p.row_bytes);
  const uint32_t begins =
      Copier<F>::low_bits(p.data + (begin + l.row) * p.row_bytes);  // of this lane's row of any tile
  const int rounds = (num_tiles + p.row_warps - 1) / p.row_warps;
  int stage = 0;
  for (int first = 0; first < rounds; first += p.rounds_at_once) {
    const int last = min(first + p.rounds_at_once, rounds);
    for (int round = first; round < last; ++round) {
      if (round * p.row_warps + row_warp >= num_tiles) break;
      float acc[4] = {};
      for (int chunk = k_warp; chunk < p.chunks; chunk += p.k_warps) {
        copy_wait<F::stages - 2>();
        __syncwarp();
        copier.copy_next(p, stage == 0 ? F::stages - 1 : stage - 1, l.lane);
        k.rows = ring + stage * p.stage_bytes;
        k.scales = k.rows + tile_rows * F::stride * 16;
        k.x = x_at + chunk * x_step, k.sums = sums_at + chunk * sums_step;
        if constexpr (!F::aligned) {
          k.shift[0] = (begins + chunk * F::chunk_bytes) & 15;
          k.shift[1] = (k.shift[0] + 8 * row_bytes) & 15;
        }
        F::multiply(p, k, l, acc);
        stage = stage == F::stages - 1 ? 0 : stage + 1;
      }
      const uint32_t to = p.partials_at + ((round - first) * num_warps + warp) * (tile_rows * 4) * p.columns;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = 2 * l.t + (i & 1);
        if (c < p.columns) write(to + (c * tile_rows + l.row + 8 * (i >> 1)) * 4, acc[i]);
      }
    }
    __syncthreads();
    // Four lanes share the warps' sums of an output.
    const int parts = p.x_bf16 ? 1 : float_parts, outputs = (last - first) * p.row_warps * tile_rows * p.num_x;
    for (int i = tid; i < 4 * outputs; i += static_cast<int>(blockDim.x)) {
      const int out = i / 4, in_tile = out % tile_rows, n = out / tile_rows % p.num_x, tile = out / tile_rows / p.num_x;
      const int row = begin + (first * p.row_warps + tile) * tile_rows + in_tile;
      const int first_warp = tile / p.row_warps * num_warps + tile % p.row_warps * p.k_warps;
      float total = 0;
      for (int part = parts - 1; part >= 0; --part) {
        for (int w = tid % 4; w < p.k_warps; w += 4)
          total += read<float>(p.partials_at +
                               (((first_warp + w) * p.columns + n * parts + part) * tile_rows + in_tile) * 4);
      }
      total += __shfl_xor_sync(0xffffffffU, total, 1);
      total += __shfl_xor_sync(0xffffffffU, total, 2);
      total *= 1 / sum_unit;
      if (row >= end || tid % 4 != 0) continue;
      const int64_t at = static_cast<int64_t>(n) * p.rows + output_row(p, row);
      if (p.y_bf16) static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(total);
      else static_cast<float*>(p.y)[at] = total;
    }
    if (last < rounds) __syncthreads();
  }
}

// ---- The host's part ------------------------------------------------------------------------------------------------

// How a block is laid out: its warps and k_warps from the format and the columns alone.
struct Layout {
  int warps;
  uint32_t shared_bytes;
};
template <class F>
void lay_out_chunks(Product& p) {
  p.chunks = (p.cols + chunk_cols - 1) / chunk_cols;
  p.x_plane = static_cast<uint32_t>(p.chunks) * 512 + 64;
  p.sums_plane = static_cast<uint32_t>(p.chunks) * (F::offset_bytes == 0 ? 64 : F::offset_bytes) + 64;
  p.stage_bytes = tile_rows * F::stride * 16 + 2 * tile_rows * static_cast<uint32_t>(p.scale_bytes);
}
template <class F>
int64_t fixed_bytes(const Product& p, int warps,
                    int columns) {  // but the partial sums
  return int64_t{512} + columns * p.x_plane + (F::offset_bytes > 0 ? columns : (columns + 1) / 2) * p.sums_plane +
         static_cast<int64_t>(warps) * F::stages * p.stage_bytes;
}
inline int64_t partial_bytes(int warps, int columns) { return static_cast<int64_t>(warps) * tile_rows * 4 * columns; }

template <class F>
int warps_for(const Product& p, int64_t shared_limit) {
  int warps = most_warps;
  const auto bytes = [&] { return fixed_bytes<F>(p, warps, float_parts) + partial_bytes(warps, float_parts); };
  while (warps > 1 && bytes() > shared_limit) warps /= 2;
  return bytes() > shared_limit ? 0 : warps;
}
// How many columns a product can have; 0: the matrix is too wide.
template <class F>
int columns_that_fit(Product& p, int64_t shared_limit) {
  lay_out_chunks<F>(p);
  const int warps = warps_for<F>(p, shared_limit);
  int columns = warps == 0 ? 0 : most_columns;
  while (columns > 0 && fixed_bytes<F>(p, warps, columns) + partial_bytes(warps, columns) > shared_limit) --columns;
  return columns;
}
template <class F>
Layout lay_out(Product& p, int columns, int rows_of_block, int64_t shared_limit) {
  lay_out_chunks<F>(p);
  p.columns = columns;
  const int warps = warps_for<F>(p, shared_limit);
  // As many warps to a row as leave few of them without a chunk.
  p.k_warps = warps;
  while (p.k_warps > 1 && 5 * p.chunks < 4 * ((p.chunks + p.k_warps - 1) / p.k_warps * p.k_warps)) p.k_warps /= 2;
  p.row_warps = warps / p.k_warps;
  const int64_t fixed = fixed_bytes<F>(p, warps, columns), partial = partial_bytes(warps, columns);
  const int64_t wanted = (rows_of_block + tile_rows * p.row_warps - 1) / (tile_rows * p.row_warps);
  int64_t rounds = (shared_limit - fixed) / partial;
  if (rounds > wanted) rounds = wanted;
  if (rounds > 16) rounds = 16;
  p.rounds_at_once = static_cast<int>(rounds);
  p.x_at = 512;
  p.sums_at = p.x_at + columns * p.x_plane;
  p.partials_at = static_cast<uint32_t>(fixed);
  p.ring_at = p.partials_at - static_cast<uint32_t>(warps) * F::stages * p.stage_bytes;
  return {.warps = warps, .shared_bytes = static_cast<uint32_t>(fixed + rounds * partial)};
}

}  // namespace sluice::cuda::tiles
