#include "model/config_reader.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"

namespace sluice {

const Json* ConfigReader::find(const std::string& key) const {
  const auto it = object_.find(prefix_ + key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void ConfigReader::wrong(const std::string& key, const char* needed) const {
  const Json* value = find(key);
  throw Error(ErrorCode::bad_config, fmt::format("{}: '{}{}' is {}, needed {}", where_, prefix_, key,
                                                 value == nullptr ? "missing" : value->dump().substr(0, 60), needed));
}

bool ConfigReader::has(const std::string& key) const { return find(key) != nullptr; }

bool ConfigReader::is_null(const std::string& key) const {
  const auto it = object_.find(prefix_ + key);
  return it != object_.end() && it->is_null();
}

int64_t ConfigReader::integer(const std::string& key) const {
  const int64_t value = integer_or(key, 0);
  // Sizes beyond 2^31 are no model's, and would overflow products of sizes.
  if (value <= 0 || value > (int64_t{1} << 31)) wrong(key, "an integer above 0");
  return value;
}

int64_t ConfigReader::integer_or(const std::string& key, int64_t otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number_integer()) wrong(key, "an integer");
  return value->get<int64_t>();
}

double ConfigReader::number_or(const std::string& key, double otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_number() || !std::isfinite(value->get<double>())) wrong(key, "a finite number");
  return value->get<double>();
}

float ConfigReader::number_in(const std::string& key, double otherwise, double low, double high) const {
  const double value = number_or(key, otherwise);
  if (value < low || value > high) wrong(key, fmt::format("{} to {}", low, high).c_str());
  return static_cast<float>(value);
}

int64_t ConfigReader::num_layers(const std::string& key, size_t tensors) const {
  const int64_t layers = integer(key);
  check(layers <= static_cast<int64_t>(tensors), ErrorCode::bad_config,
        fmt::format("{}: '{}{}' is {} and the file holds {} tensors, of which each layer has several; is it the config "
                    "of another model?",
                    where_, prefix_, key, layers, tensors));
  return layers;
}

double ConfigReader::positive_or(const std::string& key, double otherwise) const {
  const double value = number_or(key, otherwise);
  if (value <= 0) wrong(key, "a number above 0");
  return value;
}

bool ConfigReader::boolean_or(const std::string& key, bool otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) wrong(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::string_or(const std::string& key, const std::string& otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_string()) wrong(key, "a string");
  return value->get<std::string>();
}

Json ConfigReader::object_or(const std::string& key, const Json& otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_object()) wrong(key, "an object");
  return *value;
}

Json ConfigReader::array_or(const std::string& key, const Json& otherwise) const {
  const Json* value = find(key);
  if (value == nullptr) return otherwise;
  if (!value->is_array()) wrong(key, "a list");
  return *value;
}

Json ConfigReader::any_or(const std::string& key, const Json& otherwise) const {
  const Json* value = find(key);
  return value == nullptr ? otherwise : *value;
}

std::string ConfigReader::string_or_any(const std::string& key, const std::string& otherwise) const {
  const Json* value = find(key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : otherwise;
}

std::vector<int64_t> ConfigReader::integers(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_number_integer()) return {value->get<int64_t>()};
  if (!value->is_array()) wrong(key, "an integer or a list of integers");
  std::vector<int64_t> numbers;
  for (const Json& item : *value) {
    if (!item.is_number_integer()) wrong(key, "an integer or a list of integers");
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

void ConfigReader::refuse_if_present(const std::string& key, const std::string& why) const {
  check(!has(key), ErrorCode::bad_config, fmt::format("{}: '{}{}' is set; {}", where_, prefix_, key, why));
}

void ConfigReader::refuse_if_true(const std::string& key, const std::string& why) const {
  check(!boolean_or(key, false), ErrorCode::bad_config,
        fmt::format("{}: '{}{}' is true; {}", where_, prefix_, key, why));
}

void ConfigReader::refuse_if_positive(const std::string& key, const std::string& why) const {
  check(integer_or(key, 0) <= 0, ErrorCode::bad_config,
        fmt::format("{}: '{}{}' is set; {}", where_, prefix_, key, why));
}

}  // namespace sluice
