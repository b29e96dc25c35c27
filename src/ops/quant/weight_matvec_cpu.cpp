// Matrix-vector products with a quantised matrix, for one to a few rows of x (docs/math/quant.md, "Matrix-vector").
//
// A worker takes a fixed block of output rows, four at a time, and decodes their weights in registers. Each (row of x, output)
// has one vector of partial sums, fed in the order of the columns, and one final reduction: so a result depends neither on N nor on
// the number of threads.
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "ops/quant/quant.h"
#include "ops/common/cpu_simd.h"

#include "ops/quant/quant_decode.h"

namespace sluice::SLUICE_CPU {
namespace {

constexpr int row_tile = 4;                    // outputs at once: their streams hide each other's latency
constexpr int64_t max_batch = 16;              // rows of x that are kept as float at a time
constexpr int64_t weights_per_item = 1 << 15;  // 18 KiB of q4

int64_t padded(int64_t cols) { return (cols + piece_cols - 1) / piece_cols * piece_cols; }

template <int N>
struct Sums {
  F32 sum[row_tile][N];
};

// sum[r][n] += w[r] * x[n] over one piece
template <int N>
SLUICE_INLINE void add_piece(F32 (&sum)[N], const F32 (&w)[vectors], const float* x, int64_t x_stride) {
  for (int v = 0; v < vectors; ++v) {
    for (int n = 0; n < N; ++n) sum[n] = fma(load(x + n * x_stride + v * lanes), w[v], sum[n]);
  }
}

template <class D, int N>
SLUICE_INLINE void accumulate(const Row (&rows)[row_tile], int64_t cols, const float* x, int64_t x_stride,
                              Sums<N>& sums) {
  constexpr int64_t unit_cols = D::pieces * piece_cols;
  const int64_t units = cols / unit_cols, rest = cols % unit_cols;
  F32 w[vectors];
  for (int64_t u = 0; u < units; ++u) {
    for (int r = 0; r < row_tile; ++r) {
      const auto unit = D::unit(rows[r], u);
#pragma GCC unroll 8
      for (int p = 0; p < D::pieces; ++p) {
        D::decode(unit, p, w);
        add_piece(sums.sum[r], w, x + u * unit_cols + p * piece_cols, x_stride);
      }
    }
  }
  if (D::has_part && rest > 0) {
    for (int r = 0; r < row_tile; ++r) {
      D::decode_part(D::unit(rows[r], units), rest, w);
      add_piece(sums.sum[r], w, x + units * unit_cols, x_stride);
    }
  }
}

struct Batch {
  const float* x;  // [N, padded(cols)], zero beyond cols
  int64_t num_rows, stride;
};

template <class D, int N, class T>
void multiply(const Weight& weight, const Row (&rows)[row_tile], int64_t row, int64_t count, const Batch& batch,
              int64_t n, T* y) {
  Sums<N> sums = {};
  accumulate<D, N>(rows, weight.cols, batch.x + n * batch.stride, batch.stride, sums);
  for (int r = 0; r < count; ++r) {
    for (int i = 0; i < N; ++i) y[(n + i) * weight.rows + row + r] = T(reduce_add(sums.sum[r][i]));
  }
}

template <class D, class T>
void multiply_rows(const Weight& weight, int64_t row_begin, int64_t row_end, const Batch& batch, T* y) {
  for (int64_t row = row_begin; row < row_end; row += row_tile) {
    const int64_t count = std::min<int64_t>(row_tile, row_end - row);
    Row rows[row_tile];
    for (int64_t r = 0; r < row_tile; ++r) rows[r] = row_of(weight, row + std::min(r, count - 1));
    int64_t n = 0;
    for (; n + 4 <= batch.num_rows; n += 4) multiply<D, 4>(weight, rows, row, count, batch, n, y);
    for (; n + 2 <= batch.num_rows; n += 2) multiply<D, 2>(weight, rows, row, count, batch, n, y);
    if (n < batch.num_rows) multiply<D, 1>(weight, rows, row, count, batch, n, y);
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

template <class T>
void matvec(Context& ctx, const WeightMatvec& args, float* scratch, T* y) {
  const Weight& weight = args.weight;
  const int64_t in = weight.cols, out = weight.rows, N = args.x.shape[0];
  const int64_t tile = std::max<int64_t>(row_tile, weights_per_item / in / row_tile * row_tile);
  for (int64_t n = 0; n < N; n += max_batch) {
    Batch batch = {scratch, std::min(max_batch, N - n), padded(in)};
    const Tensor x = args.x.rows(n, batch.num_rows);
    if (x.dtype == DType::bf16) to_padded_floats(x.as<bf16>(), batch.num_rows, in, scratch);
    else if (in % piece_cols != 0) to_padded_floats(x.as<float>(), batch.num_rows, in, scratch);
    else batch.x = x.as<float>();
    with_decoder(weight, [&]<class D>(D) {
      ctx.pool.parallel_for((out + tile - 1) / tile, [&](int64_t item, int) {
        multiply_rows<D>(weight, item * tile, std::min(out, (item + 1) * tile), batch, y + n * out);
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
  if (args.y.dtype == DType::bf16) matvec(ctx, args, scratch, args.y.as<bf16>());
  else matvec(ctx, args, scratch, args.y.as<float>());
}

}  // namespace sluice::SLUICE_CPU
