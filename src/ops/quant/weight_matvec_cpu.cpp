// Matrix-vector products with a quantised matrix, for one to a few rows of x (docs/math/quant.md, "Matrix-vector").
//
// A worker takes a fixed block of outputs, four at a time. Each (row of x, output) has one vector of partial sums, fed in the
// order of the columns, and one final reduction: so a result depends neither on N nor on the number of threads. Up to
// `batch_tile` rows of x meet the weights in the registers they are decoded to; more rows meet them in a chunk of
// decoded weights that stays in the first-level cache.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "ops/quant/quant.h"
#include "ops/common/cpu_simd.h"

#include "ops/quant/quant_decode.h"

namespace sluice::SLUICE_CPU {
namespace {

constexpr int row_tile = 4;                      // outputs at once: their streams hide each other's latency
constexpr int batch_tile = lanes == 16 ? 4 : 2;  // row_tile * batch_tile sums fit the registers
constexpr int64_t max_batch = 16;                // rows of x that are kept as float at a time
constexpr int chunk_pieces = 8;                  // of decoded weights: 4 rows of 256 floats
constexpr int64_t weights_per_item = 1 << 15;

constexpr int64_t padded(int64_t cols) { return (cols + piece_cols - 1) / piece_cols * piece_cols; }

// The sums of four vectors, each by the same tree: halves of the vector, then lanes (0 + 2) + (1 + 3).
SLUICE_INLINE __m128 quarter(F32 v) {
#if defined(SLUICE_ISA_AVX512)
  const __m256 h =
      _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 0), _mm512_maskz_extractf32x8_ps(0xff, (__m512)v, 1));
#else
  const __m256 h = (__m256)v;
#endif
  return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
SLUICE_INLINE void reduce_four(F32 a, F32 b, F32 c, F32 d, float* out) {
  const __m128 qa = quarter(a), qb = quarter(b), qc = quarter(c), qd = quarter(d);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(qa, qb), _mm_unpackhi_ps(qa, qb));  // a02 b02 a13 b13
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(qc, qd), _mm_unpackhi_ps(qc, qd));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

// The rows of x as floats, zero beyond the columns up to a whole piece.
struct Batch {
  const float* x;
  int64_t num_rows, stride;
};

// The outputs [row, row + count) of one tile, count <= row_tile; missing rows repeat the last.
struct Tile {
  Row rows[row_tile];
  int64_t row, count, cols, row_bytes;
};

// y [N, out] of the batch, f32 or bf16.
struct Output {
  void* data;
  DType dtype;
  int64_t stride;
};

template <class T>
SLUICE_INLINE void write_as(const float* total, const Tile& tile, T* y) {
  for (int64_t r = 0; r < tile.count; ++r) y[tile.row + r] = T(total[r]);
}
SLUICE_INLINE void write_sums(const F32 (&sum)[row_tile], const Tile& tile, const Output& y, int64_t n) {
  float total[row_tile];
  reduce_four(sum[0], sum[1], sum[2], sum[3], total);
  if (y.dtype == DType::bf16) write_as(total, tile, static_cast<bf16*>(y.data) + n * y.stride);
  else write_as(total, tile, static_cast<float*>(y.data) + n * y.stride);
}

// Tiles lie one after another in the file, so while unit u of this one is read, the u-th part of the next is fetched: the rows are
// too short for the hardware to see four streams coming. A next tile too large for the first-level cache waits in the second.
template <int bytes>
SLUICE_INLINE void prefetch_next_tile(const Tile& tile, int64_t u) {
  const std::byte* p = tile.rows[0].data + row_tile * tile.row_bytes + u * bytes;
  if (row_tile * tile.row_bytes <= 16384) {
    for (int b = 0; b < bytes; b += 64) __builtin_prefetch(p + b);
  } else {
    for (int b = 0; b < bytes; b += 64) __builtin_prefetch(p + b, 0, 2);
  }
}

