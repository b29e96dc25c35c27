// The parts of tokenizer.json around the model: normalizer, pre_tokenizer, decoder, post_processor.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/json_reader.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace sluice {

Normalizer read_normalizer(const std::optional<JsonNode>& node);

struct JsonPreTokenizer {
  PreTokenizer steps;
  bool byte_level = false;  // words are then encoded as bytes
};
JsonPreTokenizer read_pre_tokenizer(const std::optional<JsonNode>& node);

// How a token's text becomes bytes, and what is taken off the start of a text.
struct JsonDecoder {
  bool byte_level = false;
  bool byte_fallback = false;
  std::vector<std::pair<std::string, std::string>> replacements;
  size_t strip_leading_spaces = 0;

  std::string decode(std::string_view token, bool is_added) const;
};
JsonDecoder read_decoder(const std::optional<JsonNode>& node);

struct JsonPostProcessor {
  std::vector<int32_t> prefix, suffix;
};
JsonPostProcessor read_post_processor(const std::optional<JsonNode>& node);

}  // namespace sluice
