// Metadata values: what they hold, and all of them as JSON.
#include <cstring>

#include "io/file_error.h"
#include "io/gguf.h"

namespace sluice {
namespace {

constexpr uint64_t max_json_elements = 4096;

template <class T>
T load(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

}  // namespace

std::string_view to_string(GgufType type) {
  constexpr std::string_view names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
  return names[static_cast<size_t>(type)];
}

std::optional<int64_t> GgufValue::integer() const {
  switch (type_) {
    case GgufType::u8: return load<uint8_t>(bytes_);
    case GgufType::i8: return load<int8_t>(bytes_);
    case GgufType::u16: return load<uint16_t>(bytes_);
    case GgufType::i16: return load<int16_t>(bytes_);
    case GgufType::u32: return load<uint32_t>(bytes_);
    case GgufType::i32: return load<int32_t>(bytes_);
    case GgufType::i64: return load<int64_t>(bytes_);
    case GgufType::u64: {
      const auto value = load<uint64_t>(bytes_);
      if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    case GgufType::boolean: return load<uint8_t>(bytes_) != 0 ? 1 : 0;
    default: return std::nullopt;
  }
}

std::optional<double> GgufValue::number() const {
  if (type_ == GgufType::f32) return static_cast<double>(load<float>(bytes_));
  if (type_ == GgufType::f64) return load<double>(bytes_);
  if (type_ == GgufType::u64) return static_cast<double>(load<uint64_t>(bytes_));
  if (const auto value = integer()) return static_cast<double>(*value);
  return std::nullopt;
}

std::optional<bool> GgufValue::boolean() const {
  if (type_ != GgufType::boolean) return std::nullopt;
  return load<uint8_t>(bytes_) != 0;
}

std::optional<std::string_view> GgufValue::string() const {
  if (type_ != GgufType::string) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
}

std::vector<GgufValue> GgufValue::elements() const {
  std::vector<GgufValue> elements;
  for_each([&](const GgufValue& element) {
    elements.push_back(element);
    return true;
  });
  return elements;
}

namespace {

// One reading of every element; nothing when an element is of another kind.
template <class T, class Read>
std::vector<T> read_all(const GgufValue& array, Read read) {
  std::vector<T> values;
  array.for_each([&](const GgufValue& element) {
    const std::optional<T> value = read(element);
    if (value) values.push_back(*value);
    else values.clear();
    return value.has_value();
  });
  return values;
}

}  // namespace

std::vector<std::string_view> GgufValue::strings() const {
  return read_all<std::string_view>(*this, [](const GgufValue& v) { return v.string(); });
}
std::vector<int64_t> GgufValue::integers() const {
  return read_all<int64_t>(*this, [](const GgufValue& v) { return v.integer(); });
}
std::vector<double> GgufValue::numbers() const {
  return read_all<double>(*this, [](const GgufValue& v) { return v.number(); });
}

namespace {

Json to_json(const GgufValue& value) {
  switch (value.type()) {
    case GgufType::f32:
    case GgufType::f64: return *value.number();
    case GgufType::boolean: return *value.boolean();
    case GgufType::string: return is_utf8(*value.string()) ? Json(*value.string()) : Json(printable(*value.string()));
    case GgufType::array: {
      Json array = Json::array();
      for (const GgufValue& element : value.elements()) array.push_back(to_json(element));
      return array;
    }
    default: {
      const auto integer = value.integer();
      return integer ? Json(*integer) : Json(*value.number());
    }
  }
}

}  // namespace

Json gguf_metadata_json(const GgufHeader& header) {
  Json json = Json::object();
  for (const auto& [key, value] : header.metadata) {
    const bool left_out =
        value.type() == GgufType::array &&
        (value.size() > max_json_elements || key.starts_with("tokenizer.") || value.element_type() == GgufType::array);
    if (left_out) continue;
    json[std::string(key)] = to_json(value);
  }
  return json;
}

}  // namespace sluice
