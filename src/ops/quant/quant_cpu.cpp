#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "ops/quant/quant.h"
#include "ops/common/cpu_simd.h"

#include "ops/quant/quant_decode.h"

namespace sluice::SLUICE_CPU {
namespace {

// out[j] = scale * W[row, col_begin + j]; scale is applied after the weight is rounded to float.
template <class D, class T>
void decode_row(Row row, int64_t col_begin, int64_t cols, float scale, T* out) {
  constexpr int64_t unit_cols = D::pieces * piece_cols;
  F32 w[vectors];
  if constexpr (D::has_part) {  // plain floats: any column may be the first
    row.data += col_begin * D::weight_bytes;
    col_begin = 0;
  }
  const int64_t first = col_begin / unit_cols, units = cols / unit_cols, rest = cols % unit_cols;
  for (int64_t u = 0; u < units; ++u) {
    const auto unit = D::unit(row, first + u);
#pragma GCC unroll 8
    for (int p = 0; p < D::pieces; ++p, out += piece_cols) {
      D::decode(unit, p, w);
      for (int v = 0; v < vectors; ++v) store(out + v * lanes, w[v] * scale);
    }
  }
  if (D::has_part && rest > 0) {
    D::decode_part(D::unit(row, first + units), rest, w);
    for (int v = 0; v * lanes < rest; ++v)
      store_part(out + v * lanes, w[v] * scale, std::min<int64_t>(lanes, rest - v * lanes));
  }
}

// An item of work: about this many weights.
constexpr int64_t weights_per_item = 16384;

int64_t rows_per_item(int64_t cols) { return std::max<int64_t>(1, weights_per_item / std::max<int64_t>(cols, 1)); }

template <class F>
void for_row_blocks(Context& ctx, int64_t rows, int64_t cols, F f) {
  const int64_t block = rows_per_item(cols);
  ctx.pool.parallel_for((rows + block - 1) / block, [&](int64_t item, int) {
    for (int64_t r = item * block; r < std::min(rows, (item + 1) * block); ++r) f(r);
  });
}

template <class T>
void dequantize_to(Context& ctx, const Dequantize& args, T* out) {
  const int64_t rows = args.out.shape[0], cols = args.out.shape[1];
  const Rows weight(args.weight);
  with_decoder(args.weight, [&]<class D>(D) {
    for_row_blocks(ctx, rows, cols, [&](int64_t r) {
      decode_row<D>(weight.at(args.row_begin + r), args.col_begin, cols, 1.0F, out + r * cols);
    });
  });
}

template <class T>
void gather_to(Context& ctx, const GatherWeightRows& args, T* y) {
  const int64_t C = args.table.cols;
  const int32_t* ids = args.ids.as<int32_t>();
  const Rows table(args.table);
  with_decoder(args.table, [&]<class D>(D) {
    for_row_blocks(ctx, args.ids.shape[0], C,
                   [&](int64_t n) { decode_row<D>(table.at(ids[n]), 0, C, args.scale, y + n * C); });
  });
}

}  // namespace

void dequantize(Context& ctx, const Dequantize& args) {
  if (ctx.counting()) return;
  if (args.out.dtype == DType::bf16) dequantize_to(ctx, args, args.out.as<bf16>());
  else dequantize_to(ctx, args, args.out.as<float>());
}

void gather_weight_rows(Context& ctx, const GatherWeightRows& args) {
  if (ctx.counting()) return;
  const int32_t* ids = args.ids.as<int32_t>();
  for (int64_t n = 0; n < args.ids.shape[0]; ++n) {
    if (ids[n] < 0 || ids[n] >= args.table.rows) {
      throw Error(ErrorCode::bad_config, "token " + std::to_string(n) + ": id " + std::to_string(ids[n]) +
                                             ", the embedding has rows 0 to " + std::to_string(args.table.rows - 1) +
                                             "; is the tokenizer from another model?");
    }
  }
  if (args.y.dtype == DType::bf16) gather_to(ctx, args, args.y.as<bf16>());
  else gather_to(ctx, args, args.y.as<float>());
}

}  // namespace sluice::SLUICE_CPU
