// The head against the oracle's linear_ce cases: float64 truth, plain and quantised weights, with and without a soft
// cap.
#include <doctest/doctest.h>

#include <cmath>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "support/close.h"
#include "support/contexts.h"
#include "support/oracle.h"

using namespace sluice;
using namespace sluice::test;

namespace {

// The generator that cases.json describes.
uint64_t splitmix64(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

std::vector<float> uniform(uint64_t seed, int64_t count, double factor) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<double>(splitmix64(seed, static_cast<uint64_t>(i)) >> 40);
    values.push_back(static_cast<float>((bits * 0x1p-23 - 1) * factor));
  }
  return values;
}

struct OracleCase {
  std::string id;
  int64_t M, V, C;
  float softcap;
  double max_abs_logit;
  std::vector<float> h, plain, scales, biases, g;
  std::vector<uint32_t> codes;
  std::vector<int32_t> targets;
  Weight weight;

  OracleCase(const Json& c, const Oracle& oracle)
      : id(c.at("id")),
        M(c.at("M")),
        V(c.at("V")),
        C(c.at("H")),
        softcap(c.at("softcap").is_null() ? 0.0F : c.at("softcap").get<float>()),
        max_abs_logit(c.at("max_abs_logit")) {
    const Json& seeds = c.at("seeds");
    h = uniform(seeds.at("h"), M * C, c.at("hmul"));
    for (double t : oracle.values(id + "/targets")) targets.push_back(static_cast<int32_t>(t));
    for (double value : oracle.values(id + "/g")) g.push_back(static_cast<float>(value));
    weight = {.format = WeightFormat::f32, .rows = V, .cols = C};
    if (c.at("bits").is_null()) {
      plain = uniform(seeds.at("W"), V * C, c.at("wmul"));
      weight.data = reinterpret_cast<const std::byte*>(plain.data());
      return;
    }
    weight.format = WeightFormat::affine;
    weight.bits = c.at("bits");
    weight.group_size = c.at("group_size");
    weight.scale_dtype = DType::f32;
    for (int64_t i = 0; i < V * C * weight.bits / 32; ++i) {
      codes.push_back(static_cast<uint32_t>(splitmix64(seeds.at("W"), static_cast<uint64_t>(i)) >> 32));
    }
    for (int64_t i = 0; i < V * C / weight.group_size; ++i) {
      const uint64_t s = splitmix64(seeds.at("scales"), static_cast<uint64_t>(i)),
                     b = splitmix64(seeds.at("biases"), static_cast<uint64_t>(i));
      const double sign = (s >> 57 & 1) != 0 ? -1 : 1;
      scales.push_back(
          static_cast<float>(sign * (static_cast<double>(s >> 58) + 1) * std::ldexp(1.0, c.at("scale_exp"))));
      biases.push_back(static_cast<float>((static_cast<double>(b >> 58) - 32) * std::ldexp(1.0, c.at("bias_exp"))));
    }
    weight.data = reinterpret_cast<const std::byte*>(codes.data());
    weight.scales = reinterpret_cast<const std::byte*>(scales.data());
    weight.biases = reinterpret_cast<const std::byte*>(biases.data());
  }
  OracleCase(const OracleCase&) = delete;

  Tensor target_tensor() { return {targets.data(), DType::i32, {M}}; }
};

// oracle/README.md: 1e-5, relative to max(1, |logit|); gradients by their norm.
void check_against(const OracleCase& c, const Oracle& oracle, const Tensor& logp, const Tensor& lse,
                   const std::vector<double>& dh) {
  const double tolerance = 1e-5 * std::max(1.0, c.max_abs_logit);
  CHECK(max_difference(to_double(logp), oracle.values(c.id + "/logp")) <= tolerance);
  CHECK(max_difference(to_double(lse), oracle.values(c.id + "/lse")) <= tolerance);
  CHECK(relative_l2(dh, oracle.values(c.id + "/dh")) <= 1e-5);
}

}  // namespace

TEST_CASE(
    "linear_cross_entropy: both schedules agree with the oracle, plain and quantised, with and without a soft cap") {
  const Oracle oracle("linear_ce");
  const Json cases = oracle.json("cases.json").at("cases");
  REQUIRE(cases.size() == 15);
  for (const Json& description : cases)
    for (Isa isa : built_isas()) {
      OracleCase c(description, oracle);
      CAPTURE(c.id);
      const Shape rows{c.M}, matrix{c.M, c.C};
      const Buffer h(DType::f32, matrix, c.h), g(DType::f32, rows, c.g);
      const Buffer logp(DType::f32, rows), lse(DType::f32, rows), dh(DType::f32, matrix);
      TestContext ctx(isa, 2, 16 << 20);

      linear_cross_entropy_by_rows(ctx, {.weight = c.weight,
                                         .h = h,
                                         .targets = c.target_tensor(),
                                         .softcap = c.softcap,
                                         .rows_per_chunk = 8,
                                         .logp = logp,
                                         .lse = lse,
                                         .dh = dh});
      std::vector<double> scaled = to_double(dh);
      for (size_t i = 0; i < scaled.size(); ++i) scaled[i] *= static_cast<double>(c.g[i / static_cast<size_t>(c.C)]);
      check_against(c, oracle, logp, lse, scaled);

      for (const Buffer* out : {&logp, &lse, &dh}) fill(*out, NAN);
      linear_cross_entropy_by_blocks(
          ctx,
          {.weight = c.weight, .h = h, .targets = c.target_tensor(), .softcap = c.softcap, .logp = logp, .lse = lse});
      linear_cross_entropy_by_blocks_backward(ctx, {.weight = c.weight,
                                                    .h = h,
                                                    .targets = c.target_tensor(),
                                                    .softcap = c.softcap,
                                                    .lse = lse,
                                                    .g = g,
                                                    .dh = dh});
      check_against(c, oracle, logp, lse, to_double(dh));
    }
}
