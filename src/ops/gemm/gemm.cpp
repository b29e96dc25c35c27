#include "ops/gemm/gemm.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "ops/gemm/gemm_primitive.h"

namespace sluice {

namespace {

// One run of a primitive for rows [begin, begin + rows) of C, and which operands pass through a copy in scratch: packed, widened
// or padded.
struct Run {
  GemmKey key{};
  bool copy_a = false, copy_b = false, copy_c = false;
  int64_t b = 0, a = 0, c = 0, scratchpad = 0, total = 0;  // offsets in scratch, bytes; B first: it serves all slices
};

// Without brgemm (AVX2 before oneDNN 3) the packed sgemm runs: there bits are the same for every m and n only for whole register
// tiles of 24 x 16 and up to a few hundred rows, so C is cut into slices of rows and padded to tiles. Measured by the tests.
constexpr int64_t sgemm_slice = 240, sgemm_tile_rows = 24, sgemm_tile_cols = 16;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
int64_t aligned(int64_t bytes) { return round_up(bytes, 256); }

bool widens(const Context& ctx, DType dtype) {
  return dtype == DType::bf16 && (ctx.isa == Isa::avx2 || !has_brgemm(DType::bf16));
}

int64_t slice_rows(const Context& ctx, const Gemm& g) {
  return has_brgemm(widens(ctx, g.dtype) ? DType::f32 : g.dtype) ? g.m : sgemm_slice;
}

// With AMX products of fewer rows may run on a kernel whose bits differ: those are padded to this many.
constexpr int64_t usual_rows = 64;

// Tails of every length must not become primitives of their own, about 0.1 MiB of code each: odd extents to 256 are padded.
int64_t padded_extent(int64_t extent) {
  if (extent > 256 || extent % 16 == 0) return extent;
  return extent < 16 ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(extent))) : round_up(extent, 32);
}

Run plan(const Context& ctx, const Gemm& g, int64_t rows) {
  const bool widen = widens(ctx, g.dtype);
  Run run;
  GemmKey& key = run.key;
  key.dtype = widen ? DType::f32 : g.dtype;
  key.c_dtype = widen ? DType::f32 : g.c_dtype;
  key.transpose_a = g.transpose_a;
  key.transpose_b = g.transpose_b;
  key.add = g.write == Write::add;
  const bool packed_only = has_brgemm(key.dtype);
  key.k = packed_only ? padded_extent(g.k) : g.k;
  // One row of a transposed A looks like a plain A to oneDNN, which blocks k differently for the two.
  key.m = packed_only ? std::max<int64_t>(padded_rows(rows), g.transpose_a ? 2 : 1) : round_up(rows, sgemm_tile_rows);
  key.n = packed_only ? padded_extent(g.n) : round_up(g.n, sgemm_tile_cols);
  const auto pack = [&] {
    key.lda = key.transpose_a ? key.m : key.k;
    key.ldb = key.transpose_b ? key.k : key.n;
    key.ldc = key.n;
  };
  pack();
  if (packed_only && key.m < usual_rows && !has_usual_kernel(key)) {
    key.m = usual_rows;
    pack();
  }
  run.copy_a = widen || key.m != rows || key.k != g.k ||
               (packed_only && g.lda != key.lda && (key.transpose_a ? key.k : key.m) > 1);
  run.copy_b = widen || key.n != g.n || key.k != g.k ||
               (packed_only && g.ldb != key.ldb && (key.transpose_b ? key.n : key.k) > 1);
  run.copy_c =
      key.c_dtype != g.c_dtype || key.m != rows || key.n != g.n || (packed_only && g.ldc != key.ldc && key.m > 1);
  if (!packed_only) {
    if (!run.copy_a) key.lda = g.lda;
    if (!run.copy_b) key.ldb = g.ldb;
    if (!run.copy_c) key.ldc = g.ldc;
  }
  run.a = run.b + (run.copy_b ? aligned(key.k * key.n * size_of(key.dtype)) : 0);
  run.c = run.a + (run.copy_a ? aligned(key.m * key.k * size_of(key.dtype)) : 0);
  run.scratchpad = run.c + (run.copy_c ? aligned(key.m * key.n * size_of(key.c_dtype)) : 0);
  run.total = run.scratchpad + primitive_scratch_bytes(key);
  return run;
}

