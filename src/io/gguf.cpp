#include "io/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "io/file_error.h"

namespace sluice {
namespace {

constexpr uint64_t max_keys = 20000;  // far above any model's; metadata becomes an object that is searched linearly
constexpr uint64_t max_alignment = 1 << 20;
constexpr int max_array_depth = 4;
constexpr uint32_t max_dims = 4;  // GGML_MAX_DIMS

struct TensorType {
  uint32_t id;
  std::string_view name;
  int64_t cols, bytes;  // of one block
};

// enum ggml_type with its block sizes (ggml.h, ggml-common.h); those that files do not hold are left out.
constexpr TensorType tensor_types[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},        {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},     {8, "Q8_0", 32, 34},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},  {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},
    {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110}, {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1},         {25, "I16", 1, 2},       {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},  {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},   {40, "NVFP4", 64, 36},
};

// Bytes of a scalar; 0 for string and array.
uint64_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean: return 1;
    case GgufType::u16:
    case GgufType::i16: return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32: return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64: return 8;
    case GgufType::string:
    case GgufType::array: return 0;
  }
  return 0;
}

// The fewest bytes that one element can take: a string's length; an array's type and count.
uint64_t least_bytes(GgufType type) {
  return type == GgufType::string ? 8 : type == GgufType::array ? 12 : scalar_bytes(type);
}

