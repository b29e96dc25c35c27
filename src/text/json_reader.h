// Reading tokenizer.json: values with the path they were found at, so that a message can say where.
#pragma once

#include <simdjson.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"

namespace sluice {

class JsonNode {
 public:
  JsonNode(simdjson::dom::element element, std::string path) : element_(element), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_null() const { return element_.is_null(); }
  bool is_object() const { return element_.is_object(); }
  bool is_array() const { return element_.is_array(); }
  bool is_string() const { return element_.is_string(); }
  simdjson::dom::element raw() const { return element_; }

  // Missing keys and null are the same: nothing.
  std::optional<JsonNode> find(std::string_view key) const {
    simdjson::dom::element value;
    if (!element_.is_object() || element_[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
    return JsonNode(value, path_ + "." + std::string(key));
  }
  JsonNode at(std::string_view key) const {
    auto node = find(key);
    if (!node) fail("no " + std::string(key), "one");
    return *node;
  }

  std::string_view string() const {
    std::string_view value;
    if (element_.get(value) != simdjson::SUCCESS) fail(kind(), "a string");
    return value;
  }
  bool boolean() const {
    bool value = false;
    if (element_.get(value) != simdjson::SUCCESS) fail(kind(), "true or false");
    return value;
  }
  int64_t integer() const {
    int64_t value = 0;
    if (element_.get(value) != simdjson::SUCCESS) fail(kind(), "a whole number");
    return value;
  }
  simdjson::dom::object object() const {
    simdjson::dom::object value;
    if (element_.get(value) != simdjson::SUCCESS) fail(kind(), "an object");
    return value;
  }
  simdjson::dom::array array() const {
    simdjson::dom::array value;
    if (element_.get(value) != simdjson::SUCCESS) fail(kind(), "a list");
    return value;
  }

  std::string_view string_or(std::string_view key, std::string_view fallback) const {
    const auto node = find(key);
    return node ? node->string() : fallback;
  }
  bool boolean_or(std::string_view key, bool fallback) const {
    const auto node = find(key);
    return node ? node->boolean() : fallback;
  }

  // Runs `action` and adds where this value is to the message of an Error that does not say so.
  template <class Action>
  auto locate(const Action& action) const {
    try {
      return action();
    } catch (Error& error) {
      if (!std::string_view(error.what()).starts_with(path_.substr(0, path_.find('.')))) error.while_doing(path_);
      throw;
    }
  }

  [[noreturn]] void fail(const std::string& found, const std::string& needed) const {
    throw Error(ErrorCode::bad_file, path_ + ": found " + found + ", needed " + needed);
  }
  // For what is understood but not implemented.
  [[noreturn]] void refuse(const std::string& construct) const {
    throw Error(ErrorCode::bad_file,
                path_ + ": found " + construct + ", which is not supported; docs/formats.md lists what is");
  }

 private:
  std::string kind() const {
    switch (element_.type()) {
      case simdjson::dom::element_type::ARRAY: return "a list";
      case simdjson::dom::element_type::OBJECT: return "an object";
      case simdjson::dom::element_type::STRING: return "a string";
      case simdjson::dom::element_type::BOOL: return "true or false";
      case simdjson::dom::element_type::NULL_VALUE: return "null";
      default: return "a number";
    }
  }

  simdjson::dom::element element_;
  std::string path_;
};

// The root of `json`, whose path is the file's name. It lives as long as the parser.
inline JsonNode parse_json(simdjson::dom::parser& parser, std::string_view json, const char* name) {
  simdjson::dom::element root;
  const auto error = parser.parse(json.data(), json.size()).get(root);
  check(error == simdjson::SUCCESS, ErrorCode::bad_file,
        std::string(name) + " is not JSON (" + simdjson::error_message(error) + "); download it again");
  return {root, name};
}

}  // namespace sluice