// sum[r][n] += w * x[n] over one piece
template <int N>
SLUICE_INLINE void add_piece(F32 (&sum)[N], const F32 (&w)[vectors], const float* x, int64_t x_stride) {
  for (int v = 0; v < vectors; ++v) {
    for (int n = 0; n < N; ++n) sum[n] = fma(load(x + n * x_stride + v * lanes), w[v], sum[n]);
  }
}

// N rows of x, N <= batch_tile, all sums in registers.
template <class D, int N>
void multiply_fused(const Tile& tile, const Batch& batch, const Output& y) {
  const float* x = batch.x;
  constexpr int64_t unit_cols = D::pieces * piece_cols;
  const int64_t units = tile.cols / unit_cols, rest = tile.cols % unit_cols;
  const Row rows[row_tile] = {tile.rows[0], tile.rows[1], tile.rows[2], tile.rows[3]};
  F32 sum[row_tile][N] = {}, w[vectors];
  for (int64_t u = 0; u < units; ++u, x += unit_cols) {
    prefetch_next_tile<row_tile * D::unit_bytes>(tile, u);
    for (int r = 0; r < row_tile; ++r) {
      const auto unit = D::unit(rows[r], u);
#pragma GCC unroll 8
      for (int p = 0; p < D::pieces; ++p) {
        D::decode(unit, p, w);
        add_piece(sum[r], w, x + p * piece_cols, batch.stride);
      }
    }
  }
  if (D::has_part && rest > 0) {
    for (int r = 0; r < row_tile; ++r) {
      D::decode_part(D::unit(rows[r], units), rest, w);
      add_piece(sum[r], w, x, batch.stride);
    }
  }
  for (int n = 0; n < N; ++n) {
    const F32 of_row[row_tile] = {sum[0][n], sum[1][n], sum[2][n], sum[3][n]};
    write_sums(of_row, tile, y, n);
  }
}

// Pieces [first, first + count) of a row as floats.
template <class D>
SLUICE_INLINE void decode_chunk(const Row& row, int64_t cols, int64_t first, int count, float* out) {
  F32 w[vectors];
  for (int p = 0; p < count; p += D::pieces) {
    const int64_t begin = (first + p) * piece_cols;
    const auto unit = D::unit(row, (first + p) / D::pieces);
#pragma GCC unroll 8
    for (int i = 0; i < D::pieces; ++i, out += piece_cols) {
      if (D::has_part && cols - begin < piece_cols) D::decode_part(unit, cols - begin, w);
      else D::decode(unit, i, w);
      for (int v = 0; v < vectors; ++v) store(out + v * lanes, w[v]);
    }
  }
}

// sum[n][r] += w[r] * x[n] over `count` vectors of a chunk
template <int N>
SLUICE_INLINE void multiply_chunk(const float (&w)[row_tile][chunk_pieces * piece_cols], int count, const float* x,
                                  int64_t x_stride, F32 (*sum)[row_tile]) {
  F32 s[N][row_tile];
  for (int n = 0; n < N; ++n) {
    for (int r = 0; r < row_tile; ++r) s[n][r] = sum[n][r];
  }
  for (int i = 0; i < count * lanes; i += lanes) {
    F32 wv[row_tile];
    for (int r = 0; r < row_tile; ++r) wv[r] = load(w[r] + i);
    for (int n = 0; n < N; ++n) {
      const F32 xv = load(x + n * x_stride + i);
      for (int r = 0; r < row_tile; ++r) s[n][r] = fma(xv, wv[r], s[n][r]);
    }
  }
  for (int n = 0; n < N; ++n) {
    for (int r = 0; r < row_tile; ++r) sum[n][r] = s[n][r];
  }
}

