// The oracle fixtures: golden numbers of an independent implementation (tests/oracle/README.md).
//
//   Oracle oracle("llama-gqa");                                    // a folder of oracle_dir()
//   std::vector<double> logits = oracle.values("base/logits/len5");   // from expected.safetensors
//   double loss = oracle.meta()["objectives"]["sft_response"]["loss"];
//
// Reads safetensors with a few lines of its own, so that tests of any folder can use it and no reader under test takes part.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/json.h"
#include "support/source_dir.h"

namespace sluice::test {

// The environment variable ORACLE_DIR, or tests/golden/fixtures of the source tree.
inline std::filesystem::path oracle_dir() {
  if (const char* dir = std::getenv("ORACLE_DIR"); dir != nullptr && *dir != '\0') return dir;
  return source_dir() / "tests" / "golden" / "fixtures";
}

inline std::string read_whole_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  REQUIRE_MESSAGE(stream.good(), "cannot open ", path.string());
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

struct OracleTensor {
  std::string dtype;           // as in the file: F64, F32, F16, BF16, I64, I32, U32, U8
  std::vector<int64_t> shape;  // outermost first
  std::vector<double> values;  // U32 and I64 beyond 2^53 do not occur
};

inline std::vector<double> decode_oracle_values(const std::string& dtype, const char* p, size_t bytes) {
  std::vector<double> values;
  auto decode = [&](auto element, auto convert) {
    values.resize(bytes / sizeof(element));
    for (double& value : values) {
      std::memcpy(&element, p, sizeof(element));
      value = static_cast<double>(convert(element));
      p += sizeof(element);
    }
  };
  auto same = [](auto v) { return v; };
  if (dtype == "F64") decode(double{}, same);
  else if (dtype == "F32") decode(float{}, same);
  else if (dtype == "BF16") decode(bf16{}, [](bf16 v) { return static_cast<float>(v); });
  else if (dtype == "F16") decode(uint16_t{}, f16_to_float);
  else if (dtype == "I64") decode(int64_t{}, same);
  else if (dtype == "I32") decode(int32_t{}, same);
  else if (dtype == "U32") decode(uint32_t{}, same);
  else if (dtype == "U8") decode(uint8_t{}, same);
  else FAIL("oracle: dtype ", dtype, " is not read");
  return values;
}

// All tensors of a safetensors file, by name.
inline std::map<std::string, OracleTensor> load_oracle_tensors(const std::filesystem::path& path) {
  const std::string file = read_whole_file(path);
  uint64_t header_bytes = 0;
  REQUIRE(file.size() >= sizeof(header_bytes));
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  REQUIRE(header_bytes <= file.size() - sizeof(header_bytes));
  const char* data = file.data() + sizeof(header_bytes) + header_bytes;
  const auto header = nlohmann::json::parse(file.data() + sizeof(header_bytes), data);
  std::map<std::string, OracleTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry.at("data_offsets")[0].get<size_t>(), end = entry.at("data_offsets")[1].get<size_t>();
    OracleTensor& tensor = tensors[name];
    tensor.dtype = entry.at("dtype").get<std::string>();
    tensor.shape = entry.at("shape").get<std::vector<int64_t>>();
    tensor.values = decode_oracle_values(tensor.dtype, data + begin, end - begin);
  }
  return tensors;
}

class Oracle {
 public:
  // In oracle_dir(), or where files that were made from another set of fixtures have theirs.
  explicit Oracle(const std::string& folder, const std::filesystem::path& dir = oracle_dir()) : path_(dir / folder) {
    if (std::filesystem::exists(path_ / "expected.safetensors"))
      tensors_ = load_oracle_tensors(path_ / "expected.safetensors");
    if (std::filesystem::exists(path_ / "meta.json")) meta_ = Json::parse(read_whole_file(path_ / "meta.json"));
  }

  const std::filesystem::path& path() const { return path_; }
  const Json& meta() const { return meta_; }
  const std::map<std::string, OracleTensor>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  const OracleTensor& tensor(const std::string& name) const {
    const auto found = tensors_.find(name);
    REQUIRE_MESSAGE(found != tensors_.end(), path_.string(), " has no ", name);
    return found->second;
  }
  const std::vector<double>& values(const std::string& name) const { return tensor(name).values; }
  Json json(const std::string& file) const { return Json::parse(read_whole_file(path_ / file)); }  // such as cases.json

 private:
  std::filesystem::path path_;
  std::map<std::string, OracleTensor> tensors_;
  Json meta_;
};

}  // namespace sluice::test
