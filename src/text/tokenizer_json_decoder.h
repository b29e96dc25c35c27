// The decoder of tokenizer.json: how a token's text becomes bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/json_reader.h"
#include "text/normalizer.h"

namespace sluice {

struct JsonDecoder {
  struct Step {
    enum class Kind {
      byte_level,     // GPT-2's alphabet to bytes
      byte_fallback,  // <0x41> to a byte
      replace,        // `what`, or where there is a pattern what it matches, by `text`
      strip,          // up to `start` and `stop` times `text` at the ends
      metaspace,      // `text` to a space, or to nothing in the first token, with `first`
      word_piece,     // takes off `text`, or puts a space in front; `clean` mends spaces before punctuation
      separate        // a space between tokens: what no decoder at all does
    };
    Kind kind;
    std::optional<Regex> pattern{};
    std::string text{}, what{};
    int64_t start = 0, stop = 0;
    bool first = false, clean = false;
  };
  std::vector<Step> steps;
  size_t strip_leading_spaces = 0;  // of the whole text

  // `first`: the token opens the decoded text. Throws Error(bad_file) for a token that becomes longer than 1 MiB.
  std::string decode(std::string_view token, bool is_added, bool first, RegexScratch& scratch) const;
  bool knows_the_first() const;  // whether the first token may decode otherwise than a later one
};
JsonDecoder read_decoder(const std::optional<JsonNode>& node);

}  // namespace sluice
