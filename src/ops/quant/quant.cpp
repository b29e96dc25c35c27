#include "ops/quant/quant.h"

#include <string>

#include "core/error.h"

namespace sluice {

void check_weight(const Weight& w) {
  SLUICE_ASSERT(w.rows >= 0 && w.cols >= 0);
  SLUICE_ASSERT(w.cols % block_cols(w.format) == 0);
  SLUICE_ASSERT(w.interleaved_head_dim == 0 ||
                (w.interleaved_head_dim % 2 == 0 && w.rows % w.interleaved_head_dim == 0));
  if (w.format == WeightFormat::affine) {
    SLUICE_ASSERT(w.bits == 2 || w.bits == 3 || w.bits == 4 || w.bits == 6 || w.bits == 8);
    SLUICE_ASSERT(w.group_size == 32 || w.group_size == 64 || w.group_size == 128);
    SLUICE_ASSERT(w.cols % w.group_size == 0);
    SLUICE_ASSERT(w.scale_dtype == DType::f32 || w.scale_dtype == DType::f16 || w.scale_dtype == DType::bf16);
  }
}

namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

}  // namespace

void dequantize(Context& ctx, const Dequantize& args) {
  const Weight& w = args.weight;
  check_weight(w);
  SLUICE_ASSERT(args.out.shape.rank() == 2 && is_float(args.out.dtype));
  const int64_t row_end = args.row_begin + args.out.shape[0], col_end = args.col_begin + args.out.shape[1];
  SLUICE_ASSERT(args.row_begin >= 0 && row_end <= w.rows && args.col_begin >= 0 && col_end <= w.cols);
  SLUICE_ASSERT(args.col_begin % block_cols(w.format) == 0);
  SLUICE_ASSERT(col_end == w.cols || col_end % block_cols(w.format) == 0);
  SLUICE_DISPATCH(ctx, dequantize, args);
}

void gather_weight_rows(Context& ctx, const GatherWeightRows& args) {
  check_weight(args.table);
  SLUICE_ASSERT(args.ids.dtype == DType::i32 && args.ids.shape.rank() == 1);
  SLUICE_ASSERT((is_float(args.y.dtype) && args.y.shape == Shape{args.ids.shape[0], args.table.cols}));
  SLUICE_DISPATCH(ctx, gather_weight_rows, args);
}

void weight_matvec(Context& ctx, const WeightMatvec& args) {
  check_weight(args.weight);
  SLUICE_ASSERT(args.x.shape.rank() == 2 && args.y.shape.rank() == 2 && is_float(args.x.dtype) &&
                is_float(args.y.dtype));
  SLUICE_ASSERT((args.x.shape == Shape{args.y.shape[0], args.weight.cols}));
  SLUICE_ASSERT(args.y.shape[1] == args.weight.rows);
  SLUICE_DISPATCH(ctx, weight_matvec, args);
}

}  // namespace sluice
