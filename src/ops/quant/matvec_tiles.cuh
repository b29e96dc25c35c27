// Products of quantised matrices with a few columns on tensor cores, bound by the memory that the codes lie in.
//
// A code of up to eight bits is a bf16 as it stands: its bits are code * 2^-133, exactly. So a multiply-add of a tile
// of codes needs no decoding but a mask for each pair. x is scaled by 2^80 and split into bf16 that add up to it, one
// of a bf16 x, three of a float: the columns of the product. Each scale's group of columns has its own product, in
// float32, which is then scaled and added.
//
// A launch has up to three matrices, cut into tiles of 16 rows that the blocks share evenly. A block takes its tiles by
// chunks of 256 columns: a row's chunks go to k_warps warps in turn, and a warp holds a chunk of x in registers while
// it goes through the tiles, which cp.async brings to a ring of its own. The warps' sums are added in order. k_warps
// follows from the columns alone, so a result depends neither on the other rows of x nor on those of the weight.
#pragma once

#include "ops/quant/matvec_formats.cuh"

namespace sluice::cuda::tiles {

// ---- The kernel -----------------------------------------------------------------------------------------------------

// The tiles that a block takes at once: the units [begin, end), gated all tiles of the first matrix, then all of the
// second. Tiles are counted from 0.
struct Batch {
  int begin, end;

  __device__ int count(const Product& p) const { return (end - begin) * (p.gated ? 2 : 1); }
  // Of a tile: its matrix and its first row, and behind which tile the matrix ends here.
  struct Place {
    int matrix, row, last;
  };
  __device__ Place place_of(const Product& p, int tile) const {
    if (p.gated) {
      const int number = tile >= end - begin, first = number * (end - begin);
      return {number, (begin + tile - first) * tile_rows, first + end - begin};
    }
    const int number = (begin + tile >= p.matrices[1].first_tile) + (begin + tile >= p.matrices[2].first_tile);
    const int next = number < most_matrices - 1 ? p.matrices[number + 1].first_tile : end;
    return {number, (begin + tile - p.matrices[number].first_tile) * tile_rows, min(next, end) - begin};
  }
};

// A warp's copies of its tiles and chunks to its ring, in the order of their products: by batches, chunk by chunk. Lane l
// takes the pieces l, l + 32, … of a tile's rows, `of_row` to a row.
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
  const uint8_t *from, *scales;  // of the next tile; the lane's
  int tile, chunk, k_warp, row_warp;
  Batch batch;
  int last_unit;
  int matrix_end, whole_end, rows_left;  // of tiles: up to where `from` goes on, and every row is there

