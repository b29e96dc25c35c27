#include "io/weight_source.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "io/json_file.h"
#include "support/close.h"
#include "support/golden.h"

namespace sluice {
namespace {

using test::Oracle;
using test::oracle_dir;
namespace fs = std::filesystem;

// Element [row, col] as core/weight.h and the oracle's README say it, without our kernels.
double element(const Weight& w, int64_t row, int64_t col) {
  auto at = [](const std::byte* p, DType dtype, int64_t i) {
    uint32_t bits = 0;
    std::memcpy(&bits, p + i * size_of(dtype), static_cast<size_t>(size_of(dtype)));
    if (dtype == DType::f32) return std::bit_cast<float>(bits);
    if (dtype == DType::f16) return f16_to_float(static_cast<uint16_t>(bits));
    return std::bit_cast<float>(bits << 16);
  };
  if (w.format != WeightFormat::affine) {
    const DType dtype = w.format == WeightFormat::f32   ? DType::f32
                        : w.format == WeightFormat::f16 ? DType::f16
                                                        : DType::bf16;
    return at(w.data, dtype, row * w.cols + col);
  }
  uint32_t code = 0;  // a row is one string of bits, lowest first
  for (int bit = 0; bit < w.bits; ++bit) {
    const int64_t at = col * w.bits + bit;
    code |= (std::to_integer<uint32_t>(w.data[row * w.row_bytes() + at / 8]) >> (at % 8) & 1U) << bit;
  }
  const int64_t group = row * (w.cols / w.group_size) + col / w.group_size;
  return double{at(w.scales, w.scale_dtype, group)} * code + double{at(w.biases, w.scale_dtype, group)};
}

// A safetensors file of zeros, or what of it comes before the data.
std::string safetensors_of(const Json& tensors, bool header_only) {
  nlohmann::ordered_json header;
  int64_t end = 0;
  for (const auto& [name, entry] : tensors.items()) {
    int64_t bits = safetensors_dtype_bits(entry.at(0).get<std::string>());
    for (const Json& extent : entry.at(1)) bits *= extent.get<int64_t>();
    header[name] = {{"dtype", entry.at(0)}, {"shape", entry.at(1)}, {"data_offsets", {end, end + bits / 8}}};
    end += bits / 8;
  }
  const std::string text = header.dump();
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> (8 * i));
  return file + text + std::string(header_only ? 0 : static_cast<size_t>(end), '\0');
}

void make_file(const fs::path& path, const Json& content) {
  fs::create_directories(path.parent_path());
  if (content.is_string()) test::write_whole_file(path, content.get<std::string>());
  else if (content.contains("tensors")) test::write_whole_file(path, safetensors_of(content.at("tensors"), false));
  else if (content.contains("header_of")) test::write_whole_file(path, safetensors_of(content.at("header_of"), true));
  else if (content.contains("copy")) fs::copy_file(test::golden_dir() / content.at("copy").get<std::string>(), path);
  else fs::create_symlink(content.at("link").get<std::string>(), path);
}

std::string describe(const Weight& w) {
  std::string text = std::string(to_string(w.format)) + " " + std::to_string(w.rows) + " x " + std::to_string(w.cols);
  if (w.format == WeightFormat::affine) {
    text += ", " + std::to_string(w.bits) + " bits in groups of " + std::to_string(w.group_size);
    CHECK((w.scales == nullptr) == w.empty());
    CHECK((w.biases == nullptr) == w.empty());
  }
  return text + (w.empty() ? " without data" : "");
}

void check_words(const std::string& message, const Json& words) {
  CAPTURE(message);
  CHECK(message.find('\n') == std::string::npos);
  for (const Json& word : words) CHECK_MESSAGE(message.find(word.get<std::string>()) != std::string::npos, word);
}

void check_asked(const WeightSource& source, const std::string& name, const Json& expected) {
  CAPTURE(name);
  if (expected.is_array()) {
    check_words(test::bad_file_message([&] { source.find(name); }), expected);
  } else if (expected.is_null()) {
    CHECK_FALSE(source.find(name));
    CHECK_FALSE(source.contains(name));
    CHECK_FALSE(source.shape(name));
    CHECK_THROWS_AS(source.need(name), Error);
    CHECK_THROWS_AS(source.read_vector(name), Error);
  } else {
    const Weight weight = source.need(name);
    CHECK(describe(weight) == expected.get<std::string>());
    CHECK(source.shape(name).value().size() <= 4);
    if (weight.format != WeightFormat::affine) {
      CHECK(source.read_vector(name) == std::vector<float>(static_cast<size_t>(weight.rows * weight.cols)));
    }
  }
}

}  // namespace

