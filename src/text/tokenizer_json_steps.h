// The parts of tokenizer.json around the model: normalizer, pre_tokenizer, post_processor. (decoder: tokenizer_json_decoder.h)
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/json_reader.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace sluice {

// Calls `visit` for the node, or for each part of a Sequence, in order. `list` is the key under which a Sequence keeps its parts.
template <class Visit>
void for_each_step(const std::optional<JsonNode>& node, std::string_view list, const Visit& visit, int depth = 0) {
  if (!node || node->is_null()) return;
  if (node->at("type").string() != "Sequence") return visit(*node);
  if (depth > 8) node->refuse("a Sequence inside " + std::to_string(depth) + " others");
  const JsonNode parts = node->at(list);
  size_t i = 0;
  for (auto part : parts.array()) {
    for_each_step(std::optional(JsonNode(part, parts.path() + "[" + std::to_string(i++) + "]")), list, visit,
                  depth + 1);
  }
}

Regex read_pattern(const JsonNode& node);                      // {"String": …} or {"Regex": …}
std::string read_mark(const JsonNode& node);                   // of a Metaspace step: what stands for a space
PreTokenizerStep::Prepend read_prepend(const JsonNode& node);  // of a Metaspace step

Normalizer read_normalizer(const std::optional<JsonNode>& node);

struct JsonPreTokenizer {
  PreTokenizer steps;
  bool byte_level = false;  // words are then encoded as bytes
};
JsonPreTokenizer read_pre_tokenizer(const std::optional<JsonNode>& node);

// An entry of added_tokens, without its id.
AddedToken read_added_token(const JsonNode& node, bool special);

struct JsonPostProcessor {
  std::vector<int32_t> prefix, suffix;
};
JsonPostProcessor read_post_processor(const std::optional<JsonNode>& node);

}  // namespace sluice