  __device__ static int row_of(int lane, int j) {
    return by_rows ? lane / of_row + j * (32 / of_row) : (lane + 32 * j) / of_row;
  }
  __device__ static int piece_of(int lane, int j) { return by_rows ? lane % of_row : (lane + 32 * j) % of_row; }
  __device__ static uint32_t low_bits(const uint8_t* p) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) & 15;
  }
  __device__ static uint32_t own_offset(int lane) {
    return by_rows ? lane / of_row * (F::stride * 16) + lane % of_row * 16 : lane * 16;
  }

  __device__ Copier(const Product& p, uint32_t ring, int first_unit, int last_unit_, int k_warp_, int row_warp_,
                    int lane)
      : wanted(0), chunk(k_warp_), k_warp(k_warp_), row_warp(row_warp_), last_unit(last_unit_) {
    const uint32_t row_bytes = static_cast<uint32_t>(p.row_bytes);
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const int r = row_of(lane, j), piece = piece_of(lane, j);
      const uint32_t shift = F::aligned || !regular ? 0 : r * row_bytes & 15;
      at[j] = r * row_bytes + piece * 16 - shift;
      const bool is_one =
          r < tile_rows && (regular ? piece * 16 < F::chunk_bytes + static_cast<int>(shift) : piece < F::pieces);
      wanted |= static_cast<uint32_t>(is_one) << j;
    }
    to = ring + own_offset(lane);
    scales_to = ring + tile_rows * F::stride * 16 + (lane & 15) * (2 * p.scale_bytes) + (lane >> 4) * p.scale_bytes;
    batch.begin = k_warp < p.chunks ? first_unit : last_unit;
    batch.end = min(batch.begin + p.units_at_once, last_unit);
    tile = row_warp;
    find(p, lane);
  }

  // To the next tile that there is, if this one is past the batch's last.
  __device__ void find(const Product& p, int lane) {
    if (batch.begin >= last_unit) return;
    while (tile >= batch.count(p)) {
      tile = row_warp;
      chunk += p.k_warps;
      if (chunk < p.chunks) continue;
      chunk = k_warp;
      batch.begin = batch.end;
      if (batch.begin >= last_unit) return;
      batch.end = min(batch.begin + p.units_at_once, last_unit);
    }
    const auto place = batch.place_of(p, tile);
    const Matrix& m = p.matrices[place.matrix];
    from = m.data + place.row * p.row_bytes + chunk * F::chunk_bytes;
    if constexpr (F::has_scales)
      scales =
          (lane < 16 ? m.scales : m.biases) + (place.row + (lane & 15)) * p.scale_row_bytes + chunk * p.scale_bytes;
    matrix_end = place.last;
    rows_left = m.rows - place.row;
    // Pieces that are not aligned reach into the next row.
    const int whole_rows = p.all_whole ? rows_left - (F::aligned ? 0 : 1) : 0;
    whole_end = min(matrix_end, tile + whole_rows / tile_rows);
  }

  __device__ void copy_next(const Product& p, int stage, int lane) {
    if (batch.begin < last_unit) {
      const uint32_t offset = stage * p.stage_bytes;
      if (tile < whole_end) {
        const uint8_t* base = regular ? from : from - low_bits(from);
#pragma unroll
        for (int j = 0; j < count; ++j) {
          constexpr uint32_t apart = by_rows ? 32 / of_row * F::stride * 16 : 512;
          if (all_wanted || (wanted >> j & 1)) copy_async<16>(to + offset + j * apart, base + at[j]);
        }
      } else {
        copy_part(p, from, min(tile_rows, rows_left), to - own_offset(lane) + offset, lane);
      }
      if constexpr (F::has_scales) {
        const uint32_t dst = scales_to + offset;
        if (tile < whole_end && p.scales_whole) {
          copy_async<8>(dst, scales);
        } else if ((lane & 15) < rows_left) {
          const int left = static_cast<int>(p.scale_row_bytes) - chunk * p.scale_bytes;
#pragma unroll 1
          for (int b = 0; b < p.scale_bytes; b += 4) copy_async_part<4>(dst + b, scales + b, b < left ? 4 : 0);
        }
      }
      tile += p.row_warps;
      if (tile < matrix_end) {
        from += p.tile_step;
        if constexpr (F::has_scales) scales += p.scale_tile_step;
        rows_left -= p.row_warps * tile_rows;
      } else {
        find(p, lane);
      }
    }
    copy_commit();
  }
  // What lies beyond a row's end becomes zeros.
  __device__ void copy_part(const Product& p, const uint8_t* first, int rows, uint32_t stage, int lane) const {
    const int left = static_cast<int>(p.row_bytes) - chunk * F::chunk_bytes;
#pragma unroll 1
    for (int i = lane; i < rows * F::pieces; i += 32) {
      const int r = i / F::pieces, piece = i % F::pieces;
      const uint8_t* begin = first + r * p.row_bytes;
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

constexpr uint32_t x_plane = 512 + 64;  // bytes between the columns of a warp's chunk of x

// A warp's chunk of x: lane (q, t) = (lane / 4, lane % 4) loads the eight columns of its slots.
template <class F>
struct XChunk {
  float next[8];    // of the first row, as they lie
  float factor[8];  // the norm's

  __device__ void load(const Product& p, int chunk, int n, int lane, float (&v)[8]) const {
    const int64_t row = static_cast<int64_t>(n) * p.cols;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = chunk * chunk_cols + F::slot(lane >> 2, lane & 3, j).column;
      v[j] = 0;
      if (column < p.cols)
        v[j] = p.x_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.x)[row + column])
                        : static_cast<const float*>(p.x)[row + column];
    }
  }
  __device__ void load_next(const Product& p, int chunk, int lane) {
    if (chunk < p.chunks) load(p, chunk, 0, lane, next);
  }
  __device__ void load_factors(const Product& p, int chunk, int lane) {
    if (!p.normed) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int column = chunk * chunk_cols + F::slot(lane >> 2, lane & 3, j).column;
      factor[j] = 1;
      if (p.norm_weight != nullptr && column < p.cols) factor[j] = p.norm_offset + __ldg(p.norm_weight + column);
    }
  }

  // The chunk and its sums in the order of the format's slots, at `planes` and `sums_at`; rstd_at: of the rows.
  __device__ void lay_out(const Product& p, int chunk, uint32_t planes, uint32_t sums_at, uint32_t rstd_at, int lane) {
    const int q = lane >> 2, t = lane & 3;
#pragma unroll 1
    for (int n = 0; n < p.num_x; ++n) {
      float v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = next[j];
      if (n + 1 < p.num_x) load(p, chunk, n + 1, lane, next);
      if (p.normed) {
        const float rstd = read<float>(rstd_at + n * 4);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = v[j] * rstd * factor[j];
      }
#pragma unroll 1
      for (int part = 0; part < p.parts; ++part) {
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
        const int c = n * p.parts + part;
        write(planes + c * x_plane + lane * 16, make_uint4(packed[0], packed[1], packed[2], packed[3]));
        constexpr int sums = F::offset_bytes == 128 ? 2 : 1;
        if constexpr (sums == 1) sum[0] += sum[1];
#pragma unroll
        for (int i = 0; i < sums; ++i) {
          sum[i] += __shfl_xor_sync(0xffffffffU, sum[i], 1);
          sum[i] += __shfl_xor_sync(0xffffffffU, sum[i], 2);
          sum[i] *= F::sum_factor;
        }
        if constexpr (F::offset_bytes == 0) {
          if (t == 0) write(sums_at + (c >> 1) * 64 + q * 8 + (c & 1) * 4, sum[0]);
        } else {
          const uint32_t at = sums_at + c * F::offset_bytes;
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
            if (lane == 0) {
              const float rest = write_parts(at + 24, 2, -total, 2);
              write_parts(at + 32 + 24, 2, rest, 1);
            }
          }
        }
      }
    }
  }
};

