// What a tokenizer does to a text before it is cut into words, with the origin of every byte kept.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/aligned_text.h"
#include "text/charsmap.h"
#include "text/regex.h"

namespace sluice {

// How SentencePiece prepares a text (normalizer_spec of its model file).
struct SentencePieceRules {
  enum class Prefix {
    never,
    each,
    first
  };  // each: of every text between special tokens; first: of what opens the whole text
  std::optional<Charsmap> charsmap;
  Prefix dummy_prefix = Prefix::each;  // a space in front
  bool remove_extra_spaces = true;     // at both ends, and runs of them
  bool escape_spaces = true;           // a space is written ▁
  AddedTokenMatcher user_defined;      // stay as they are
};

struct NormalizerStep {
  enum class Kind {
    nfc,
    nfd,
    nfkc,
    nfkd,
    replace,           // `pattern` by `text`
    prepend,           // `text`, unless there is none
    lowercase,         // every character by itself
    strip,             // white space at the ends
    strip_accents,     // drops marks
    strip_nonspacing,  // drops marks that take no room
    clean,             // BERT: drops control characters, white space becomes a space
    space_han,         // BERT: a space on both sides of Chinese characters
    nmt,               // control characters, and odd spaces to spaces, as in SentencePiece's "nmt"
    precompiled,   // `rules`->charsmap, as Hugging Face tokenizers applies it: to grapheme clusters, else to characters
    byte_level,    // every byte as a character of GPT-2's alphabet
    sentencepiece  // `rules`
  };
  Kind kind;
  std::optional<Regex> pattern{};
  std::string text{};
  bool left = true, right = true;  // strip
  bool unicode_9 = true;           // nfc … nfkd: later characters stay as they are, as in Hugging Face tokenizers
  std::shared_ptr<const SentencePieceRules> rules{};
};

// An empty list changes nothing and costs nothing.
using Normalizer = std::vector<NormalizerStep>;

// Throws Error(bad_file) when the steps of a damaged file make a text more than 64 times longer.
AlignedText normalize(const Normalizer& normalizer, AlignedText text, RegexScratch& scratch);
// Of a text whose offsets do not matter.
std::string normalize(const Normalizer& normalizer, std::string_view text);

// One kind each, in files of their own.
AlignedText to_unicode_form(const AlignedText& text, const NormalizerStep& step);
AlignedText change_characters(AlignedText text, NormalizerStep::Kind kind);  // lowercase … byte_level
AlignedText apply_charsmap(const AlignedText& text, const Charsmap& charsmap);
AlignedText apply_sentencepiece(const AlignedText& text, const SentencePieceRules& rules);

}  // namespace sluice
