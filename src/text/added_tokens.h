// Tokens that are found in the text before anything else happens to it: "<|im_end|>", runs of spaces, …
// Leftmost first, longest among those that start there, as Hugging Face tokenizers does it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_range.h"

namespace sluice {

struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // found in the text that the normalizer made, not in the text as written
};

class AddedTokenMatcher {
 public:
  struct Match {
    int32_t id;  // -1: the text between tokens
    ByteRange range;
  };

  AddedTokenMatcher() = default;
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  // Cuts valid UTF-8 into tokens and what lies between them, in order. Specials are passed over unless `parse_special`.
  std::vector<Match> split(std::string_view text, bool parse_special) const;
  // Bytes of the longest token that stands at `at`, whatever its flags; 0 when none does.
  size_t length_at(std::string_view text, size_t at) const {
    if (!can_start_[static_cast<uint8_t>(text[at])]) return 0;
    const AddedToken* token = longest_at(text, at);
    return token == nullptr ? 0 : token->text.size();
  }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;  // by text
  std::array<bool, 256> can_start_{};
};

// Unicode's White_Space.
bool is_white_space(uint32_t code);

}  // namespace sluice