__device__ inline int output_row(const Matrix& m, int stored) {  // the inverse of Weight::stored_row
  if (m.interleaved_head_dim == 0) return stored;
  const uint32_t in_head = static_cast<uint32_t>(stored) % m.interleaved_head_dim;
  return stored - static_cast<int>(in_head) +
         static_cast<int>(in_head / 2 + (in_head & 1 ? m.interleaved_head_dim / 2 : 0));
}

// As in ops/activation.
__device__ inline float act(Activation activation, float z) {
  const float u = activation == Activation::silu ? z : 1.5957691216F * z * fmaf(0.044715F * z, z, 1.0F);
  return z / __fadd_rn(1.0F, expf(-u));
}

__device__ inline void store(void* to, int64_t at, bool is_bf16, bool add, float value) {
  if (is_bf16) {
    auto* y = static_cast<__nv_bfloat16*>(to) + at;
    *y = __float2bfloat16_rn(add ? __bfloat162float(*y) + value : value);
  } else {
    float* y = static_cast<float*>(to) + at;
    *y = add ? *y + value : value;
  }
}

constexpr int most_x = most_columns;
// In front of a block's shared memory: of each row of x the warps' sums of squares, then 1 / its root mean square.
constexpr uint32_t squares_at = 0, rstd_at = most_x * most_warps * 4, head_bytes = rstd_at + most_x * 4;

// 1 / the root of the mean square of each row of x, to rstd_at. All threads of a block.
__device__ inline void find_rstd(const Product& p) {
  const int tid = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), warps = threads / 32;
  for (int n = 0; n < p.num_x; ++n) {
    const int64_t row = static_cast<int64_t>(n) * p.cols;
    float squares = 0;
#pragma unroll 8
    for (int c = tid; c < p.cols; c += threads) {
      const float v = p.x_bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(p.x)[row + c])
                               : static_cast<const float*>(p.x)[row + c];
      squares = fmaf(v, v, squares);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffU, squares, offset);
    if (tid % 32 == 0) write(squares_at + (n * warps + tid / 32) * 4, squares);
  }
  __syncthreads();
  if (tid < p.num_x) {
    float total = 0;
    for (int w = 0; w < warps; ++w) total += read<float>(squares_at + (tid * warps + w) * 4);
    write(rstd_at + tid * 4, 1.0F / sqrtf(total / static_cast<float>(p.cols) + p.norm_eps));
  }
  __syncthreads();
}

