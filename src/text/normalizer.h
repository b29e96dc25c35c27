// What a tokenizer does to a text before it is cut into words, with the origin of every byte kept.
#pragma once

#include <string>
#include <vector>

#include "text/aligned_text.h"
#include "text/regex.h"

namespace sluice {

struct NormalizerStep {
  enum class Kind { nfc, nfd, nfkc, nfkd, replace, prepend };
  Kind kind;
  std::optional<Regex> pattern{};  // replace: what
  std::string text{};              // replace: by what; prepend: what is put in front, unless the text is empty
};

// An empty list changes nothing and costs nothing.
using Normalizer = std::vector<NormalizerStep>;

AlignedText normalize(const Normalizer& normalizer, AlignedText text, RegexScratch& scratch);
// Of a text whose offsets do not matter.
std::string normalize(const Normalizer& normalizer, std::string_view text);

}  // namespace sluice