TEST_CASE("open_model: each folder of model_folders.json is read or refused as it says") {
  int cases = 0;
  const Json folders = read_json_file((test::golden_dir() / "io/model_folders.json").string());
  for (const Json& entry : folders.at("cases")) {
    const std::string what = entry.at("what").get<std::string>();
    CAPTURE(what);
    ++cases;
    const test::TemporaryFolder folder;
    for (const auto& [name, content] : entry.at("files").items()) make_file(folder / name, content);
    std::unique_ptr<WeightSource> source;
    const std::string message = test::bad_file_message([&] {
      source = open_model(folder / entry.value("open", "."), {.allow_header_only = entry.value("header_only", false)});
    });
    CHECK(message.empty() != entry.contains("refused"));
    if (!entry.contains("ask")) {
      check_words(message, entry.at("refused"));
      continue;
    }
    REQUIRE_MESSAGE(source, message);
    if (entry.contains("kind")) CHECK(to_string(source->kind()) == entry.at("kind").get<std::string>());
    if (entry.contains("names")) CHECK(source->names() == entry.at("names").get<std::vector<std::string>>());
    for (const auto& [name, expected] : entry.at("ask").items()) check_asked(*source, name, expected);
  }
  CHECK(cases > 50);
}

TEST_CASE("open_model: MLX modules of every width and group dequantise to what MLX makes of them") {
  const auto folder = test::golden_dir() / "io/mlx_bits";
  const auto source = open_model(folder.string());
  CHECK(source->kind() == SourceKind::mlx);
  int modules = 0;
  for (const auto& [module, expected] : test::load_oracle_tensors(folder / "expected.safetensors")) {
    CAPTURE(module);
    ++modules;
    const Weight weight = source->need(module + ".weight");
    REQUIRE(expected.shape == std::vector<int64_t>{weight.rows, weight.cols});
    CHECK(source->shape(module + ".weight") == expected.shape);
    std::vector<double> values(expected.values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = element(weight, static_cast<int64_t>(i) / weight.cols, static_cast<int64_t>(i) % weight.cols);
    }
    CHECK(test::max_difference(values, expected.values) < 1e-6);  // MLX rounds once to F32; values are below 4
  }
  CHECK(modules == 15);
  CHECK(source->need("model.layers.0.plain_proj.weight").format == WeightFormat::bf16);
}

TEST_CASE("open_model: side files are read when they are there, and a broken one is named") {
  const test::TemporaryFolder folder;
  make_file(folder / "config.json", "{}");
  make_file(folder / "model.safetensors", Json{{"tensors", {{"a", {"F32", {2}}}}}});
  make_file(folder / "generation_config.json", R"({"eos_token_id": [1, 2]})");
  make_file(folder / "tokenizer_config.json", "{");
  const auto source = open_model(folder.path().string());
  CHECK(source->side_file("generation_config.json").value().at("eos_token_id") == Json{1, 2});
  CHECK_FALSE(source->side_file("optiq_metadata.json"));
  check_words(test::bad_file_message([&] { source->side_file("tokenizer_config.json"); }),
              {"tokenizer_config.json: not valid JSON"});
  CHECK(open_model((oracle_dir() / "llama-gqa-mixed").string())->side_file("optiq_metadata.json"));
}

TEST_CASE("open_model: every tensor of every oracle model reads as an independent reader has it") {
  int models = 0;
  for (const auto& folder : fs::directory_iterator(oracle_dir())) {
    if (!fs::exists(folder.path() / "model.safetensors")) continue;
    CAPTURE(folder.path().string());
    ++models;
    const auto source = open_model(folder.path().string());
    const auto tensors = test::load_oracle_tensors(folder.path() / "model.safetensors");
    for (const std::string& name : source->names()) {
      CAPTURE(name);
      const auto weight = source->find(name);
      REQUIRE(weight);
      if (weight->format == WeightFormat::affine) continue;
      const auto& expected = tensors.at(name);
      CHECK(*source->shape(name) == expected.shape);
      REQUIRE(weight->rows * weight->cols == static_cast<int64_t>(expected.values.size()));
      for (int64_t i : {int64_t{0}, weight->rows * weight->cols - 1}) {
        CHECK(element(*weight, i / weight->cols, i % weight->cols) == expected.values[static_cast<size_t>(i)]);
      }
      if (expected.shape.size() == 1) CHECK(test::to_double(source->read_vector(name)) == expected.values);
    }
    CHECK_FALSE(source->find("no.such.tensor"));
  }
  CHECK(models >= 18);
}

TEST_CASE("open_model: an affine module dequantises to the oracle's matrix") {
  for (const char* folder : {"llama-gqa-q4g32", "llama-gqa-q4g64", "llama-gqa-q8g64", "llama-gqa-mixed",
                             "minicpm5-like-q4g32", "gemma4-e4b-like-q4g64", "gemma4-e4b-like-mixed"}) {
    CAPTURE(folder);
    const Oracle oracle(folder);
    const auto source = open_model(oracle.path().string());
    CHECK(source->kind() == SourceKind::mlx);
    std::string name;
    for (const std::string& candidate : source->names()) {
      if (candidate.ends_with("layers.0.mlp.down_proj.weight")) name = candidate;
    }
    const Weight weight = source->need(name);
    REQUIRE(weight.format == WeightFormat::affine);
    const auto& expected = oracle.tensor("dequant/layers.0.mlp.down_proj");
    REQUIRE(expected.shape == std::vector<int64_t>{weight.rows, weight.cols});
    double worst = 0;
    for (int64_t i = 0; i < weight.rows * weight.cols; ++i) {
      worst = std::max(
          worst, std::abs(element(weight, i / weight.cols, i % weight.cols) - expected.values[static_cast<size_t>(i)]));
    }
    CHECK(worst < 1e-7);  // the oracle's values are stored in F32
  }
}

}  // namespace sluice
