// Unigram language model (Kudo 2018, arXiv:1804.10959): the pieces of a word are those whose scores (logarithms of
// probabilities) have the largest sum, found by Viterbi's algorithm from left to right. Of equal sums the one found first counts.
#pragma once

#include <span>

#include "text/byte_trie.h"
#include "text/token_model.h"

namespace sluice {

class Unigram final : public TokenModel {
 public:
  struct Piece {
    int32_t id;
    double score;
  };
  struct Settings {
    int32_t unknown_id;
    double unknown_score;        // of a character that no piece covers
    bool byte_fallback = false;  // such characters become <0x00> … <0xFF>
    // Sums are float32, as in SentencePiece; Hugging Face tokenizers adds in float64.
    bool single_precision = false;
    // A run of unknown characters whose text is a token is that token, as in Hugging Face tokenizers.
    bool find_unknown_runs = false;
  };

  // `pieces`: the tokens of the vocabulary that can be found in a text. Throws Error(bad_file) for scores that are not finite, pieces
  // of more than 1,024 bytes, and a byte that has no token where byte fallback is asked for.
  Unigram(Vocabulary vocabulary, std::span<const Piece> pieces, const Settings& settings);

  void encode(std::string_view word, ModelScratch& scratch, std::vector<Symbol>& out) const override;

  static constexpr double unknown_penalty = 10;  // SentencePiece's kUnkPenalty: below the least score of a piece

 private:
  void find_paths(std::string_view word, std::vector<ModelScratch::Path>& paths) const;
  void put_unknown(std::string_view word, uint32_t begin, uint32_t end, std::vector<Symbol>& out) const;

  Settings settings_;
  ByteTrie trie_;
  std::vector<double> scores_;  // by id
};

}  // namespace sluice
