// Shapes that the other tests of this folder do not reach: long rows, many rows, and weights that lie at any address.
#include <array>
#include <cstring>

#include "ops/quant/quant.h"
#include "ops/quant/quant_ref.h"
#include "support/close.h"
#include "support/contexts.h"
#include "support/weights.h"

namespace sluice {
namespace {

using namespace sluice::test;

// The rows [begin, begin + count) of a weight.
Weight rows_of(const Weight& w, int64_t begin, int64_t count) {
  Weight part = w;
  part.rows = count;
  part.data += begin * w.row_bytes();
  if (w.format == WeightFormat::affine) {
    const int64_t bytes = w.cols / w.group_size * size_of(w.scale_dtype);
    part.scales += begin * bytes;
    part.biases += begin * bytes;
  }
  return part;
}

// A weight's memory, `shift` bytes further on.
struct Moved {
  std::vector<std::byte> data, scales, biases;
  Weight weight;
  Moved(const RandomWeight& random, size_t shift) : weight(random.weight) {
    const auto move = [shift](const std::vector<std::byte>& from, std::vector<std::byte>& to) {
      to.resize(from.size() + shift);
      if (!from.empty()) std::memcpy(to.data() + shift, from.data(), from.size());
      return to.data() + shift;
    };
    weight.data = move(random.data, data);
    if (weight.format != WeightFormat::affine) return;
    weight.scales = move(random.scales, scales);
    weight.biases = move(random.biases, biases);
  }
};

void check_panel(Context& ctx, const Weight& w, std::array<int64_t, 4> panel, DType dtype) {
  const auto [row, rows, col, cols] = panel;
  std::vector<double> exact(static_cast<size_t>(rows * cols));
  ref::dequantize<double>(w, row, rows, col, cols, exact.data());
  Buffer out(dtype, {rows, cols});
  fill(out, NAN);
  dequantize(ctx, {.weight = w, .row_begin = row, .col_begin = col, .out = out});
  const std::vector<double> result = to_double(out.tensor);
  int64_t wrong = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const auto value = static_cast<float>(exact[i]);
    wrong += result[i] != static_cast<double>(dtype == DType::bf16 ? static_cast<float>(bf16(value)) : value);
  }
  CHECK(wrong == 0);
}

template <class T>
std::vector<double> ref_matvec(const Weight& w, int64_t N, const std::vector<float>& x) {
  const std::vector<T> values(x.begin(), x.end());
  std::vector<T> y(static_cast<size_t>(N * w.rows));
  ref::weight_matvec<T>(w, N, values.data(), y.data());
  return {y.begin(), y.end()};
}

}  // namespace

TEST_CASE("dequantize on CUDA: long rows and their panels, whatever the address") {
  if (!on_cuda()) return;
  TestContext ctx(Isa::avx2);
  for (const WeightKind& kind : all_weight_kinds()) {
    CAPTURE(kind.name());
    RandomWeight random(kind, 70, 1536, 31);
    random.weight.interleaved_head_dim = 14;
    for (DType dtype : {DType::f32, DType::bf16}) {
      check_panel(ctx, random.weight, {0, 70, 0, 1536}, dtype);
      check_panel(ctx, random.weight, {7, 40, 512, 768}, dtype);
      for (size_t shift : {1, 2, 4}) {
        CAPTURE(shift);
        check_panel(ctx, Moved(random, shift).weight, {3, 20, 256, 1280}, dtype);
      }
    }
  }
}

