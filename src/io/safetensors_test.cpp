#include "io/safetensors.h"

#include <doctest/doctest.h>

#include "io/json_file.h"
#include "support/golden.h"

namespace sluice {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::byte b : bytes) {
    text += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
    text += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
  }
  return text;
}

const char* const reference_files[] = {"every_dtype.safetensors", "shapes.safetensors", "no_tensors.safetensors"};

std::vector<TensorToWrite> to_write(const SafetensorsFile& file) {
  std::vector<TensorToWrite> tensors;
  for (const StoredTensor& t : file.tensors()) tensors.push_back({t.name, t.dtype, t.shape, t.data});
  return tensors;
}

}  // namespace

TEST_CASE("SafetensorsFile: reads what the reference implementation wrote") {
  const Json known = read_json_file((test::golden_dir() / "io" / "known.json").string());
  for (const char* name : reference_files) {
    CAPTURE(name);
    const SafetensorsFile file((test::golden_dir() / "io" / name).string());
    const Json& expected = known.at(name);
    CHECK(file.tensors().size() == expected.at("tensors").size());
    for (const Json& tensor : expected.at("tensors")) {
      const StoredTensor* found = file.find(tensor.at("name").get<std::string>());
      REQUIRE(found != nullptr);
      CHECK(found->dtype == tensor.at("dtype").get<std::string>());
      CHECK(found->shape == tensor.at("shape").get<std::vector<int64_t>>());
      CHECK(hex(found->data) == tensor.at("hex").get<std::string>());
    }
    CHECK(file.metadata().size() == expected.at("metadata").size());
    for (const auto& [key, value] : file.metadata()) CHECK(expected.at("metadata").at(key) == value);
    CHECK(file.find("no such tensor") == nullptr);
  }
}

TEST_CASE("write_safetensors: the bytes are those of the reference implementation, given its order") {
  const test::TemporaryFolder folder;
  for (const char* name : reference_files) {
    CAPTURE(name);
    const auto original = test::golden_dir() / "io" / name;
    const SafetensorsFile file(original.string());
    write_safetensors(folder / name, to_write(file), file.metadata());
    CHECK(test::read_whole_file(folder / name) == test::read_whole_file(original));
  }
}

TEST_CASE("write_safetensors: tensors stay in the order given, and a repeated name or a wrong size is our bug") {
  const test::TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3, 4};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  write_safetensors(folder / "x", {{"z", "F32", {4}, bytes}, {"a", "F32", {2, 2}, bytes}});
  const SafetensorsFile file(folder / "x");
  CHECK(file.tensors()[0].name == "z");
  CHECK(file.tensors()[1].name == "a");
  CHECK(file.tensors()[1].data.size() == 16);

  auto bug = [&](const std::vector<TensorToWrite>& tensors) {
    try {
      write_safetensors(folder / "y", tensors);
    } catch (const Error& e) {
      return e.code() == ErrorCode::bug;
    }
    return false;
  };
  CHECK(bug({{"a", "F32", {4}, bytes}, {"a", "F32", {4}, bytes}}));
  CHECK(bug({{"a", "F32", {3}, bytes}}));
  CHECK(bug({{"__metadata__", "F32", {4}, bytes}}));
  CHECK_FALSE(std::filesystem::exists(folder / "y"));
}

}  // namespace sluice
