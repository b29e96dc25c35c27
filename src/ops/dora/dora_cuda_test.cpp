// More rows than one panel of the CUDA backend holds, and a rank whose rows of B need more shared memory than a block has unasked.
#include "ops/dora/dora.h"

#include <doctest/doctest.h>

#include <cmath>

#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

namespace {

// In float for values that are small integers the sums are exact, so the square of a norm is an integer that must come out.
std::vector<float> small_integers(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 2654435761U + seed) % 7 % 3) - 1;
  return values;
}

void check_norms(int64_t out, int64_t in, int64_t R) {
  const auto w = small_integers(static_cast<size_t>(out * in), 1), a = small_integers(static_cast<size_t>(R * in), 2),
             b = small_integers(static_cast<size_t>(out * R), 3);
  Buffer wt(DType::f32, {out, in}, w), at(DType::f32, {R, in}, a), bt(DType::f32, {out, R}, b), norm(DType::f32, {out});
  fill(norm, NAN);
  const Weight weight{.rows = out, .cols = in, .data = static_cast<const std::byte*>(wt.tensor.data)};
  TestContext ctx(Isa::avx2);
  adapted_row_norms(ctx, {.weight = weight, .lora_a = at, .lora_b = bt, .scale = 1, .norm = norm});
  for (int64_t o = 0; o < out; ++o) {
    std::vector<float> row(w.begin() + o * in, w.begin() + (o + 1) * in);
    for (int64_t r = 0; r < R; ++r) {
      const float factor = b[static_cast<size_t>(o * R + r)];
      for (int64_t i = 0; i < in; ++i) row[static_cast<size_t>(i)] += factor * a[static_cast<size_t>(r * in + i)];
    }
    double squares = 0;
    for (float v : row) squares += static_cast<double>(v) * static_cast<double>(v);
    if (norm.tensor.as<float>()[o] != static_cast<float>(std::sqrt(squares))) {
      CAPTURE(o);
      REQUIRE(norm.tensor.as<float>()[o] == static_cast<float>(std::sqrt(squares)));
    }
  }
}

}  // namespace

TEST_CASE("adapted_row_norms on CUDA: several panels, and a large rank") {
  if (!on_cuda()) return;
  check_norms(2100, 4160, 3);
  check_norms(13, 70, 2000);
}
