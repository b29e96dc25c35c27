// The table of replacements of a SentencePiece model (precompiled_charsmap): a double-array trie of darts-clone
// (github.com/s-yata/darts-clone) whose values point into a block of texts that end in 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class Charsmap {
 public:
  // Throws Error(bad_file) when the sizes do not fit.
  explicit Charsmap(std::string_view precompiled);

  struct Match {
    size_t length;  // bytes of the text that are replaced
    std::string_view by;
  };
  // The longest or the shortest key that `text` begins with. Throws Error(bad_file) for a value outside the block.
  std::optional<Match> longest(std::string_view text) const { return find(text, false); }
  std::optional<Match> shortest(std::string_view text) const { return find(text, true); }

 private:
  std::optional<Match> find(std::string_view text, bool first) const;

  std::vector<uint32_t> units_;
  std::string texts_;
};

}  // namespace sluice
