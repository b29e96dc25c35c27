// Inputs for the head's tests: random rows, targets and a weight in a storage format, with the same values as doubles.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "ops/linear_cross_entropy/linear_cross_entropy.h"
#include "ops/linear_cross_entropy/linear_cross_entropy_ref.h"
#include "ops/quant/quant.h"
#include "support/close.h"
#include "support/contexts.h"

namespace sluice::test {

struct HeadCase {
  int64_t M, V, C;
  DType dtype;          // of h: the operands
  WeightFormat format;  // f32, bf16 or q8_0
  float softcap = 0;
  float spread = 2;  // of the logits, about

  std::vector<std::byte> bytes;
  Weight weight;
  std::vector<float> h_values, w_values;  // w_values as the operands hold them
  std::vector<int32_t> target_values;

  HeadCase(int64_t num_rows, int64_t vocab_size, int64_t hidden_size, DType operands, WeightFormat weight_format,
           float cap = 0, float logit_spread = 2)
      : M(num_rows),
        V(vocab_size),
        C(hidden_size),
        dtype(operands),
        format(weight_format),
        softcap(cap),
        spread(logit_spread) {
    make_weight();
    h_values = random_values(static_cast<size_t>(M * C), 2, spread / std::sqrt(static_cast<float>(C)));
    std::mt19937 engine(3);
    for (int64_t m = 0; m < M; ++m) target_values.push_back(static_cast<int32_t>(engine() % static_cast<uint32_t>(V)));
  }
  HeadCase(const HeadCase&) = delete;

  Tensor targets() { return {target_values.data(), DType::i32, {M}}; }

 private:
  void make_weight() {
    weight = {.format = format, .rows = V, .cols = C};
    if (format == WeightFormat::q8_0) {  // blocks of a scale and 32 signed bytes
      std::mt19937 engine(1);
      bytes.resize(static_cast<size_t>(V * C / 32 * 34));
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(engine());
      const uint16_t scale = 0x2400;  // 2^-6
      for (size_t block = 0; block < bytes.size(); block += 34) std::memcpy(&bytes[block], &scale, 2);
    } else {
      const auto values = random_values(static_cast<size_t>(V * C), 1);
      const Buffer stored(format == WeightFormat::bf16 ? DType::bf16 : DType::f32, {V, C}, values);
      bytes.resize(static_cast<size_t>(stored.tensor.size_bytes()));
      std::memcpy(bytes.data(), stored.tensor.data, bytes.size());
    }
    weight.data = bytes.data();
    Buffer as_operand(dtype, {V, C});
    TestContext ctx(Isa::avx2, 1, 1 << 12);
    dequantize(ctx, {.weight = weight, .out = as_operand});
    const auto exact = to_double(as_operand);
    w_values.assign(exact.begin(), exact.end());
  }
};

template <class T>
struct HeadResult {
  std::vector<T> logp, lse, dh, hit;
};

// The reference in T; coefficients are rounded to bf16 when `rounded`, as a naive program with bf16 operands does.
template <class T>
HeadResult<T> head_reference(const HeadCase& c, bool rounded, const std::vector<float>& g = {}) {
  const std::vector<T> h(c.h_values.begin(), c.h_values.end()), upstream(g.begin(), g.end());
  HeadResult<T> r{std::vector<T>(static_cast<size_t>(c.M)), std::vector<T>(static_cast<size_t>(c.M)),
                  std::vector<T>(h.size()), std::vector<T>(static_cast<size_t>(c.M))};
  const double cap = static_cast<double>(c.softcap);
  ref::linear_cross_entropy(c.M, c.V, c.C, h.data(), c.w_values.data(), c.target_values.data(), cap, r.logp.data(),
                            r.lse.data());
  ref::linear_cross_entropy_hits(c.M, c.V, c.C, h.data(), c.w_values.data(), c.target_values.data(), r.hit.data());
  ref::linear_cross_entropy_backward(
      c.M, c.V, c.C, h.data(), c.w_values.data(), c.target_values.data(), cap, r.lse.data(),
      g.empty() ? nullptr : upstream.data(), r.dh.data(),
      [&](T k) { return rounded ? static_cast<T>(static_cast<float>(bf16(static_cast<float>(k)))) : k; });
  return r;
}

// Every other row already knows its target.
inline void aim_at_best(HeadCase& c) {
  const std::vector<double> h(c.h_values.begin(), c.h_values.end());
  for (int64_t m = 0; m < c.M; m += 2) {
    double best = -1e300;
    for (int64_t v = 0; v < c.V; ++v) {
      const double z = ref::head_logit(c.C, h.data() + m * c.C, c.w_values.data() + v * c.C, 0.0);
      if (z > best) best = z, c.target_values[static_cast<size_t>(m)] = static_cast<int32_t>(v);
    }
  }
}

// Outputs of a call, filled so that an element left out is seen.
struct HeadOutputs {
  Buffer logp, lse, dh, hit;
  HeadOutputs(const HeadCase& c, DType dh_dtype)
      : logp(DType::f32, {c.M}), lse(DType::f32, {c.M}), dh(dh_dtype, {c.M, c.C}), hit(DType::f32, {c.M}) {
    for (const Buffer* b : {&logp, &lse, &dh, &hit}) fill(*b, NAN);
  }
};

inline std::vector<std::byte> bytes_of(const Tensor& t) {
  const auto* p = static_cast<const std::byte*>(t.data);
  return {p, p + t.size_bytes()};
}

}  // namespace sluice::test
