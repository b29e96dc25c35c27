// The head's two products on Hopper's tensor cores, for bf16 rows and weights. Host functions; head_sm90.cu.
#pragma once

#include "ops/linear_cross_entropy/head_rows.cuh"

namespace sluice::cuda {

// Tiles of coefficients from rows and a part of the weight.
struct HeadLogitsSm90 {
  HeadTiles out;
  const void* h = nullptr;  // [rows, C] bf16, aligned to 16
  const void* w = nullptr;  // [columns, C] bf16, the part from column `begin` on, aligned to 16
  int64_t C = 0;            // a multiple of 8
  bool backward = false;    // coefficients with the known lse and g, instead of sums
};
void head_logits_sm90(const Context& ctx, const HeadLogitsSm90& args);

// acc += P W, block by block of the vocabulary; one sum in registers for each, added to acc in order.
struct HeadGradientSm90 {
  int rows = 0, columns = 0;
  int64_t C = 0;
  const void* p = nullptr;  // [rows, p_stride] bf16
  int64_t p_stride = 0;
  const void* w = nullptr;             // [columns, C]
  float* acc = nullptr;                // [rows, C]
  const BlockScale* scales = nullptr;  // [blocks, rows]; null: all 1
  bool first = false;                  // acc is set, not read
  int* turns = nullptr;                // room for head_turns(rows, C)
};
int64_t head_turns(int64_t rows, int64_t C);
void head_gradient_sm90(const Context& ctx, const HeadGradientSm90& args);

}  // namespace sluice::cuda
