// The inside of a Tokenizer: what the two loaders fill in and the encoder reads.
//
// A text goes through: added tokens found as written -> normalizer -> added tokens found in the normalized text -> pre-tokenizer
// -> BPE of each word -> prefix and suffix tokens.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/word_cache.h"

namespace sluice {

// What one call of encode() works with; kept between calls, so that a thread finds a warm cache.
struct EncodeScratch {
  PreTokenizerScratch pre_tokenizer;
  Bpe::Scratch bpe;
  WordCache cache;
  std::vector<ByteRange> words;
  std::vector<Symbol> symbols;
};

class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<EncodeScratch>();
    auto scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<EncodeScratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<EncodeScratch>> free_;
};

struct Tokenizer::Parts {
  Bpe model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Vocabulary added;                     // texts of the added tokens; they go before the model's vocabulary
  AddedTokenMatcher raw_tokens;         // found in the text as written
  AddedTokenMatcher normalized_tokens;  // found after the normalizer
  std::vector<int32_t> prefix, suffix;  // what add_special puts around a text
  std::optional<int32_t> bos, eos, pad, unk;
  std::vector<bool> special;  // by id
  std::vector<int32_t> stop_ids;

  std::vector<std::string> decoded;  // by id: the bytes a token stands for
  size_t strip_leading_spaces = 0;   // taken off the start of a decoded text

  mutable ScratchPool scratch;

  int32_t find(std::string_view text) const {
    const int32_t id = added.find(text);
    return id >= 0 ? id : model.vocabulary().find(text);
  }
  std::string_view text(int32_t id) const { return added.has(id) ? added.text(id) : model.vocabulary().text(id); }
  int32_t size() const { return std::max(added.size(), model.vocabulary().size()); }

  // Fills what follows from the rest: the matchers, `special`, and the stop ids after `stop_ids` as given (eos in front).
  void finish(const std::vector<AddedToken>& raw, const std::vector<AddedToken>& normalized);
};

}  // namespace sluice
