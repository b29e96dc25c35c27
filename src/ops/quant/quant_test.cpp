#include "ops/quant/quant.h"

#include <array>
#include <map>

#include "ops/quant/quant_ref.h"
#include "support/close.h"
#include "support/contexts.h"
#include "support/source_dir.h"
#include "support/oracle.h"
#include "support/weights.h"

namespace sluice {
namespace {

using namespace sluice::test;

std::vector<double> exact_weights(const Weight& w) {
  std::vector<double> out(static_cast<size_t>(w.rows * w.cols));
  ref::dequantize<double>(w, 0, w.rows, 0, w.cols, out.data());
  return out;
}

std::vector<double> rounded(std::vector<double> values, DType dtype) {
  for (double& v : values)
    v = dtype == DType::bf16 ? static_cast<double>(static_cast<float>(bf16(static_cast<float>(v))))
                             : static_cast<double>(static_cast<float>(v));
  return values;
}

// A case of tests/golden/quant, written by tests/oracle/make_quant_golden.py.
struct Golden {
  std::vector<std::byte> data, scales, biases;
  std::vector<double> weights;
  Weight weight;
};

std::vector<std::byte> bytes_of(const std::vector<double>& values) {
  std::vector<std::byte> bytes;
  for (double v : values) bytes.push_back(static_cast<std::byte>(static_cast<uint8_t>(v)));
  return bytes;
}

WeightFormat format_named(const std::string& name) {
  for (WeightFormat f : {WeightFormat::f32, WeightFormat::f16, WeightFormat::bf16, WeightFormat::q4_0,
                         WeightFormat::q4_1, WeightFormat::q5_0, WeightFormat::q5_1, WeightFormat::q8_0,
                         WeightFormat::q4_k, WeightFormat::q5_k, WeightFormat::q6_k}) {
    if (to_string(f) == name) return f;
  }
  REQUIRE(name == "interleaved");
  return WeightFormat::q8_0;
}

std::map<std::string, Golden> golden_cases(const std::string& file) {
  std::map<std::string, Golden> cases;
  for (auto& [key, tensor] : load_oracle_tensors(source_dir() / "tests/golden/quant" / (file + ".safetensors"))) {
    const std::string name = key.substr(0, key.find('/')), part = key.substr(key.find('/') + 1);
    Golden& g = cases[name];
    if (part == "data") g.data = bytes_of(tensor.values);
    if (part == "scales") g.scales = bytes_of(tensor.values);
    if (part == "biases") g.biases = bytes_of(tensor.values);
    if (part != "weights") continue;
    g.weights = tensor.values;
    g.weight.rows = tensor.shape[0];
    g.weight.cols = tensor.shape[1];
  }
  for (auto& [name, g] : cases) {
    Weight& w = g.weight;
    w.data = g.data.data();
    if (file == "affine") {  // b4_g64_bf16
      w.format = WeightFormat::affine;
      w.bits = name[1] - '0';
      w.group_size = std::stoi(name.substr(4));
      const std::string dtype = name.substr(name.rfind('_') + 1);
      w.scale_dtype = dtype == "f32" ? DType::f32 : dtype == "f16" ? DType::f16 : DType::bf16;
      w.scales = g.scales.data();
      w.biases = g.biases.data();
    } else {
      w.format = format_named(name);
      if (name == "interleaved") w.interleaved_head_dim = 8;
    }
    REQUIRE(static_cast<int64_t>(g.data.size()) == w.rows * w.row_bytes());
  }
  return cases;
}

// What one or two roundings to float of scale * code and offset can differ by: both terms are at most the block's largest.
double rounding_bound(const std::vector<double>& weights, int64_t i) {
  double largest = 0;
  const int64_t begin = i - i % 32;
  for (int64_t j = begin; j < std::min<int64_t>(begin + 32, static_cast<int64_t>(weights.size())); ++j)
    largest = std::max(largest, std::abs(weights[static_cast<size_t>(j)]));
  return largest * 0x1p-22;
}

void check_golden(const std::string& file, size_t expected_cases) {
  const auto cases = golden_cases(file);
  CHECK(cases.size() == expected_cases);
  for (const auto& [name, g] : cases) {
    CAPTURE(name);
    const std::vector<double> ours = exact_weights(g.weight);
    REQUIRE(ours.size() == g.weights.size());
    int wrong = 0;
    for (size_t i = 0; i < ours.size(); ++i)
      wrong += !(std::abs(ours[i] - g.weights[i]) <= rounding_bound(g.weights, static_cast<int64_t>(i)));
    CHECK(wrong == 0);
  }
}

TEST_CASE("quant: the reference reads GGUF blocks as the gguf package does") { check_golden("gguf", 12); }

TEST_CASE("quant: the reference reads affine groups as MLX does, for every width and group size") {
  check_golden("affine", 15);
}

// A tensor's values as the bytes of 32-bit words or of floats.
template <class T>
std::vector<std::byte> stored_as(const OracleTensor& tensor) {
  std::vector<std::byte> bytes(tensor.values.size() * sizeof(T));
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const T value = static_cast<T>(tensor.values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

TEST_CASE("dequantize: the oracle's affine checkpoints give the oracle's matrix") {
  for (const auto& [folder, prefix] : std::map<std::string, std::string>{{"llama-gqa-q4g32", "model."},
                                                                         {"llama-gqa-q4g64", "model."},
                                                                         {"llama-gqa-q8g64", "model."},
                                                                         {"llama-gqa-mixed", "model."},
                                                                         {"minicpm5-like-q4g32", "model."}}) {
    CAPTURE(folder);
    const std::string module = "layers.0.mlp.down_proj";
    const Oracle oracle(folder);
    const OracleTensor& expected = oracle.tensor("dequant/" + module);
    const auto model = load_oracle_tensors(oracle.path() / "model.safetensors");
    const OracleTensor &words = model.at(prefix + module + ".weight"), &scales = model.at(prefix + module + ".scales");
    const auto data = stored_as<uint32_t>(words), s = stored_as<float>(scales),
               b = stored_as<float>(model.at(prefix + module + ".biases"));
    const int64_t rows = expected.shape[0], cols = expected.shape[1];
    const Weight w = {.format = WeightFormat::affine,
                      .rows = rows,
                      .cols = cols,
                      .data = data.data(),
                      .scales = s.data(),
                      .biases = b.data(),
                      .scale_dtype = DType::f32,
                      .bits = static_cast<int>(words.shape[1] * 32 / cols),
                      .group_size = static_cast<int>(cols / scales.shape[1])};
    for (Isa isa : built_isas()) {
      TestContext ctx(isa, 2, 1 << 20);
      Buffer out(DType::f32, {rows, cols});
      dequantize(ctx, {.weight = w, .out = out});
      CHECK(to_double(out.tensor) == expected.values);
    }
  }
}

TEST_CASE("dequantize: every format gives the correctly rounded weight on each backend") {
  for (const std::string file : {"gguf", "affine"}) {
    for (const auto& [name, g] : golden_cases(file)) {
      for (Isa isa : built_isas()) {
        TestContext ctx(isa, 2, 1 << 20);
        for (DType dtype : {DType::f32, DType::bf16}) {
          CAPTURE(name);
          Buffer out(dtype, {g.weight.rows, g.weight.cols});
          fill(out, NAN);
          dequantize(ctx, {.weight = g.weight, .out = out});
          CHECK(to_double(out.tensor) == rounded(exact_weights(g.weight), dtype));
        }
      }
    }
  }
}

TEST_CASE("dequantize: a panel is the same numbers as in the whole, at any block boundary") {
  for (const WeightKind& kind : all_weight_kinds()) {
    CAPTURE(kind.name());
    const bool plain = block_cols(kind.format) == 1;
    const int64_t rows = 9, unit = plain ? 13 : kind.column_multiple(), cols = plain ? 77 : 5 * unit;
    const RandomWeight random(kind, rows, cols, 5);
    for (Isa isa : built_isas()) {
      TestContext ctx(isa, 2, 1 << 20);
      Buffer whole(DType::f32, {rows, cols});
      dequantize(ctx, {.weight = random.weight, .out = whole});
      CHECK(to_double(whole.tensor) == rounded(exact_weights(random.weight), DType::f32));
      for (auto [row, num_rows, col, num_cols] : {std::array<int64_t, 4>{3, 4, unit, 2 * unit},
                                                  {0, 1, 2 * unit, cols - 2 * unit},
                                                  {8, 1, 0, unit},
                                                  {2, 0, 0, unit}}) {
        Buffer panel(DType::f32, {num_rows, num_cols});
        fill(panel, NAN);
        dequantize(ctx, {.weight = random.weight, .row_begin = row, .col_begin = col, .out = panel});
        for (int64_t i = 0; i < num_rows; ++i) {
          CHECK(std::memcmp(panel.tensor.as<float>() + i * num_cols, whole.tensor.as<float>() + (row + i) * cols + col,
                            static_cast<size_t>(num_cols) * 4) == 0);
        }
      }
    }
  }
}

TEST_CASE("gather_weight_rows: scaled rows in the order asked for, honouring interleaved heads") {
  for (const WeightKind& kind : all_weight_kinds()) {
    CAPTURE(kind.name());
    const int64_t rows = 16, cols = kind.column_multiple() * (block_cols(kind.format) == 1 ? 37 : 3);
    RandomWeight random(kind, rows, cols, 6);
    random.weight.interleaved_head_dim = 8;
    const std::vector<int32_t> ids = {5, 0, 15, 5, 1};
    Tensor id_tensor = {.data = const_cast<int32_t*>(ids.data()), .dtype = DType::i32, .shape = {5}};
    const std::vector<double> exact = exact_weights(random.weight);
    std::vector<double> expected;
    for (int32_t id : ids) {
      for (int64_t c = 0; c < cols; ++c)
        expected.push_back(8 * static_cast<double>(static_cast<float>(exact[static_cast<size_t>(id * cols + c)])));
    }
    for (Isa isa : built_isas()) {
      TestContext ctx(isa, 2, 1 << 20);
      for (DType dtype : {DType::f32, DType::bf16}) {
        Buffer y(dtype, {5, cols});
        fill(y, NAN);
        gather_weight_rows(ctx, {.table = random.weight, .ids = id_tensor, .scale = 8, .y = y});
        CHECK(to_double(y.tensor) == rounded(expected, dtype));
      }
    }
  }
}

TEST_CASE("gather_weight_rows: an id outside the table is refused by name") {
  const RandomWeight random({.format = WeightFormat::q8_0}, 4, 64, 7);
  TestContext ctx(Isa::avx2, 2, 1 << 20);
  Buffer y(DType::f32, {2, 64});
  for (int32_t id : {4, -1}) {
    std::vector<int32_t> ids = {3, id};
    Tensor id_tensor = {.data = ids.data(), .dtype = DType::i32, .shape = {2}};
    try {
      gather_weight_rows(ctx, {.table = random.weight, .ids = id_tensor, .y = y});
      FAIL("accepted");
    } catch (const Error& e) {
      CHECK(e.code() == ErrorCode::bad_config);
      CHECK(std::string(e.what()).find("id " + std::to_string(id)) != std::string::npos);
    }
  }
}

TEST_CASE("quant: what does not fit is our own mistake and caught") {
  const RandomWeight random({.format = WeightFormat::q4_k}, 4, 512, 8);
  TestContext ctx(Isa::avx2, 2, 1 << 20);
  Buffer out(DType::f32, {4, 256}), x(DType::f32, {1, 256}), y(DType::f32, {1, 4});
  CHECK_THROWS_AS(dequantize(ctx, {.weight = random.weight, .col_begin = 32, .out = out}), Error);
  CHECK_THROWS_AS(dequantize(ctx, {.weight = random.weight, .row_begin = 1, .out = out}), Error);
  CHECK_THROWS_AS(weight_matvec(ctx, {.weight = random.weight, .x = x, .y = y}), Error);
}

}  // namespace
}  // namespace sluice
