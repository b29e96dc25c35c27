#include <sys/mman.h>
#include <unistd.h>

#include "ops/quant/quant.h"
#include "ops/quant/quant_ref.h"
#include "support/close.h"
#include "support/contexts.h"
#include "support/weights.h"

namespace sluice {
namespace {

using namespace sluice::test;

template <class T>
std::vector<double> ref_matvec(const Weight& w, int64_t N, const std::vector<float>& x) {
  const std::vector<T> values(x.begin(), x.end());
  std::vector<T> y(static_cast<size_t>(N * w.rows));
  ref::weight_matvec<T>(w, N, values.data(), y.data());
  return {y.begin(), y.end()};
}

std::vector<double> to_bf16_values(std::vector<double> values) {
  for (double& v : values) v = static_cast<double>(static_cast<float>(bf16(static_cast<float>(v))));
  return values;
}

TEST_CASE("weight_matvec: as close to f64 as plain loops in float, for every format, count of rows and dtype") {
  for (const WeightKind& kind : all_weight_kinds()) {
    CAPTURE(kind.name());
    const bool plain_floats = block_cols(kind.format) == 1;
    const int64_t out = 13, in = plain_floats ? 77 : 3 * kind.column_multiple();
    const RandomWeight random(kind, out, in, 11);
    for (int64_t N : {1, 2, 3, 7, 16, 19}) {
      CAPTURE(N);
      const std::vector<float> x = random_values(static_cast<size_t>(N * in), 12);
      const auto exact = ref_matvec<double>(random.weight, N, x), plain = ref_matvec<float>(random.weight, N, x);
      for (Isa isa : built_isas()) {
        for (DType dtype : {DType::f32, DType::bf16}) {
          TestContext ctx(isa, 2, 1 << 20);
          Buffer xb(dtype, {N, in}, x), y(dtype, {N, out});
          fill(y, NAN);
          weight_matvec(ctx, {.weight = random.weight, .x = xb, .y = y});
          check_close(to_double(y.tensor), exact, dtype == DType::bf16 ? to_bf16_values(plain) : plain, dtype);
        }
      }
    }
  }
}

TEST_CASE("weight_matvec: a row's result depends neither on the other rows nor on the threads") {
  for (const WeightKind& kind : all_weight_kinds()) {
    CAPTURE(kind.name());
    const int64_t out = 301, in = block_cols(kind.format) == 1 ? 530 : 512, N = 21;
    const RandomWeight random(kind, out, in, 13);
    Buffer x(DType::f32, {N, in}, random_values(static_cast<size_t>(N * in), 14));
    for (Isa isa : built_isas()) {
      Buffer all(DType::f32, {N, out}), again(DType::f32, {N, out}), one(DType::f32, {1, out});
      TestContext two(isa, 2, 1 << 20), single(isa, 1, 1 << 20);
      weight_matvec(two, {.weight = random.weight, .x = x, .y = all});
      weight_matvec(single, {.weight = random.weight, .x = x, .y = again});
      CHECK(std::memcmp(all.tensor.data, again.tensor.data, static_cast<size_t>(N * out * 4)) == 0);
      for (int64_t n = 0; n < N; ++n) {
        weight_matvec(single, {.weight = random.weight, .x = x.tensor.rows(n, 1), .y = one});
        CHECK(std::memcmp(all.tensor.rows(n, 1).data, one.tensor.data, static_cast<size_t>(out * 4)) == 0);
      }
    }
  }
}

TEST_CASE("weight_matvec: rows of interleaved heads come out in Hugging Face order") {
  RandomWeight random({.format = WeightFormat::q4_1}, 32, 64, 15);
  random.weight.interleaved_head_dim = 16;
  const std::vector<float> x = random_values(64, 16);
  for (Isa isa : built_isas()) {
    TestContext ctx(isa, 2, 1 << 20);
    Buffer xb(DType::f32, {1, 64}, x), y(DType::f32, {1, 32});
    weight_matvec(ctx, {.weight = random.weight, .x = xb, .y = y});
    check_close(to_double(y.tensor), ref_matvec<double>(random.weight, 1, x), ref_matvec<float>(random.weight, 1, x),
                DType::f32);
  }
}

TEST_CASE("weight_matvec: the arena's need is known from a counting pass") {
  const RandomWeight random({.format = WeightFormat::bf16}, 5, 77, 17);
  for (Isa isa : built_isas()) {
    ThreadPool pool(2);
    Arena counter = Arena::counting(test_device());
    Context counting = {.arena = counter, .pool = pool, .device = test_device(), .isa = isa};
    Buffer x(DType::bf16, {3, 77}, random_values(3 * 77, 18)), y(DType::bf16, {3, 5});
    weight_matvec(counting, {.weight = random.weight, .x = x, .y = y});
    TestContext ctx(isa, 2, 1 << 20);
    weight_matvec(ctx, {.weight = random.weight, .x = x, .y = y});
    CHECK(counter.peak() == ctx.arena.peak());
    CHECK(counter.used() == 0);
  }
}

// Memory whose last byte lies before a page that must not be touched, as at the end of a mapped file.
struct Guarded {
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), mapped;
  std::byte* base;
  std::byte* data;
  explicit Guarded(const std::vector<std::byte>& bytes) : mapped((bytes.size() + page - 1) / page * page + page) {
    base = static_cast<std::byte*>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base != MAP_FAILED);
    REQUIRE(mprotect(base + mapped - page, page, PROT_NONE) == 0);
    data = base + mapped - page - bytes.size();
    if (!bytes.empty()) std::memcpy(data, bytes.data(), bytes.size());
  }
  ~Guarded() { munmap(base, mapped); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
};

TEST_CASE("quant: no kernel reads past the end of a mapped file") {
  for (const WeightKind& kind : all_weight_kinds()) {
    CAPTURE(kind.name());
    const int64_t rows = 5, cols = block_cols(kind.format) == 1 ? 37 : kind.column_multiple();
    const RandomWeight random(kind, rows, cols, 19);
    const Guarded data(random.data), scales(random.scales), biases(random.biases);
    Weight w = random.weight;
    w.data = data.data;
    if (w.format == WeightFormat::affine) w.scales = scales.data, w.biases = biases.data;
    const std::vector<float> x = random_values(static_cast<size_t>(cols), 20);
    for (Isa isa : built_isas()) {
      TestContext ctx(isa, 2, 1 << 20);
      Buffer xb(DType::f32, {1, cols}, x), y(DType::f32, {1, rows}), out(DType::bf16, {rows, cols});
      dequantize(ctx, {.weight = w, .out = out});
      weight_matvec(ctx, {.weight = w, .x = xb, .y = y});
      check_close(to_double(y.tensor), ref_matvec<double>(w, 1, x), ref_matvec<float>(w, 1, x), DType::f32);
    }
  }
}

}  // namespace
}  // namespace sluice
