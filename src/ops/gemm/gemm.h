// The CPU's matrix product: one oneDNN primitive, run on the calling thread. Other CPU kernels build on it; the CUDA backend does
// not know it.
//
//   C[m,n] = op(A)[m,k] op(B)[k,n]  (+ C)
//
// Operands are bf16 or f32 (one dtype), C is f32 or bf16; sums are float32, never split over threads, so an element's bits depend
// on its row of A, its column of B and k alone: not on m, n, the strides or the threads. Packed operands (lda = columns as they lie)
// are read in place; operands with gaps, and odd extents up to 256, pass through a copy in `scratch`, as do bf16 operands on
// CPUs where oneDNN has no fast bf16 (AVX2), which are widened to f32. On CPUs with AMX a k above 512 is summed in pieces. Primitives are cached by shape, for the life of the process; any
// threads may call at once. Throws Error(device) when oneDNN refuses.
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/common/write.h"

namespace sluice {

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::bf16;  // of A and B
  const void* a = nullptr;
  int64_t lda = 0;           // elements between rows of A as it lies in memory
  bool transpose_a = false;  // A lies as [k, m]
  const void* b = nullptr;
  int64_t ldb = 0;
  bool transpose_b = false;  // B lies as [n, k]: a weight
  DType c_dtype = DType::f32;
  void* c = nullptr;
  int64_t ldc = 0;
  Write write = Write::set;  // add needs c_dtype f32
};

// Whether oneDNN multiplies bf16 operands itself on this CPU (else they are widened).
bool gemm_bf16_native();

// What a product's rows are padded to, so that few kernels are compiled, about 0.1 MiB of code each: to 256 powers of two and multiples of 64.
int64_t padded_rows(int64_t rows);

// Bytes of scratch that `gemm_on_this_thread` needs for this shape (pointers are not read).
int64_t gemm_scratch_bytes(const Context& ctx, const Gemm& args);
void gemm_on_this_thread(const Context& ctx, const Gemm& args, std::byte* scratch);

// The same with k cut into pieces of at most `longest_sum` (0: not cut), whose sums are added in order. The above take what the CPU
// needs; these are for tests on other CPUs.
int64_t gemm_by_pieces_scratch_bytes(const Context& ctx, const Gemm& args, int64_t longest_sum);
void gemm_by_pieces(const Context& ctx, const Gemm& args, int64_t longest_sum, std::byte* scratch);

}  // namespace sluice