// Adds a tile's sums to the warp's of that tile: [num_x, 16] floats at `to`.
__device__ inline void add_partial(const Product& p, const Lane& l, uint32_t to, bool first, const float (&acc)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float a = acc[2 * half], b = acc[2 * half + 1];
    const uint32_t at = to + (l.row + 8 * half) * 4;
    if (p.parts == 1) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int n = 2 * l.t + i;
        if (n >= p.num_x) continue;
        const uint32_t own = at + n * tile_rows * 4;
        const float value = i == 0 ? a : b;
        write(own, first ? value : read<float>(own) + value);
      }
    } else {  // the parts of row 0 are the columns 0, 1, 2, those of row 1 are 3, 4, 5
      const int from = (l.lane & ~3) | 1;
      const float a1 = __shfl_sync(0xffffffffU, a, from), b1 = __shfl_sync(0xffffffffU, b, from);
      const float value = l.t == 0 ? (a1 + b) + a : (b + a) + b1;
      if (l.t % 2 == 1 || l.t / 2 >= p.num_x) continue;
      const uint32_t own = at + l.t / 2 * tile_rows * 4;
      write(own, first ? value : read<float>(own) + value);
    }
  }
}

template <class F>
__global__ __launch_bounds__(most_warps * 32, 1) void matvec_kernel(const __grid_constant__ Product p) {
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, threads = static_cast<int>(blockDim.x);
  const Lane l = {tid % 32, tid % 32 / 4, tid % 4};
  const int k_warp = warp % p.k_warps, row_warp = warp / p.k_warps;
  const auto first_of = [&](unsigned block) {
    return static_cast<int>(static_cast<int64_t>(p.units) * block / gridDim.x);
  };
  const int first_unit = first_of(blockIdx.x), last_unit = first_of(blockIdx.x + 1);
  const uint32_t ring = p.ring_at + warp * F::stages * p.stage_bytes;
  Copier<F> copier(p, ring, first_unit, last_unit, k_warp, row_warp, l.lane);
  launch_dependents();
#pragma unroll 1
  for (int stage = 0; stage < F::stages; ++stage) copier.copy_next(p, stage, l.lane);
  XChunk<F> x;
  x.load_factors(p, k_warp, l.lane);
  wait_for_kernels_before();
  x.load_next(p, k_warp, l.lane);
  if (p.normed) find_rstd(p);

  // Columns that are missing repeat the last: what they give is not used.
  const int column = min(l.lane / 4, p.columns - 1);
  const uint32_t planes = p.x_at + warp * p.x_bytes, sums_at = planes + p.columns * x_plane;
  Chunk k;
  if constexpr (F::offset_bytes == 0) k.sums = sums_at + min(l.t, (p.columns - 1) / 2) * 64;
  else k.sums = sums_at + column * F::offset_bytes + l.t * (F::offset_bytes / 4);
  const uint32_t row_bytes = static_cast<uint32_t>(p.row_bytes);
  int stage = 0;
  k.rows = ring;
  for (Batch batch = {first_unit, 0}; batch.begin < last_unit; batch.begin = batch.end) {
    batch.end = min(batch.begin + p.units_at_once, last_unit);
    const int tiles = batch.count(p);
#pragma unroll 1
    for (int chunk = k_warp; chunk < p.chunks; chunk += p.k_warps) {
      if (batch.begin == first_unit || p.chunks > p.k_warps) {  // else it is there
        if (batch.begin > first_unit || chunk > k_warp) x.load_factors(p, chunk, l.lane);
        x.lay_out(p, chunk, planes, sums_at, rstd_at, l.lane);
        __syncwarp();
#pragma unroll
        for (int q = 0; q < 8; ++q) k.x[q] = read<uint4>(planes + column * x_plane + q * 64 + l.t * 16);
        x.load_next(p, chunk + p.k_warps < p.chunks ? chunk + p.k_warps : k_warp, l.lane);
      }
      if constexpr (!F::aligned) {
        k.shift[0] = (l.row * row_bytes + chunk * F::chunk_bytes) & 15;
        k.shift[1] = (k.shift[0] + 8 * row_bytes) & 15;
      }
      const uint32_t partial_step = p.row_warps * p.k_warps * (tile_rows * 4) * p.num_x;
      uint32_t to = p.partials_at + warp * (tile_rows * 4) * p.num_x;
#pragma unroll 1
      for (int tile = row_warp; tile < tiles; tile += p.row_warps, to += partial_step) {
        copy_wait<F::stages - 1>();
        __syncwarp();
        k.scales = k.rows + tile_rows * F::stride * 16;
        float acc[4] = {};
        F::multiply(p, k, l, acc);
        __syncwarp();
        copier.copy_next(p, stage, l.lane);
        const bool around = stage == F::stages - 1;
        stage = around ? 0 : stage + 1;
        k.rows = around ? ring : k.rows + p.stage_bytes;
        add_partial(p, l, to, chunk == k_warp, acc);
      }
      __syncwarp();
    }
    __syncthreads();
    // Four lanes share the warps' sums of an output.
    const int k_used = min(p.k_warps, p.chunks);
    const auto total_of = [&](int tile, int n, int r) {
      float total = 0;
      for (int w = tid % 4; w < k_used; w += 4)
        total += read<float>(p.partials_at + (((tile * p.k_warps + w) * p.num_x + n) * tile_rows + r) * 4);
      total += __shfl_xor_sync(0xffffffffU, total, 1);
      total += __shfl_xor_sync(0xffffffffU, total, 2);
      return total * (1 / sum_unit);
    };
    const int units = batch.end - batch.begin, outputs = units * tile_rows * p.num_x;
#pragma unroll 1
    for (int i = tid; i < 4 * outputs; i += threads) {
      const int out = i / 4, r = out % tile_rows, n = out / tile_rows % p.num_x, tile = out / tile_rows / p.num_x;
      float total = total_of(tile, n, r);
      if (p.gated) total = act(p.activation, total) * total_of(units + tile, n, r);
      const auto place = batch.place_of(p, tile);
      const Matrix& m = p.matrices[place.matrix];
      if (place.row + r >= m.rows || tid % 4 != 0) continue;
      store(m.y, static_cast<int64_t>(n) * m.rows + output_row(m, place.row + r), p.y_bf16, p.add, total);
    }
    if (batch.end < last_unit) __syncthreads();
  }
}

