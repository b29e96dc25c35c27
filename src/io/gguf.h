// The GGUF format of llama.cpp (github.com/ggml-org/ggml, docs/gguf.md), versions 2 and 3, little-endian.
//
//   GgufFile file("SmolLM2-135M-Instruct.Q4_1.gguf");
//   const GgufValue* tokens = file.get("tokenizer.ggml.tokens");      // null when absent
//   std::vector<std::string_view> vocabulary = tokens->strings();     // views of the mapping
//   const StoredTensor* w = file.find("blk.0.ffn_down.weight");       // dtype "Q4_1", shape outermost first
//
// Nothing is read before its bounds are checked; arrays stay views until they are asked for, so that memory use is bounded
// by a small multiple of the header's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "io/mmap.h"
#include "io/safetensors.h"

namespace sluice {

enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
std::string_view to_string(GgufType type);

// One metadata value, as a view of the file.
class GgufValue {
 public:
  GgufType type() const { return type_; }
  GgufType element_type() const { return element_type_; }  // of an array
  uint64_t size() const { return size_; }                  // elements of an array

  // The value when it is of that kind (integers of every width and bools; numbers also floats), else nothing.
  std::optional<int64_t> integer() const;  // nothing for a u64 above INT64_MAX
  std::optional<double> number() const;
  std::optional<bool> boolean() const;
  std::optional<std::string_view> string() const;  // UTF-8, unless it is an element of an array

  // The elements of an array when all are of that kind; empty otherwise, and for an empty array.
  std::vector<std::string_view> strings() const;  // bytes as stored, which need not be UTF-8
  std::vector<int64_t> integers() const;
  std::vector<double> numbers() const;
  std::vector<GgufValue> elements() const;                                  // of any array
  void for_each(const std::function<bool(const GgufValue&)>& visit) const;  // until `visit` says false

 private:
  friend class GgufReader;
  GgufType type_ = GgufType::u8, element_type_ = GgufType::u8;
  uint64_t size_ = 0;
  std::span<const std::byte> bytes_;  // a scalar's bytes, a string's characters, an array's elements as encoded
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = 32;
  std::vector<std::pair<std::string_view, GgufValue>> metadata;  // in file order
  std::vector<StoredTensor> tensors;                             // in file order; dtype as ggml spells it
};

// Parses a whole file held in memory, which the result points into; `name` is for messages. Throws Error(bad_file) naming the
// file and the key or tensor when: the file is big-endian, of version 1 or of an unknown one; a count, length or offset
// passes the end of the file; a key or name is empty, is not UTF-8 or occurs twice; arrays nest deeper than 4; there are more
// than 20,000 keys; a tensor has no or more than 4 dimensions, an extent of zero, a product that overflows, rows that
// are no whole blocks, an unknown type, or data that is misaligned or overlaps another's.
GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view name, TensorData data = TensorData::required);

// The metadata as one JSON object under the original keys: scalars, and flat arrays of up to 4,096 elements outside "tokenizer.".
Json gguf_metadata_json(const GgufHeader& header);

class GgufFile {
 public:
  explicit GgufFile(const std::string& path, TensorData data = TensorData::required);

  const std::string& path() const { return map_.path(); }
  const MappedFile& map() const { return map_; }
  const GgufHeader& header() const { return header_; }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const StoredTensor* find(std::string_view name) const;  // null when absent
  const GgufValue* get(std::string_view key) const;       // null when absent

 private:
  MappedFile map_;
  GgufHeader header_;
  std::map<std::string_view, size_t> tensor_index_, key_index_;
};

}  // namespace sluice
