// Typed reads from config.json or GGUF metadata that name the file and the key when something is off.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.h"

namespace sluice {

class ConfigReader {
 public:
  // Keys are looked up as prefix + key. `where` names the file in messages.
  ConfigReader(Json object, std::string where, std::string prefix = "")
      : object_(std::move(object)), where_(std::move(where)), prefix_(std::move(prefix)) {}

  const std::string& where() const { return where_; }
  bool has(const std::string& key) const;         // present and not null
  bool is_null(const std::string& key) const;     // present and null
  int64_t integer(const std::string& key) const;  // > 0; throws Error(bad_config) when missing
  int64_t integer_or(const std::string& key, int64_t otherwise) const;
  double number_or(const std::string& key, double otherwise) const;    // finite
  double positive_or(const std::string& key, double otherwise) const;  // > 0
  // As number_or, at least `low` and at most `high`; for what is kept in float32.
  float number_in(const std::string& key, double otherwise, double low, double high) const;
  // What rms norms add: above 0, else rows of zeros give NaN.
  float epsilon(const std::string& key) const { return number_in(key, 1e-6, 1e-20, 1); }
  // A count of layers that `tensors`, the names in the file, can hold: each layer has several.
  int64_t num_layers(const std::string& key, size_t tensors) const;
  bool boolean_or(const std::string& key, bool otherwise) const;
  std::string string_or(const std::string& key, const std::string& otherwise) const;
  Json object_or(const std::string& key, const Json& otherwise) const;
  Json array_or(const std::string& key, const Json& otherwise) const;
  Json any_or(const std::string& key, const Json& otherwise) const;
  std::string string_or_any(const std::string& key,
                            const std::string& otherwise) const;  // other types count as missing
  std::vector<int64_t> integers(const std::string& key) const;    // an integer, a list, or nothing

  void refuse_if_present(const std::string& key, const std::string& why) const;
  void refuse_if_true(const std::string& key, const std::string& why) const;
  void refuse_if_positive(const std::string& key, const std::string& why) const;

 private:
  const Json* find(const std::string& key) const;
  [[noreturn]] void wrong(const std::string& key, const char* needed) const;

  Json object_;
  std::string where_, prefix_;
};

}  // namespace sluice
