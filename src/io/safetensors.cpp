#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>

#include "core/json.h"
#include "io/atomic_file.h"
#include "io/file_error.h"

namespace sluice {
namespace {

constexpr uint64_t max_header_bytes = 100'000'000;  // MAX_HEADER_SIZE of the reference implementation
constexpr size_t max_rank = 8;
constexpr uint64_t length_bytes = 8;

// Receives the JSON header token by token, so that nothing but the tensors themselves is ever built.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  struct Entry {
    StoredTensor tensor;
    uint64_t begin = 0, end = 0;
  };

  explicit HeaderReader(std::string_view file) : file_(file) {}

  std::vector<Entry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;

  bool start_object(size_t) override {
    switch (place_) {
      case Place::before: place_ = Place::top; return true;
      case Place::top:
        if (entry_name_ == "__metadata__") {
          place_ = Place::metadata;
        } else {
          entries.push_back({.tensor = {.name = entry_name_}});
          fields_ = 0;
          place_ = Place::tensor;
        }
        return true;
      default: unexpected("an object");
    }
  }
  bool end_object() override {
    if (place_ == Place::tensor && fields_ != all_fields) {
      fail("needs dtype, shape and data_offsets; the file is damaged");
    }
    place_ = place_ == Place::top ? Place::after : Place::top;
    return true;
  }
  bool key(std::string& key) override {
    key_ = key;
    if (place_ == Place::top) {
      entry_name_ = key;
      if (!names_.insert(key).second) fail("occurs twice in the header; the file is damaged");
    } else if (place_ == Place::tensor) {
      const unsigned field = key == "dtype" ? 1U : key == "shape" ? 2U : key == "data_offsets" ? 4U : 0U;
      if (field == 0) fail(fmt::format("has an unknown field \"{}\"; the file is damaged", printable(key)));
      if ((fields_ & field) != 0) fail(fmt::format("has the field \"{}\" twice; the file is damaged", key));
      fields_ |= field;
    }
    return true;
  }
  bool start_array(size_t) override {
    if (place_ == Place::tensor && (key_ == "shape" || key_ == "data_offsets")) {
      place_ = key_ == "shape" ? Place::shape : Place::offsets;
      num_offsets_ = 0;
      return true;
    }
    unexpected("an array");
  }
  bool end_array() override {
    if (place_ == Place::offsets && num_offsets_ != 2) fail("needs two data_offsets; the file is damaged");
    place_ = Place::tensor;
    return true;
  }
  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::shape) return extent(value);
    if (place_ != Place::offsets) unexpected("a number");
    if (num_offsets_ == 2) fail("has more than two data_offsets; the file is damaged");
    (num_offsets_++ == 0 ? entries.back().begin : entries.back().end) = value;
    return true;
  }
  bool string(std::string& value) override {
    if (place_ == Place::metadata) metadata.emplace_back(key_, value);
    else if (place_ == Place::tensor && key_ == "dtype") entries.back().tensor.dtype = value;
    else unexpected("a string");
    return true;
  }
  bool number_integer(int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { unexpected("a number that is no integer in range"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool null() override { unexpected("null"); }
  bool binary(nlohmann::json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) override {
    std::string_view reason = e.what();
    if (const size_t colon = reason.find(": "); colon != std::string_view::npos) reason.remove_prefix(colon + 2);
    bad_file(file_, fmt::format("the header is not valid JSON at byte {} of the file: {}; download it again",
                                position + length_bytes, printable(reason, 160)));
  }

 private:
  enum class Place { before, top, metadata, tensor, shape, offsets, after };
  static constexpr unsigned all_fields = 7;

  [[noreturn]] void fail(const std::string& problem) const {
    bad_file(file_, fmt::format("tensor {} {}", printable(entry_name_), problem));
  }
  [[noreturn]] void unexpected(const char* what) const {
    if (place_ == Place::before)
      bad_file(file_, fmt::format("the header is {}, not an object; is this a safetensors file?", what));
    if (place_ == Place::metadata) {
      bad_file(file_, fmt::format("__metadata__ holds {} under \"{}\", only text is allowed; write the file again",
                                  what, printable(key_)));
    }
    fail(fmt::format("has {} where it does not belong (near \"{}\"); the file is damaged", what, printable(key_)));
  }
  bool extent(uint64_t value) {
    std::vector<int64_t>& shape = entries.back().tensor.shape;
    if (shape.size() == max_rank) fail(fmt::format("has more than {} dimensions; the file is damaged", max_rank));
    if (value > static_cast<uint64_t>(INT64_MAX)) fail(fmt::format("has an extent of {}; the file is damaged", value));
    shape.push_back(static_cast<int64_t>(value));
    return true;
  }

  std::string_view file_;
  Place place_ = Place::before;
  std::string entry_name_, key_;
  std::set<std::string, std::less<>> names_;
  unsigned fields_ = 0;
  int num_offsets_ = 0;
};

// Bytes of a tensor of this shape and dtype. Throws when the product overflows or is no whole number of bytes.
uint64_t tensor_bytes(std::string_view file, const StoredTensor& tensor) {
  const auto bits = static_cast<uint64_t>(safetensors_dtype_bits(tensor.dtype));
  if (bits == 0) {
    bad_file(file, fmt::format("tensor {} has the unknown dtype \"{}\"; convert it to BF16, F16 or F32",
                               printable(tensor.name), printable(tensor.dtype)));
  }
  uint64_t total = bits;
  // An extent of zero makes the product zero whatever the others are, but those must be sound on their own.
  for (int64_t extent : tensor.shape) {
    if (extent != 0 && __builtin_mul_overflow(total, static_cast<uint64_t>(extent), &total)) {
      bad_file(file, fmt::format("tensor {}: shape [{}] is larger than memory can be; the file is damaged",
                                 printable(tensor.name), fmt::join(tensor.shape, ", ")));
    }
  }
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return 0;
  if (total % 8 != 0) {
    bad_file(file, fmt::format("tensor {}: shape [{}] of {} is no whole number of bytes; the file is damaged",
                               printable(tensor.name), fmt::join(tensor.shape, ", "), tensor.dtype));
  }
  return total / 8;
}

void check_range(std::string_view file, const HeaderReader::Entry& entry, uint64_t data_bytes, bool data_is_there) {
  const uint64_t needed = tensor_bytes(file, entry.tensor);
  const std::string name = printable(entry.tensor.name);
  if (entry.begin > entry.end) {
    bad_file(file, fmt::format("tensor {}: data_offsets [{}, {}] run backwards; the file is damaged", name, entry.begin,
                               entry.end));
  }
  if (entry.end - entry.begin != needed) {
    bad_file(file,
             fmt::format("tensor {}: data_offsets hold {} bytes, shape [{}] of {} needs {}; the file is damaged", name,
                         entry.end - entry.begin, fmt::join(entry.tensor.shape, ", "), entry.tensor.dtype, needed));
  }
  if (data_is_there && entry.end > data_bytes) {
    bad_file(file,
             fmt::format(
                 "tensor {}: data ends at byte {} of the data, the file holds {}; it was cut short, download it again",
                 name, entry.end, data_bytes));
  }
}

// The ranges must tile the data: no overlap, no gap, nothing left over.
void check_tiling(std::string_view file, const std::vector<HeaderReader::Entry>& entries, uint64_t data_bytes,
                  bool data_is_there) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(entries[a].begin, entries[a].end) < std::pair(entries[b].begin, entries[b].end);
  });
  uint64_t at = 0;
  for (size_t i : order) {
    const HeaderReader::Entry& entry = entries[i];
    if (entry.begin != at) {
      bad_file(file,
               fmt::format(
                   "tensor {}: data begins at byte {}, {} the tensor before it, which ends at {}; the file is damaged",
                   printable(entry.tensor.name), entry.begin, entry.begin < at ? "inside" : "with a gap after", at));
    }
    at = entry.end;
  }
  if (data_is_there && at != data_bytes) {
    bad_file(file, fmt::format("the tensors end at byte {} of the data, the file holds {}; the file is damaged", at,
                               data_bytes));
  }
}

}  // namespace

