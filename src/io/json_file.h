// JSON files such as config.json: read whole, small, keys in file order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"

namespace sluice {

// Throws Error(bad_file) naming the file and the line and column when the file is missing, is not JSON or not UTF-8, holds
// more than 16 MiB, nests deeper than 64, or has an object with a key twice or with more than 20,000 keys (ordered objects are
// searched linearly; a vocabulary is read by text/ in its own way).
Json read_json_file(const std::string& path);
Json parse_json(std::string_view text, std::string_view name);  // the same for text in memory

// A line of a data file, or another text that comes from outside: Json::parse with its exceptions, and Error(bad_file) for what nests deeper
// than 64, which copying, writing and freeing it could not bear.
Json parse_json_line(std::string_view text);

// Nothing when the file does not exist; throws as above otherwise.
std::optional<Json> read_json_file_if_present(const std::string& path);

}  // namespace sluice
