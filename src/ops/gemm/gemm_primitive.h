// oneDNN's matmul primitives, cached by shape for the life of the process and run on the calling thread alone. Only gemm.cpp
// includes this.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace sluice {

// Everything that a primitive depends on; pointers are not part of it.
struct GemmKey {
  int64_t m, n, k, lda, ldb, ldc;
  DType dtype, c_dtype;
  bool transpose_a, transpose_b, add;
  bool operator==(const GemmKey&) const = default;
};

// Whether oneDNN multiplies this dtype by "brg" (brgemm) on this CPU. The tests measure that the bits of an element then depend on
// its row of A, its column of B and k alone; but it takes only packed operands (leading dimension = columns).
bool has_brgemm(DType dtype);

// Whether the product runs on the kernel that large ones of its dtype run on. With AMX oneDNN gives small ones (m <= 32, m n <= 256) to
// another kernel, which rounds otherwise.
bool has_usual_kernel(const GemmKey& key);

// The largest k for which a product's bits depend on k alone; 0: any. With AMX oneDNN cuts k by what of the operands' blocks fits the L2 cache,
// and so by m and n: seen from k = 520 on (2 MiB of L2), never to 512 (bench/results/2026-12-01-isa.md).
int64_t primitive_longest_sum(DType dtype);

// These create the primitive at the first use of its key. Throw Error(device) when oneDNN refuses.
int64_t primitive_scratch_bytes(const GemmKey& key);
void run_primitive(const GemmKey& key, const void* a, const void* b, void* c, std::byte* scratch);

}  // namespace sluice
