// Strings to token ids and back, as the model's own tokenizer does it.
//
//   Tokenizer tokenizer = Tokenizer::from_gguf(vocabulary);            // or from_tokenizer_json(text, config)
//   Encoding e = tokenizer.encode("Hello<|im_end|>", {.add_special = true});
//   e.ids[i] covers text bytes [e.offsets[i].begin, e.offsets[i].end)  // loss masks are by position, never by id
//   tokenizer.decode(e.ids) == "Hello<|im_end|>"
//
// Four sources: Hugging Face's tokenizer.json (models BPE, Unigram, WordPiece and WordLevel), SentencePiece's tokenizer.model (BPE
// and Unigram), tiktoken's files, and the metadata of a GGUF file (models "gpt2", "llama" and "gemma4"). docs/formats.md lists what
// is read. Whatever a file asks for that is not implemented is refused by name when it is loaded, never skipped.
//
// A Tokenizer is a handle to immutable data: copying is cheap, and all functions may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/byte_range.h"

namespace sluice {

// The files beside a tokenizer: which of the tokens play which part, and tokens that stand there alone. Everything is optional.
struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token, pad_token, unk_token;  // texts
  std::optional<bool> add_bos_token, add_eos_token;  // overrule the post-processor of tokenizer.json
  std::vector<int32_t> stop_ids;  // eos_token_id of config.json and generation_config.json, if the caller has them
  // In the order in which transformers adds them: added_tokens_decoder (or added_tokens.json) by id, then the tokens above and
  // sep_token, cls_token, mask_token, then the additional ones. The id is -1 where the file gives none.
  std::vector<AddedToken> tokens;
  std::optional<bool>
      legacy;  // false: SentencePiece's space in front only where a text begins, not after special tokens

  // From the texts of tokenizer_config.json, special_tokens_map.json and added_tokens.json; empty for a file that is not there.
  // As in transformers the two others count only without added_tokens_decoder. Throws Error(bad_file).
  static TokenizerConfig from_json(std::string_view tokenizer_config, std::string_view special_tokens_map = {},
                                   std::string_view added_tokens = {});
};

// The metadata keys tokenizer.ggml.* of a GGUF file. The views need to live only while from_gguf runs.
struct GgufVocabulary {
  std::string_view model;  // gpt2, llama, gemma4
  std::string_view pre;    // gpt2 only: smollm, llama-bpe, qwen2 …
  std::span<const std::string_view> tokens;
  std::span<const int32_t> types;            // token_type; empty: all normal
  std::span<const std::string_view> merges;  // "left right"; gpt2 and gemma4
  std::span<const float> scores;             // llama
  std::optional<int32_t> bos_id, eos_id, eot_id, pad_id, unk_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

struct EncodeOptions {
  // Puts the tokens of the post-processor (usually BOS) around the text. A text that already starts with them gets no second
  // ones, so a chat template that writes BOS itself is safe.
  bool add_special = false;
  // Reads the texts of special tokens ("<|im_end|>") as these tokens. False: they are ordinary text, so that what a user wrote
  // cannot end a turn. Added tokens that are not special are found either way.
  bool parse_special = true;
};

struct Encoding {
  std::vector<int32_t> ids;
  // Bytes of the text behind each token, in order. Byte-level tokenizers tile the text: each token begins where the one before
  // ended, also inside a character. Where a normalizer changed the text, all tokens of one changed stretch may have the same
  // range. Tokens that stand for no text (BOS) have an empty range.
  std::vector<ByteRange> offsets;
};

class Tokenizer {
 public:
  // Throws Error(bad_file) when the file is damaged or asks for something that is not implemented.
  static Tokenizer from_tokenizer_json(std::string_view json, const TokenizerConfig& config = {});
  static Tokenizer from_gguf(const GgufVocabulary& file);
  static Tokenizer from_sentencepiece(std::string_view model_file, const TokenizerConfig& config = {});
  // `scheme`: llama3, llama4, qwen, r50k_base, cl100k_base or o200k_base; empty: the one that has as many ranks as the file.
  static Tokenizer from_tiktoken(std::string_view file, const TokenizerConfig& config = {},
                                 std::string_view scheme = {});

  // Never fails on the content of a text: bytes that are not UTF-8 become byte tokens where the tokenizer has them (byte-level
  // and byte-fallback models have all 256), else the unknown token. Throws Error(bad_config) above 2^31 bytes.
  Encoding encode(std::string_view text, EncodeOptions options = {}) const;

  // Exactly the bytes that the tokens stand for; ids that cut a character give bytes that are not UTF-8 (StreamDecoder mends
  // them). Throws Error(bad_config) for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  std::optional<int32_t> token_id(
      std::string_view token_text) const;          // as written in the file: "Ġthe", "▁the", "<|im_end|>"
  std::string_view token_text(int32_t id) const;   // empty for an id without a token
  std::string_view token_bytes(int32_t id) const;  // what it decodes to

  int64_t vocab_size() const;  // largest id + 1; the embedding of a model may have more rows
  std::optional<int32_t> bos_id() const, eos_id() const, pad_id() const, unk_id() const;
  bool is_special(int32_t id) const;
  bool adds_bos() const;                         // whether add_special puts BOS in front
  const std::vector<int32_t>& stop_ids() const;  // eos first, then end-of-turn tokens: what ends a generation

  struct Parts;  // text/tokenizer_parts.h
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

 private:
  friend class StreamDecoder;
  std::shared_ptr<const Parts> parts_;
};

// Decodes one token at a time and gives out only whole characters: what arrives is always UTF-8. Bytes that can no longer become
// a character come out as U+FFFD.
class StreamDecoder {
 public:
  // at_start: the first token opens the text, so that the space a tokenizer puts in front of a text is taken off again; false
  // when the tokens continue a prompt.
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special = true, bool at_start = false);

  std::string push(int32_t id);  // may be empty
  std::string finish();          // what is left of an unfinished character, as U+FFFD

 private:
  Tokenizer tokenizer_;
  bool skip_special_, at_start_, is_first_;
  std::string pending_;
};

// Whether a file named tokenizer.model is one of tiktoken's.
bool is_tiktoken(std::string_view file);

// Replaces each maximal invalid part of `bytes` by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace sluice
