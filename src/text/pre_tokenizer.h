// How a tokenizer cuts a text into the words that are encoded one by one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/aligned_text.h"
#include "text/regex.h"

namespace sluice {

// What becomes of the matches of a pattern, and of what lies between them. Names as in Hugging Face tokenizers.
enum class SplitBehavior { removed, isolated, contiguous, merged_with_previous, merged_with_next };

struct PreTokenizerStep {
  enum class Kind {
    split,       // at `pattern`
    metaspace,   // ' ' becomes `text` ("▁"), which is also put in front as `prepend` says
    add_prefix,  // `text` is put in front of a word that does not start with it
    before_marks  // cut between another character and `text`: a cut that changes no token (Bpe::splits_before), for speed
  };
  enum class Prepend { always, first, never };  // first: only of the word at the start of everything

  Kind kind = Kind::split;
  std::optional<Regex> pattern{};
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what does not match counts as the match
  std::string text{};
  Prepend prepend = Prepend::always;
};

using PreTokenizer = std::vector<PreTokenizerStep>;

struct PreTokenizerScratch {
  RegexScratch regex;
  std::vector<std::pair<ByteRange, bool>> matches;
  std::vector<ByteRange> before;
};

// Sets `words` to the words of `text`, none empty, in order; a step may change the text.
void pre_tokenize(const PreTokenizer& steps, AlignedText& text, PreTokenizerScratch& scratch,
                  std::vector<ByteRange>& words);

}  // namespace sluice
