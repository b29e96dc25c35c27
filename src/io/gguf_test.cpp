#include "io/gguf.h"

#include <doctest/doctest.h>

#include "io/json_file.h"
#include "io/weight_source.h"
#include "support/golden.h"

namespace sluice {
namespace {

std::string golden(const char* name) { return (test::golden_dir() / "io" / name).string(); }

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string_view as_text(const std::byte* p, int64_t size) {
  return {reinterpret_cast<const char*>(p), static_cast<size_t>(size)};
}

}  // namespace

TEST_CASE("GgufFile: reads what the gguf package wrote, in versions 2 and 3") {
  const Json known = read_json_file(golden("known.json"));
  for (const char* name : {"every_type.gguf", "version_2.gguf"}) {
    CAPTURE(name);
    const GgufFile file(golden(name));
    CHECK(file.header().alignment == 64);
    const Json metadata = gguf_metadata_json(file.header());
    for (const auto& [key, value] : known.at(name).at("metadata").items()) {
      CAPTURE(key);
      REQUIRE(metadata.contains(key));
      if (key == "scalar.u64") CHECK(metadata.at(key).get<double>() == value.get<double>());  // above INT64_MAX
      else CHECK(metadata.at(key) == value);
    }
    CHECK_FALSE(metadata.contains("tokenizer.ggml.tokens"));
    CHECK_FALSE(metadata.contains("array.nested"));
    CHECK(file.tensors().size() == known.at(name).at("tensors").size());
    for (const Json& tensor : known.at(name).at("tensors")) {
      const StoredTensor* found = file.find(tensor.at("name").get<std::string>());
      REQUIRE(found != nullptr);
      CHECK(found->dtype == tensor.at("dtype").get<std::string>());
      CHECK(found->shape == tensor.at("shape").get<std::vector<int64_t>>());
      CHECK(as_text(found->data.data(), static_cast<int64_t>(found->data.size())) ==
            bytes_of_hex(tensor.at("hex").get<std::string>()));
    }
  }
}

TEST_CASE("GgufValue: gives what it holds, and nothing when asked for another kind") {
  const GgufFile file(golden("every_type.gguf"));
  CHECK(file.get("no.such.key") == nullptr);
  CHECK(file.get("scalar.i8")->integer() == -100);
  CHECK(file.get("scalar.u32")->integer() == 4000000000);
  CHECK_FALSE(file.get("scalar.u64")->integer());
  CHECK(file.get("scalar.u64")->number() == 9223372036854779904.0);
  CHECK(file.get("scalar.f32")->number() == static_cast<double>(1e-5F));
  CHECK_FALSE(file.get("scalar.f32")->integer());
  CHECK(file.get("scalar.yes")->boolean() == true);
  CHECK_FALSE(file.get("scalar.i8")->boolean());
  CHECK_FALSE(file.get("scalar.i8")->string());
  CHECK(file.get("scalar.text")->string() == "größe \U0001f600");

  CHECK(file.get("array.numbers")->integers() == std::vector<int64_t>{1, 2, 300});
  CHECK(file.get("array.floats")->numbers() == std::vector<double>{0.5, -0.25});
  CHECK(file.get("array.floats")->integers().empty());
  CHECK(file.get("array.text")->strings() == std::vector<std::string_view>{"a", "", "ccc"});
  CHECK(file.get("array.text")->numbers().empty());
  CHECK(file.get("scalar.i8")->elements().empty());
  const GgufValue& tokens = *file.get("tokenizer.ggml.tokens");
  CHECK(tokens.element_type() == GgufType::string);
  CHECK(tokens.size() == 3);
  CHECK(tokens.strings()[2] == "Ġthe");
  const auto nested = file.get("array.nested")->elements();
  REQUIRE(nested.size() == 2);
  CHECK(nested[0].integers() == std::vector<int64_t>{1, 2});
  CHECK(nested[1].integers() == std::vector<int64_t>{3});
}

TEST_CASE(
    "open_model: a GGUF file's tensors are weights as they lie in the file; other quantisations are refused by name") {
  const auto source = open_model(golden("every_type.gguf"));
  CHECK(source->kind() == SourceKind::gguf);
  CHECK(source->gguf() != nullptr);
  CHECK(source->config().at("general.architecture") == "llama");
  CHECK_FALSE(source->side_file("generation_config.json"));
  const Json known = read_json_file(golden("known.json")).at("every_type.gguf").at("tensors");
  for (const Json& tensor : known) {
    const std::string name = tensor.at("name").get<std::string>(), dtype = tensor.at("dtype").get<std::string>();
    CAPTURE(name);
    const auto shape = tensor.at("shape").get<std::vector<int64_t>>();
    CHECK(source->shape(name) == shape);
    if (dtype == "IQ4_XS" || dtype == "Q2_K") {
      const std::string message = test::bad_file_message([&] { source->find(name); });
      CHECK(message.find(dtype) != std::string::npos);
      CHECK(message.find("llama-quantize") != std::string::npos);
      continue;
    }
    const Weight weight = source->need(name);
    CHECK(weight.rows == (shape.size() == 1 ? 1 : shape[0]));
    CHECK(weight.cols == shape.back());
    CHECK(as_text(weight.data, weight.size_bytes()) == bytes_of_hex(tensor.at("hex").get<std::string>()));
  }
  CHECK(source->read_vector("norm.weight").size() == 6);
  CHECK_THROWS_AS(source->read_vector("blk.0.q4_k.weight"), Error);
}

}  // namespace sluice