// Any number of rows up to max_batch.
template <class D>
void multiply_chunked(const Tile& tile, const Batch& batch, const Output& y) {
  alignas(64) float w[row_tile][chunk_pieces * piece_cols];
  F32 sum[max_batch][row_tile];
  for (int64_t n = 0; n < batch.num_rows; ++n) std::memset(sum[n], 0, sizeof sum[n]);
  const int64_t pieces = padded(tile.cols) / piece_cols;
  for (int64_t first = 0; first < pieces; first += chunk_pieces) {
    const int count = static_cast<int>(std::min<int64_t>(chunk_pieces, pieces - first));
    for (int r = 0; r < row_tile; ++r) decode_chunk<D>(tile.rows[r], tile.cols, first, count, w[r]);
    const float* x = batch.x + first * piece_cols;
    int64_t n = 0;
    for (; n + batch_tile <= batch.num_rows; n += batch_tile) {
      multiply_chunk<batch_tile>(w, count * vectors, x + n * batch.stride, batch.stride, sum + n);
    }
    for (; n < batch.num_rows; ++n) multiply_chunk<1>(w, count * vectors, x + n * batch.stride, batch.stride, sum + n);
  }
  for (int64_t n = 0; n < batch.num_rows; ++n) write_sums(sum[n], tile, y, n);
}

template <class D>
void multiply_rows(const Rows& weight, int64_t row_begin, int64_t row_end, const Batch& batch, const Output& y) {
  for (int64_t row = row_begin; row < row_end; row += row_tile) {
    Tile tile = {{}, row, std::min<int64_t>(row_tile, row_end - row), weight.weight.cols, weight.row_bytes};
    for (int64_t r = 0; r < row_tile; ++r) tile.rows[r] = weight.at(row + std::min(r, tile.count - 1));
    if (batch.num_rows == 1) multiply_fused<D, 1>(tile, batch, y);
    else if (batch.num_rows == 2) multiply_fused<D, 2>(tile, batch, y);
    else if (batch.num_rows == batch_tile) multiply_fused<D, batch_tile>(tile, batch, y);
    else multiply_chunked<D>(tile, batch, y);
  }
}

template <class T>
void to_padded_floats(const T* x, int64_t rows, int64_t cols, float* out) {
  for (int64_t n = 0; n < rows; ++n, x += cols, out += padded(cols)) {
    int64_t c = 0;
    for (; c + lanes <= cols; c += lanes) store(out + c, load(x + c));
    for (; c < padded(cols); ++c) out[c] = c < cols ? static_cast<float>(x[c]) : 0.0F;
  }
}

void matvec(Context& ctx, const WeightMatvec& args, float* scratch) {
  const Weight& weight = args.weight;
  const Rows rows(weight);
  const int64_t in = weight.cols, out = weight.rows, N = args.x.shape[0];
  const int64_t tile = std::max<int64_t>(row_tile, weights_per_item / in / row_tile * row_tile);
  for (int64_t n = 0; n < N; n += max_batch) {
    Batch batch = {scratch, std::min(max_batch, N - n), padded(in)};
    const Tensor x = args.x.rows(n, batch.num_rows);
    if (x.dtype == DType::bf16) to_padded_floats(x.as<bf16>(), batch.num_rows, in, scratch);
    else if (in % piece_cols != 0) to_padded_floats(x.as<float>(), batch.num_rows, in, scratch);
    else batch.x = x.as<float>();
    const Output y = {args.y.rows(n, batch.num_rows).data, args.y.dtype, out};
    with_decoder(weight, [&]<class D>(D) {
      ctx.pool.parallel_for((out + tile - 1) / tile, [&](int64_t item, int) {
        multiply_rows<D>(rows, item * tile, std::min(out, (item + 1) * tile), batch, y);
      });
    });
  }
}

}  // namespace

void weight_matvec(Context& ctx, const WeightMatvec& args) {
  ArenaScope scope(ctx.arena);
  const int64_t N = args.x.shape[0], in = args.weight.cols;
  const bool as_is = args.x.dtype == DType::f32 && in % piece_cols == 0;
  float* scratch = scope.array<float>(as_is ? 0 : std::min(N, max_batch) * padded(in));
  if (ctx.counting() || N == 0) return;
  if (in == 0) return std::memset(args.y.data, 0, static_cast<size_t>(args.y.size_bytes())), void();
  matvec(ctx, args, scratch);
}

}  // namespace sluice::SLUICE_CPU