// ---- The host's part ------------------------------------------------------------------------------------------------

// How a block is laid out: its warps and k_warps from the format and the columns alone.
struct Layout {
  int blocks, warps;
  uint32_t shared_bytes;
};

// All but the partial sums; the bytes of those for one tile.
template <class F>
int64_t lay_out_warps(Product& p, int warps) {
  p.chunks = (p.cols + chunk_cols - 1) / chunk_cols;
  p.stage_bytes = tile_rows * F::stride * 16 + 2 * tile_rows * static_cast<uint32_t>(p.scale_bytes);
  // As many warps to a row as leave few of them without a chunk.
  p.k_warps = warps;
  while (p.k_warps > 1 && 4 * p.chunks < 3 * ((p.chunks + p.k_warps - 1) / p.k_warps * p.k_warps)) p.k_warps /= 2;
  p.row_warps = warps / p.k_warps;
  p.columns = p.num_x * p.parts;
  p.x_bytes = static_cast<uint32_t>(p.columns) * x_plane +
              (F::offset_bytes > 0 ? p.columns * F::offset_bytes : (p.columns + 1) / 2 * 64);
  p.x_at = (head_bytes + 127) / 128 * 128;
  p.ring_at = p.x_at + warps * p.x_bytes;
  p.partials_at = p.ring_at + warps * F::stages * p.stage_bytes;
  return int64_t{tile_rows} * 4 * p.num_x * p.k_warps;
}

// For up to `num_x` rows of x: p.num_x of them.
template <class F>
Layout lay_out(Product& p, int64_t num_x, int most_blocks, int64_t limit) {
  const int of_unit = p.gated ? 2 : 1;
  int warps = most_warps;
  p.num_x = 1;
  const auto fits = [&] {
    const int64_t of_tile = lay_out_warps<F>(p, warps);
    return p.partials_at + of_unit * of_tile <= limit;
  };
  const int own_parts = p.parts;
  p.parts = float_parts;
  while (warps > 1 && !fits()) warps /= 2;
  p.parts = own_parts;
  p.num_x = static_cast<int>(num_x < most_columns / p.parts ? num_x : most_columns / p.parts);
  while (p.num_x > 1 && !fits()) --p.num_x;
  const int64_t bytes_of_unit = lay_out_warps<F>(p, warps) * of_unit;
  p.all_whole = p.cols % chunk_cols == 0 && (F::chunk_bytes % 16 == 0 || p.row_bytes % 16 == 0);
  p.tile_step = p.row_warps * tile_rows * p.row_bytes;
  p.scale_tile_step = p.row_warps * tile_rows * p.scale_row_bytes;
  p.units = p.tiles / of_unit;
  const int blocks = p.units < most_blocks ? p.units : most_blocks;
  const int64_t most = (p.units + blocks - 1) / blocks;
  int64_t units = (limit - p.partials_at) / bytes_of_unit;
  if (units > most) units = most;
  p.units_at_once = static_cast<int>(units);
  return {
      .blocks = blocks, .warps = warps, .shared_bytes = static_cast<uint32_t>(p.partials_at + units * bytes_of_unit)};
}

}  // namespace sluice::cuda::tiles