TEST_CASE("weight_matvec on CUDA: many and few rows of the weight, one and many of x, give the same bits") {
  if (!on_cuda()) return;
  TestContext ctx(Isa::avx2);
  const int64_t in = 512, few = 33, N = 9;
  const std::vector<float> x = random_values(static_cast<size_t>(N * in), 32);
  // Few, many and very many threads for one row of x: one, four and eight rows of the weight for each.
  for (int64_t out : {8501, 13001}) {
    for (const WeightKind& kind : all_weight_kinds()) {
      CAPTURE(kind.name());
      const int64_t begin = out - 101;
      const RandomWeight random(kind, out, in, 33);
      const Weight part = rows_of(random.weight, begin, few);
      const auto exact = ref_matvec<double>(part, N, x), plain = ref_matvec<float>(part, N, x);
      for (DType dtype : {DType::f32, DType::bf16}) {
        Buffer xb(dtype, {N, in}, x), all(dtype, {N, out}), one(dtype, {1, out}), some(dtype, {1, few});
        fill(all, NAN);
        weight_matvec(ctx, {.weight = random.weight, .x = xb, .y = all});
        std::vector<double> result;
        for (int64_t n = 0; n < N; ++n) {
          weight_matvec(ctx, {.weight = random.weight, .x = xb.tensor.rows(n, 1), .y = one});
          weight_matvec(ctx, {.weight = part, .x = xb.tensor.rows(n, 1), .y = some});
          const auto* row = static_cast<const std::byte*>(all.tensor.rows(n, 1).data);
          CHECK(std::memcmp(row, one.tensor.data, static_cast<size_t>(one.tensor.size_bytes())) == 0);
          CHECK(std::memcmp(row + begin * size_of(dtype), some.tensor.data,
                            static_cast<size_t>(some.tensor.size_bytes())) == 0);
          const std::vector<double> y = to_double(some.tensor);
          result.insert(result.end(), y.begin(), y.end());
        }
        check_close(result, exact, plain, dtype);
      }
    }
  }
}

TEST_CASE("weight_matvec on CUDA: tile after tile of a large matrix, for one row of x and for eight") {
  if (!on_cuda()) return;
  TestContext ctx(Isa::avx2);
  const int64_t in = 4096, out = 9001, few = 33, N = 8;
  const std::vector<float> x = random_values(static_cast<size_t>(N * in), 36);
  for (const WeightKind& kind : {WeightKind{.format = WeightFormat::q4_k}, WeightKind{.format = WeightFormat::q6_k},
                                 WeightKind{.format = WeightFormat::q8_0},
                                 WeightKind{.format = WeightFormat::affine, .bits = 4, .group_size = 64}}) {
    CAPTURE(kind.name());
    const RandomWeight random(kind, out, in, 37);
    Buffer xb(DType::bf16, {N, in}, x), all(DType::f32, {N, out}), one(DType::f32, {1, out});
    fill(all, NAN);
    weight_matvec(ctx, {.weight = random.weight, .x = xb, .y = all});
    weight_matvec(ctx, {.weight = random.weight, .x = xb.tensor.rows(N - 1, 1), .y = one});
    CHECK(std::memcmp(all.tensor.rows(N - 1, 1).data, one.tensor.data, static_cast<size_t>(out * 4)) == 0);
    for (int64_t begin : {int64_t{0}, out / 2, out - few}) {
      const Weight part = rows_of(random.weight, begin, few);
      std::vector<double> result;
      for (int64_t n = 0; n < N; ++n) {
        const auto* row = static_cast<const float*>(all.tensor.rows(n, 1).data) + begin;
        result.insert(result.end(), row, row + few);
      }
      check_close(result, ref_matvec<double>(part, N, x), ref_matvec<float>(part, N, x), DType::f32);
    }
  }
}

TEST_CASE("weight_matvec on CUDA: long rows, whatever the address") {
  if (!on_cuda()) return;
  TestContext ctx(Isa::avx2);
  for (const WeightKind& kind : all_weight_kinds()) {
    CAPTURE(kind.name());
    const int64_t out = 21, in = block_cols(kind.format) == 1 ? 4600 : 4608;
    const RandomWeight random(kind, out, in, 34);
    const Moved moved(random, 1);
    const std::vector<float> x = random_values(static_cast<size_t>(3 * in), 35);
    const auto exact = ref_matvec<double>(random.weight, 3, x), plain = ref_matvec<float>(random.weight, 3, x);
    for (const Weight& w : {random.weight, moved.weight}) {
      Buffer xb(DType::f32, {3, in}, x), y(DType::f32, {3, out}), one(DType::f32, {1, out});
      weight_matvec(ctx, {.weight = w, .x = xb, .y = y});
      check_close(to_double(y.tensor), exact, plain, DType::f32);
      weight_matvec(ctx, {.weight = w, .x = xb.tensor.rows(2, 1), .y = one});
      CHECK(std::memcmp(y.tensor.rows(2, 1).data, one.tensor.data, static_cast<size_t>(out * 4)) == 0);
    }
  }
}

}  // namespace sluice
