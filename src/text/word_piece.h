// WordPiece (Wu et al. 2016, arXiv:1609.08144; BERT's use of it): a word is its longest beginning that is a token, then the longest
// beginning of the rest that is a token with the prefix of continuations ("##"), and so on; a word for which this fails is unknown.
// WordLevel: a word is a token or unknown.
#pragma once

#include "text/byte_trie.h"
#include "text/token_model.h"

namespace sluice {

class WordPiece final : public TokenModel {
 public:
  struct Settings {
    int32_t unknown_id;
    std::string continuing_prefix = "##";
    int64_t max_word_characters = 100;  // longer words are unknown
  };
  WordPiece(Vocabulary vocabulary, const Settings& settings);
  void encode(std::string_view word, ModelScratch& scratch, std::vector<Symbol>& out) const override;

 private:
  Settings settings_;
  ByteTrie first_, further_;
};

class WordLevel final : public TokenModel {
 public:
  WordLevel(Vocabulary vocabulary, int32_t unknown_id) : TokenModel(std::move(vocabulary), unknown_id) {}
  void encode(std::string_view word, ModelScratch& scratch, std::vector<Symbol>& out) const override;
};

}  // namespace sluice
