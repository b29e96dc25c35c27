// The safetensors format (github.com/huggingface/safetensors): 8 bytes of header length, a JSON header, the tensors' bytes.
//
//   SafetensorsFile file("adapter_model.safetensors");
//   for (const StoredTensor& t : file.tensors()) use(t.name, t.dtype, t.shape, t.data);   // views of the mapping
//   write_safetensors(path, {{"a.lora_A.weight", "F32", {8, 64}, bytes}}, {{"format", "pt"}});
//
// Nothing is read before its bounds are checked, and memory use is bounded by a small multiple of the header's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/mmap.h"

namespace sluice {

struct StoredTensor {
  std::string name;
  std::string dtype;                // as the file says it: F64 F32 F16 BF16 I64 … U8 BOOL (GGUF: Q4_K …)
  std::vector<int64_t> shape;       // outermost first; empty for a scalar
  std::span<const std::byte> data;  // null when only the header is there
  int64_t numel() const;
};

// Whether a file may end after its header, its tensors having shapes but no data (for planning).
enum class TensorData : uint8_t { required, may_be_absent };

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;                          // in header order
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, in header order
};

// Parses a whole file held in memory; the tensors' data point into `file`. `name` is for messages. Throws Error(bad_file)
// naming the file and the tensor when: the header is longer than the file or than 100 MB (the reference's limit), is not
// JSON or not UTF-8; a name occurs twice; a dtype is unknown; a shape has more than 8 dimensions, a negative extent or
// overflows; a range is reversed, ends past the file, overlaps another, or its size is not shape times dtype; or bytes
// belong to no tensor (as the reference demands).
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view name,
                                    TensorData data = TensorData::required);

class SafetensorsFile {
 public:
  // Throws as parse_safetensors and MappedFile do.
  explicit SafetensorsFile(const std::string& path, TensorData data = TensorData::required);

  const std::string& path() const { return map_.path(); }
  const MappedFile& map() const { return map_; }
  const std::vector<StoredTensor>& tensors() const { return header_.tensors; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return header_.metadata; }
  const StoredTensor* find(std::string_view name) const;  // null when absent

 private:
  MappedFile map_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

struct TensorToWrite {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// Writes a file through a temporary name in the same folder, so that `path` is the old file or the whole new one, never
// a part (io/atomic_file.h). Tensors lie in the order given; the header is padded with spaces to a multiple of 8, as the
// reference does. Throws Error(bad_file) when the disk is full or cannot be written, Error(bug) when a name repeats or
// data does not fit shape and dtype.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata = {});

// Bits of one element of a safetensors dtype, 0 for an unknown one.
int64_t safetensors_dtype_bits(std::string_view dtype);

}  // namespace sluice