template <class From, class To>
void copy_matrix(int64_t rows, int64_t cols, const From* from, int64_t from_ld, To* to, int64_t to_ld) {
  for (int64_t i = 0; i < rows; ++i, from += from_ld, to += to_ld) {
    if constexpr (std::is_same_v<From, To>) {
      std::memcpy(to, from, static_cast<size_t>(cols) * sizeof(To));
    } else {
      for (int64_t j = 0; j < cols; ++j) to[j] = static_cast<To>(static_cast<float>(from[j]));
    }
  }
}

void copy_matrix(int64_t rows, int64_t cols, DType from_dtype, const void* from, int64_t from_ld, DType to_dtype,
                 void* to, int64_t to_ld) {
  if (from_dtype == DType::bf16 && to_dtype == DType::bf16) {
    copy_matrix(rows, cols, static_cast<const bf16*>(from), from_ld, static_cast<bf16*>(to), to_ld);
  } else if (from_dtype == DType::bf16) {
    copy_matrix(rows, cols, static_cast<const bf16*>(from), from_ld, static_cast<float*>(to), to_ld);
  } else if (to_dtype == DType::bf16) {
    copy_matrix(rows, cols, static_cast<const float*>(from), from_ld, static_cast<bf16*>(to), to_ld);
  } else {
    copy_matrix(rows, cols, static_cast<const float*>(from), from_ld, static_cast<float*>(to), to_ld);
  }
}

// An operand as it lies [rows, cols] into scratch as [padded_rows, padded_cols], the rest zero.
void copy_operand(int64_t rows, int64_t cols, DType from_dtype, const void* from, int64_t from_ld, DType to_dtype,
                  std::byte* to, int64_t padded_rows, int64_t padded_cols) {
  if (rows != padded_rows || cols != padded_cols) {
    std::memset(to, 0, static_cast<size_t>(padded_rows * padded_cols * size_of(to_dtype)));
  }
  copy_matrix(rows, cols, from_dtype, from, from_ld, to_dtype, to, padded_cols);
}

template <class Byte>
Byte* at(Byte* base, int64_t elements, DType dtype) {
  return base + elements * size_of(dtype);
}

void run_slice(const Gemm& g, const Run& run, int64_t begin, int64_t rows, std::byte* scratch) {
  const GemmKey& key = run.key;
  const std::byte* a = at(static_cast<const std::byte*>(g.a), g.transpose_a ? begin : begin * g.lda, g.dtype);
  std::byte* c = at(static_cast<std::byte*>(g.c), begin * g.ldc, g.c_dtype);
  if (run.copy_a) {
    const int64_t lying_rows = g.transpose_a ? g.k : rows, lying_cols = g.transpose_a ? rows : g.k;
    copy_operand(lying_rows, lying_cols, g.dtype, a, g.lda, key.dtype, scratch + run.a, g.transpose_a ? key.k : key.m,
                 g.transpose_a ? key.m : key.k);
  }
  if (run.copy_c && key.add) {
    copy_operand(rows, g.n, g.c_dtype, c, g.ldc, key.c_dtype, scratch + run.c, key.m, key.n);
  }
  run_primitive(key, run.copy_a ? scratch + run.a : a, run.copy_b ? scratch + run.b : g.b,
                run.copy_c ? scratch + run.c : c, scratch + run.scratchpad);
  if (run.copy_c) copy_matrix(rows, g.n, key.c_dtype, scratch + run.c, key.n, g.c_dtype, c, g.ldc);
}

// The sum over nothing.
void run_empty(const Gemm& g) {
  if (g.write == Write::add) return;
  for (int64_t i = 0; i < g.m; ++i) {
    std::memset(at(static_cast<std::byte*>(g.c), i * g.ldc, g.c_dtype), 0,
                static_cast<size_t>(g.n * size_of(g.c_dtype)));
  }
}

void check_arguments(const Gemm& g) {
  SLUICE_ASSERT(g.m >= 0 && g.n >= 0 && g.k >= 0);
  SLUICE_ASSERT(g.dtype == DType::bf16 || g.dtype == DType::f32);
  SLUICE_ASSERT(g.c_dtype == DType::f32 || (g.c_dtype == DType::bf16 && g.dtype == DType::bf16));
  SLUICE_ASSERT(g.write == Write::set || g.c_dtype == DType::f32);
  SLUICE_ASSERT(g.lda >= (g.transpose_a ? g.m : g.k) && g.ldb >= (g.transpose_b ? g.k : g.n) && g.ldc >= g.n);
}