int64_t StoredTensor::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t safetensors_dtype_bits(std::string_view dtype) {
  struct Row {
    std::string_view name;
    int64_t bits;
  };
  static constexpr std::array<Row, 20> rows = {
      {{"F64", 64},    {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"I64", 64},    {"I32", 32}, {"I16", 16},
       {"I8", 8},      {"U64", 64},    {"U32", 32},    {"U16", 16},    {"U8", 8},      {"BOOL", 8}, {"C64", 64},
       {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}}};
  for (const Row& row : rows) {
    if (row.name == dtype) return row.bits;
  }
  return 0;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view name, TensorData data) {
  if (file.size() < length_bytes)
    bad_file(name, fmt::format("holds {} bytes, a safetensors file begins with 8; download it again", file.size()));
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < length_bytes; ++i) header_bytes |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (header_bytes > max_header_bytes) {
    bad_file(name, fmt::format("the header length is {}, at most 100000000 is allowed; is this a safetensors file?",
                               header_bytes));
  }
  if (header_bytes > file.size() - length_bytes) {
    bad_file(name,
             fmt::format(
                 "the header needs {} bytes, the file holds {} after its length; it was cut short, download it again",
                 header_bytes, file.size() - length_bytes));
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + length_bytes;
  HeaderReader reader(name);
  nlohmann::json::sax_parse(text, text + header_bytes, &reader);

  const std::span<const std::byte> body = file.subspan(length_bytes + header_bytes);
  uint64_t data_end = 0;
  for (const auto& entry : reader.entries) data_end = std::max(data_end, entry.end);
  const bool data_is_there = data == TensorData::required || data_end <= body.size();

  SafetensorsHeader header{.tensors = {}, .metadata = std::move(reader.metadata)};
  for (const auto& entry : reader.entries) check_range(name, entry, body.size(), data_is_there);
  check_tiling(name, reader.entries, body.size(), data_is_there);
  header.tensors.reserve(reader.entries.size());
  for (auto& entry : reader.entries) {
    if (data_is_there) entry.tensor.data = body.subspan(entry.begin, entry.end - entry.begin);
    header.tensors.push_back(std::move(entry.tensor));
  }
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path, TensorData data)
    : map_(path), header_(parse_safetensors(map_.bytes(), path, data)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_.emplace(header_.tensors[i].name, i);
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) {
    Json& entries = header["__metadata__"] = Json::object();
    for (const auto& [key, value] : metadata) entries[key] = value;
  }
  std::set<std::string_view> names = {"__metadata__"};
  uint64_t offset = 0;
  std::string text;  // built by hand from dumped parts: an ordered object is searched linearly at every insertion
  for (const TensorToWrite& tensor : tensors) {
    SLUICE_ASSERT(names.insert(tensor.name).second);
    const StoredTensor as_stored{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = {}};
    SLUICE_ASSERT(tensor_bytes(path, as_stored) == tensor.data.size());
    const Json entry = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.data.size()}}};
    text += (text.empty() ? "" : ",") + Json(tensor.name).dump() + ":" + entry.dump();
    offset += tensor.data.size();
  }
  std::string head = header.dump();
  head.pop_back();
  text = head + (head.size() > 1 && !text.empty() ? "," : "") + text + "}";
  text.resize((text.size() + length_bytes - 1) / length_bytes * length_bytes, ' ');

  std::array<std::byte, length_bytes> length{};
  for (size_t i = 0; i < length_bytes; ++i) length[i] = static_cast<std::byte>(text.size() >> (8 * i));
  AtomicFile file(path, length_bytes + text.size() + offset);
  file.write(length);
  file.write(std::as_bytes(std::span(text)));
  for (const TensorToWrite& tensor : tensors) file.write(tensor.data);
  file.commit();
}

}  // namespace sluice
