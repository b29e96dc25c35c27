// What turns one word into tokens: BPE, Unigram, WordPiece or WordLevel.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/vocabulary.h"

namespace sluice {

struct Symbol {
  int32_t id;    // -1: no token
  uint32_t end;  // where it ends in its word
};

// Scratch of one thread.
struct ModelScratch {
  struct Node {  // BPE: a symbol in a list of symbols
    int32_t id, previous, next;
    uint32_t begin, end;
  };
  struct Candidate {      // BPE: two neighbours that may merge
    uint32_t rank, left;  // left: index of the node
    int32_t left_id, right_id, merged_id;
    uint32_t right_end;
  };
  struct Path {  // Unigram: the best way to reach a byte of the word
    double score;
    int32_t id;
    int32_t begin;  // of the last piece; -1 when the byte is not reached
  };
  std::vector<Symbol> symbols;
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
  std::vector<Path> paths;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Appends the tokens of `word`, valid UTF-8 and not empty, to `out`; `end` counts from the start of the word. Characters that
  // become no token have left `out`.
  virtual void encode(std::string_view word, ModelScratch& scratch, std::vector<Symbol>& out) const = 0;

  // One byte that is not part of a character: its own token, or the unknown one.
  void encode_invalid_byte(uint8_t byte, std::vector<Symbol>& out) const {
    if (byte_tokens_[byte] >= 0) out.push_back({byte_tokens_[byte], 1});
    else if (unknown_id_) out.push_back({*unknown_id_, 1});
  }

  const Vocabulary& vocabulary() const { return vocabulary_; }
  std::optional<int32_t> unknown_id() const { return unknown_id_; }
  int32_t byte_token(uint8_t byte) const { return byte_tokens_[byte]; }  // -1 when there is none

 protected:
  TokenModel(Vocabulary vocabulary, std::optional<int32_t> unknown_id)
      : vocabulary_(std::move(vocabulary)), unknown_id_(unknown_id) {
    byte_tokens_.fill(-1);
  }

  Vocabulary vocabulary_;
  std::optional<int32_t> unknown_id_;  // none: unknown characters vanish
  std::array<int32_t, 256> byte_tokens_{};
};

// "<0x41>": how vocabularies of pieces write a byte.
std::string byte_token_text(uint8_t byte);
std::optional<uint8_t> byte_of_token_text(std::string_view text);

}  // namespace sluice