// The most scratch that a slice of rows needs.
int64_t whole_sum_bytes(const Context& ctx, const Gemm& args) {
  const int64_t slice = std::min(args.m, slice_rows(ctx, args)), rest = args.m % slice;
  const int64_t bytes = plan(ctx, args, slice).total;
  return rest == 0 ? bytes : std::max(bytes, plan(ctx, args, rest).total);
}

void multiply_whole_sum(const Context& ctx, const Gemm& args, std::byte* scratch) {
  const int64_t slice = slice_rows(ctx, args);
  for (int64_t begin = 0; begin < args.m; begin += slice) {
    const int64_t rows = std::min(slice, args.m - begin);
    const Run run = plan(ctx, args, rows);
    if (run.copy_b && begin == 0) {
      const GemmKey& key = run.key;
      const int64_t lying_rows = args.transpose_b ? args.n : args.k, lying_cols = args.transpose_b ? args.k : args.n;
      copy_operand(lying_rows, lying_cols, args.dtype, args.b, args.ldb, key.dtype, scratch,
                   args.transpose_b ? key.n : key.k, args.transpose_b ? key.k : key.n);
    }
    run_slice(args, run, begin, rows, scratch);
  }
}

// k in as few pieces as `longest_sum` allows, of about one length; multiples of 32, an AMX tile's.
int64_t piece_of_k(const Gemm& g, int64_t longest_sum) {
  if (longest_sum == 0 || g.k <= longest_sum) return g.k;
  const int64_t pieces = (g.k + longest_sum - 1) / longest_sum;
  return round_up((g.k + pieces - 1) / pieces, 32);
}

int64_t longest_sum(const Context& ctx, const Gemm& g) {
  return widens(ctx, g.dtype) ? 0 : primitive_longest_sum(g.dtype);
}

// Of a result in bf16 the sums are kept in scratch until the last piece is added.
int64_t sums_bytes(const Gemm& g) { return g.c_dtype == DType::bf16 ? aligned(g.m * g.n * size_of(DType::f32)) : 0; }

}  // namespace

int64_t padded_rows(int64_t rows) {
  if (rows > 256) return rows;
  return rows < 64 ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))) : round_up(rows, 64);
}

bool gemm_bf16_native() { return has_brgemm(DType::bf16); }

int64_t gemm_by_pieces_scratch_bytes(const Context& ctx, const Gemm& args, int64_t longest_sum) {
  check_arguments(args);
  if (args.m == 0 || args.n == 0 || args.k == 0) return 0;
  const int64_t piece = piece_of_k(args, longest_sum);
  if (piece == args.k) return whole_sum_bytes(ctx, args);
  Gemm part = args;
  part.c_dtype = DType::f32;
  int64_t bytes = 0;
  for (int64_t k : {piece, (args.k - 1) % piece + 1}) {
    for (Write write : {args.write, Write::add}) {
      part.k = k;
      part.write = write;
      bytes = std::max(bytes, whole_sum_bytes(ctx, part));
    }
  }
  return sums_bytes(args) + bytes;
}

void gemm_by_pieces(const Context& ctx, const Gemm& args, int64_t longest_sum, std::byte* scratch) {
  check_arguments(args);
  if (args.m == 0 || args.n == 0) return;
  if (args.k == 0) return run_empty(args);
  const int64_t piece = piece_of_k(args, longest_sum);
  if (piece == args.k) return multiply_whole_sum(ctx, args, scratch);
  Gemm part = args;
  if (args.c_dtype == DType::bf16) {
    part.c_dtype = DType::f32;
    part.c = scratch;
    part.ldc = args.n;
  }
  for (int64_t begin = 0; begin < args.k; begin += piece) {
    part.k = std::min(piece, args.k - begin);
    part.a = at(static_cast<const std::byte*>(args.a), args.transpose_a ? begin * args.lda : begin, args.dtype);
    part.b = at(static_cast<const std::byte*>(args.b), args.transpose_b ? begin : begin * args.ldb, args.dtype);
    part.write = begin == 0 ? args.write : Write::add;
    multiply_whole_sum(ctx, part, scratch + sums_bytes(args));
  }
  if (part.c != args.c) copy_matrix(args.m, args.n, part.c_dtype, part.c, part.ldc, args.c_dtype, args.c, args.ldc);
}

int64_t gemm_scratch_bytes(const Context& ctx, const Gemm& args) {
  return gemm_by_pieces_scratch_bytes(ctx, args, longest_sum(ctx, args));
}

void gemm_on_this_thread(const Context& ctx, const Gemm& args, std::byte* scratch) {
  gemm_by_pieces(ctx, args, longest_sum(ctx, args), scratch);
}

}  // namespace sluice
