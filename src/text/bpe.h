// Byte-pair encoding of one word: adjacent symbols are merged, best pair first and leftmost among equals, until no pair is known.
// (Sennrich et al. 2016, arXiv:1508.07909.) Which pairs are known comes either from a list of merges, by rank (Hugging Face, GGUF
// "gpt2"), or from the vocabulary: a pair may merge when its text is a token, highest score first (SentencePiece, GGUF "llama").
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/token_model.h"

namespace sluice {

class Bpe final : public TokenModel {
 public:
  struct Settings {
    bool bytes_as_symbols = false;  // byte-level: words are raw bytes, the vocabulary is written in GPT-2's alphabet
    bool byte_fallback = false;     // characters without a token become <0x00> … <0xFF>
    bool ignore_merges = false;     // a word that is a token stays whole
    bool fuse_unknown = false;      // a run of unknown characters is one unknown token
    std::optional<int32_t> unknown_id;  // none: unknown characters vanish
  };

  // Throws Error(bad_file) when byte fallback is asked for and a byte has no token.
  Bpe(Vocabulary vocabulary, const Settings& settings);

  void reserve_merges(size_t count);
  // The next rank is given to (left, right). A pair given twice keeps its first rank, or takes the last one when `last_wins`.
  // Throws Error(bad_file) when left, right or their union is not in the vocabulary.
  void add_merge(std::string_view left, std::string_view right, bool last_wins);
  // Switches to merging by score. One score for each id; a token with the score never_merge is not made by merging.
  static constexpr float never_merge = -std::numeric_limits<float>::infinity();
  void merge_by_score(std::span<const float> scores);
  // The next rank is given to the two tokens that token `id` is made of by the merges so far, if it is two. (tiktoken's files
  // list tokens, not merges: a token is reached only by the merges before it.) For byte-level models.
  void add_merge_into(int32_t id);

  void encode(std::string_view word, ModelScratch& scratch, std::vector<Symbol>& out) const override;

  const Settings& settings() const { return settings_; }
  // Whether no merge joins a character other than `mark` with a `mark` after it: then a text may be cut there, and its parts
  // encoded one by one give the same tokens.
  bool splits_before(std::string_view mark) const;

 private:
  struct Merge {
    uint64_t pair;  // left id << 32 | right id; ~0 is a free slot
    uint32_t rank;
    int32_t merged_id;
  };
  struct Found {
    uint32_t rank;  // UINT32_MAX: not known
    int32_t merged_id;
  };
  Found find_merge(int32_t left, int32_t right) const;
  Found find_pair(std::string_view word, int32_t left, uint32_t begin, int32_t right, uint32_t end) const;
  void initial_symbols(std::string_view word, std::vector<Symbol>& symbols) const;
  void merge_all(std::string_view word, ModelScratch& scratch) const;
  void merge_short(std::string_view word, std::vector<Symbol>& symbols) const;
  void merge_long(std::string_view word, ModelScratch& scratch) const;
  void push_candidate(std::string_view word, ModelScratch& scratch, int32_t left) const;
  size_t merge_slot(uint64_t pair) const;
  void grow_merges();

  Settings settings_;
  std::vector<Merge> merges_;  // hash table, a power of two, at most half full
  size_t num_merges_ = 0;
  uint32_t next_rank_ = 0;
  std::vector<uint32_t> score_rank_;  // by id; empty when merging by rank
  size_t longest_token_ = 0;
};

}  // namespace sluice
