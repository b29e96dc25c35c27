// The inside of a Tokenizer: what the two loaders fill in and the encoder reads.
//
// A text goes through: added tokens found as written -> normalizer -> added tokens found in the normalized text -> pre-tokenizer
// -> model of each word -> prefix and suffix tokens.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"
#include "text/tokenizer.h"
#include "text/word_cache.h"

namespace sluice {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // ▁, U+2581: a space in vocabularies of pieces

// What one call of encode() works with; kept between calls, so that a thread finds a warm cache.
struct EncodeScratch {
  PreTokenizerScratch pre_tokenizer;
  ModelScratch model;
  WordCache cache;
  std::vector<ByteRange> words;
  std::vector<Symbol> symbols;  // of a word
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
  std::unique_ptr<const TokenModel> model;
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
  std::vector<std::string>
      decoded_first;                // the same for the first token of a text; empty when that makes no difference
  size_t strip_leading_spaces = 0;  // taken off the start of a decoded text

  mutable ScratchPool scratch;

  int32_t find(std::string_view text) const {
    const int32_t id = added.find(text);
    return id >= 0 ? id : model->vocabulary().find(text);
  }
  std::string_view text(int32_t id) const { return added.has(id) ? added.text(id) : model->vocabulary().text(id); }
  int32_t size() const { return std::max(added.size(), model->vocabulary().size()); }

  std::string_view bytes(int32_t id, bool first) const {
    return first && !decoded_first.empty() ? decoded_first[static_cast<size_t>(id)] : decoded[static_cast<size_t>(id)];
  }
  // How deeply a decoded text is cut at its start.
  size_t leading_spaces(std::string_view text) const {
    return std::min({text.find_first_not_of(' '), text.size(), strip_leading_spaces});
  }

  // Fills what follows from the rest: the matchers, `special`, and the stop ids after `stop_ids` as given (eos in front). The
  // texts of normalized tokens are those after the normalizer.
  void finish(std::vector<AddedToken> tokens);
};

// Tokens that stand in files beside tokenizer.json get the ids that transformers gives them: their own where the vocabulary has
// them, else the next ones. A file that gives another id is refused: its model was trained on that one.
void add_further(const std::vector<AddedToken>& further, const Vocabulary& vocabulary, std::vector<AddedToken>& added);

// Which tokens play which part, and what add_special puts around a text, where the files beside the tokenizer say so.
void apply_config(const TokenizerConfig& config, Tokenizer::Parts& parts);

}  // namespace sluice