template <class T>
T load(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace

// Walks the file from front to back; every read asks first whether the bytes are there.
class GgufReader {
 public:
  struct Entry {
    StoredTensor tensor;
    uint64_t offset = 0, bytes = 0;
  };

  GgufReader(std::span<const std::byte> rest, std::string_view file) : rest_(rest), file_(file), size_(rest.size()) {}

  uint64_t position() const { return size_ - rest_.size(); }
  uint64_t remaining() const { return rest_.size(); }
  void about(std::string what) { what_ = std::move(what); }  // the key or tensor at hand, for messages

  [[noreturn]] void fail(const std::string& problem) const {
    bad_file(file_, (what_.empty() ? "" : what_ + " ") + problem);
  }

  std::span<const std::byte> take(uint64_t count) {
    if (count > remaining()) {
      fail(fmt::format(
          "needs {} bytes at byte {}, the file holds {} more; it is damaged or was cut short, download it again", count,
          position(), remaining()));
    }
    const std::span<const std::byte> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  template <class T>
  T read() {
    return load<T>(take(sizeof(T)));
  }
  std::string_view text() {
    const std::span<const std::byte> bytes = take(read<uint64_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void check_count(uint64_t count, uint64_t bytes_each, const char* of_what) const {
    if (count > remaining() / bytes_each) {
      fail(fmt::format(
          "promises {} {}, which need at least {} bytes each, the file holds {} more; it is damaged or was cut short, "
          "download it again",
          count, of_what, bytes_each, remaining()));
    }
  }

  GgufType type() {
    const auto id = read<uint32_t>();
    if (id > static_cast<uint32_t>(GgufType::f64))
      fail(fmt::format("has the unknown value type {}; the file is damaged or newer than version 3", id));
    return static_cast<GgufType>(id);
  }
  // `depth` counts the arrays around the value.
  GgufValue value(GgufType type, int depth) {
    GgufValue value;
    value.type_ = type;
    if (type == GgufType::string) {
      const std::string_view characters = text();
      value.bytes_ = std::as_bytes(std::span(characters));
    } else if (type == GgufType::array) {
      if (depth == max_array_depth)
        fail(fmt::format("nests arrays deeper than {}; the file is damaged", max_array_depth));
      value.element_type_ = this->type();
      value.size_ = read<uint64_t>();
      check_count(value.size_, least_bytes(value.element_type_), "elements");
      const std::span<const std::byte> begin = rest_;
      skip_elements(value, depth);
      value.bytes_ = begin.first(begin.size() - rest_.size());
    } else {
      value.bytes_ = take(scalar_bytes(type));
    }
    return value;
  }

  std::pair<std::string_view, GgufValue> key_and_value(std::set<std::string_view>& keys) {
    about("a metadata key");
    const std::string_view key = text();
    if (key.empty() || !is_utf8(key)) fail("is empty or not UTF-8; the file is damaged");
    about("metadata " + printable(key));
    if (!keys.insert(key).second) fail("occurs twice; the file is damaged");
    const GgufValue value = this->value(type(), 0);
    if (value.string() && !is_utf8(*value.string())) fail("is not UTF-8; the file is damaged");
    return {key, value};
  }

  Entry tensor(std::set<std::string_view>& names, uint64_t alignment) {
    about("a tensor's name");
    const std::string_view name = text();
    if (name.empty() || !is_utf8(name)) fail("is empty or not UTF-8; the file is damaged");
    about("tensor " + printable(name));
    if (!names.insert(name).second) fail("occurs twice; the file is damaged");
    Entry entry{.tensor = {.name = std::string(name)}};
    const auto num_dims = read<uint32_t>();
    if (num_dims == 0 || num_dims > max_dims)
      fail(fmt::format("has {} dimensions, needed 1 to {}; the file is damaged", num_dims, max_dims));
    for (uint32_t i = 0; i < num_dims; ++i) {
      const auto extent = read<uint64_t>();
      if (extent == 0 || extent > static_cast<uint64_t>(INT64_MAX))
        fail(fmt::format("has an extent of {}; the file is damaged", extent));
      entry.tensor.shape.insert(entry.tensor.shape.begin(),
                                static_cast<int64_t>(extent));  // the file has the innermost first
    }
    const auto id = read<uint32_t>();
    const auto* found =
        std::find_if(std::begin(tensor_types), std::end(tensor_types), [&](const TensorType& t) { return t.id == id; });
    if (found == std::end(tensor_types)) {
      fail(fmt::format(
          "has type {}, which is unknown; make the file again with llama-quantize as Q4_K_M, Q5_K_M, Q6_K or Q8_0",
          id));
    }
    entry.tensor.dtype = found->name;
    entry.bytes = tensor_bytes(entry.tensor, *found);
    entry.offset = read<uint64_t>();
    if (entry.offset % alignment != 0)
      fail(fmt::format("begins at offset {}, needed a multiple of {}; the file is damaged", entry.offset, alignment));
    return entry;
  }

 private:
  void skip_elements(const GgufValue& array, int depth) {
    const uint64_t bytes = scalar_bytes(array.element_type_);
    if (bytes != 0) {
      take(array.size_ * bytes);
    } else {
      for (uint64_t i = 0; i < array.size_; ++i) value(array.element_type_, depth + 1);
    }
  }
  uint64_t tensor_bytes(const StoredTensor& tensor, const TensorType& type) const {
    const std::string shape = fmt::format("[{}]", fmt::join(tensor.shape, ", "));
    if (tensor.shape.back() % type.cols != 0) {
      fail(fmt::format("of shape {} has rows that are no whole {} blocks of {}; the file is damaged", shape, type.name,
                       type.cols));
    }
    // Elements and bytes must both fit: a block holds more elements than bytes.
    int64_t elements = 1, bytes = 0;
    bool overflows = false;
    for (int64_t extent : tensor.shape) overflows = overflows || __builtin_mul_overflow(elements, extent, &elements);
    if (overflows || __builtin_mul_overflow(elements / type.cols, type.bytes, &bytes))
      fail(fmt::format("of shape {} is larger than memory can be; the file is damaged", shape));
    return static_cast<uint64_t>(bytes);
  }

  std::span<const std::byte> rest_;
  std::string_view file_;
  uint64_t size_;
  std::string what_;
};

namespace {

void read_version(GgufReader& reader, GgufHeader& header) {
  const auto magic = reader.take(4);
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) reader.fail("does not begin with GGUF; is it a GGUF file?");
  header.version = reader.read<uint32_t>();
  if ((header.version & 0xffffU) == 0)
    reader.fail("is a big-endian GGUF file; make it again for a little-endian machine");
  if (header.version == 1)
    reader.fail("is GGUF version 1, needed 2 or 3; convert the model again with a current llama.cpp");
  if (header.version > 3)
    reader.fail(fmt::format("is GGUF version {}, needed 2 or 3; use a newer sluice", header.version));
}

void read_alignment(const GgufReader& reader, GgufHeader& header) {
  for (const auto& [key, value] : header.metadata) {
    if (key != "general.alignment") continue;
    const int64_t alignment = value.type() == GgufType::u32 ? value.integer().value_or(0) : 0;
    if (alignment <= 0 || static_cast<uint64_t>(alignment) > max_alignment || (alignment & (alignment - 1)) != 0) {
      reader.fail("general.alignment must be a u32 power of two; the file is damaged");
    }
    header.alignment = static_cast<uint64_t>(alignment);
  }
}

// Places the tensors in the data section. Throws when they overlap or end past the file.
void place_tensors(std::vector<GgufReader::Entry>& entries, std::span<const std::byte> file, uint64_t data_begin,
                   std::string_view name, TensorData data) {
  auto fail = [&](const GgufReader::Entry& entry, const std::string& problem) {
    bad_file(name, fmt::format("tensor {}: {}", printable(entry.tensor.name), problem));
  };
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return entries[a].offset < entries[b].offset; });

  const uint64_t data_bytes = file.size() > data_begin ? file.size() - data_begin : 0;
  uint64_t at = 0;  // end of the tensor before
  for (size_t i : order) {
    const GgufReader::Entry& entry = entries[i];
    if (entry.offset < at)
      fail(entry,
           fmt::format("data at offset {} begins inside the tensor before it, which ends at {}; the file is damaged",
                       entry.offset, at));
    if (__builtin_add_overflow(entry.offset, entry.bytes, &at))
      fail(entry, fmt::format("offset {} is past the end of the file; it is damaged", entry.offset));
    if (data == TensorData::required && at > data_bytes) {
      fail(entry,
           fmt::format("data ends at byte {} of the data, the file holds {}; it was cut short, download it again", at,
                       data_bytes));
    }
  }
  if (at > data_bytes) return;
  for (GgufReader::Entry& entry : entries) entry.tensor.data = file.subspan(data_begin + entry.offset, entry.bytes);
}

}  // namespace

GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view name, TensorData data) {
  GgufReader reader(file, name);
  GgufHeader header;
  read_version(reader, header);
  const auto num_tensors = reader.read<uint64_t>(), num_keys = reader.read<uint64_t>();
  reader.about("the header");
  reader.check_count(num_keys, 8 + 4 + 1, "metadata keys");  // length, type, smallest value
  reader.check_count(num_tensors, 8 + 4 + 8 + 4 + 8, "tensors");
  if (num_keys > max_keys)
    reader.fail(fmt::format("promises {} metadata keys, at most {} are read; is it a model?", num_keys, max_keys));

  std::set<std::string_view> keys, names;
  for (uint64_t i = 0; i < num_keys; ++i) header.metadata.push_back(reader.key_and_value(keys));
  reader.about("");
  read_alignment(reader, header);
  std::vector<GgufReader::Entry> entries;
  for (uint64_t i = 0; i < num_tensors; ++i) entries.push_back(reader.tensor(names, header.alignment));

  const uint64_t data_begin = (reader.position() + header.alignment - 1) / header.alignment * header.alignment;
  place_tensors(entries, file, data_begin, name, data);
  header.tensors.reserve(entries.size());
  for (auto& entry : entries) header.tensors.push_back(std::move(entry.tensor));
  return header;
}

void GgufValue::for_each(const std::function<bool(const GgufValue&)>& visit) const {
  if (type_ != GgufType::array) return;
  GgufReader reader(bytes_, "");
  for (uint64_t i = 0; i < size_; ++i) {
    if (!visit(reader.value(element_type_, 0))) return;
  }
}

GgufFile::GgufFile(const std::string& path, TensorData data)
    : map_(path), header_(parse_gguf(map_.bytes(), path, data)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) tensor_index_.emplace(header_.tensors[i].name, i);
  for (size_t i = 0; i < header_.metadata.size(); ++i) key_index_.emplace(header_.metadata[i].first, i);
}

const StoredTensor* GgufFile::find(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &header_.tensors[found->second];
}

const GgufValue* GgufFile::get(std::string_view key) const {
  const auto found = key_index_.find(key);
  return found == key_index_.end() ? nullptr : &header_.metadata[found->second].second;
}

}  // namespace sluice
