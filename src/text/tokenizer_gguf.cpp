#include <algorithm>

#include "core/error.h"
#include "text/bpe.h"
#include "text/byte_level.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace sluice {
namespace {

// tokenizer.ggml.token_type
enum TokenType : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

TokenType type_of(const GgufVocabulary& file, size_t id) {
  return file.types.empty() ? normal : static_cast<TokenType>(file.types[id]);
}

bool is_added(TokenType type) { return type == unknown || type == control || type == user_defined; }

void check_lengths(const GgufVocabulary& file) {
  check(!file.tokens.empty(), ErrorCode::bad_file, "tokenizer.ggml.tokens is empty; the file has no tokenizer");
  check(file.types.empty() || file.types.size() == file.tokens.size(), ErrorCode::bad_file,
        "tokenizer.ggml.token_type has " + std::to_string(file.types.size()) + " entries, needed " +
            std::to_string(file.tokens.size()) + " as tokenizer.ggml.tokens; the file is damaged");
}

// Control tokens are never the outcome of merging ordinary text.
Vocabulary read_vocabulary(const GgufVocabulary& file) {
  Vocabulary vocabulary;
  size_t num_bytes = 0;
  for (std::string_view token : file.tokens) num_bytes += token.size();
  vocabulary.reserve(file.tokens.size(), num_bytes);
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const TokenType type = type_of(file, id);
    vocabulary.add(static_cast<int32_t>(id), file.tokens[id], type != control && type != unknown);
  }
  return vocabulary;
}

void add_merges(Bpe& model, std::span<const std::string_view> merges) {
  model.reserve_merges(merges.size());
  for (std::string_view merge : merges) {
    const size_t space = merge.find(' ', 1);
    check(space != std::string_view::npos, ErrorCode::bad_file,
          "tokenizer.ggml.merges: found \"" + std::string(merge) +
              "\", needed two tokens with a space between; the file is damaged");
    model.add_merge(merge.substr(0, space), merge.substr(space + 1), false);
  }
}

void read_gpt2(const GgufVocabulary& file, Tokenizer::Parts& parts) {
  const GgufPreTokenizer& pre = gguf_pre_tokenizer(file.pre);
  check(!file.merges.empty(), ErrorCode::bad_file, "tokenizer.ggml.merges is missing; a gpt2 tokenizer needs it");
  auto model = std::make_unique<Bpe>(
      read_vocabulary(file),
      Bpe::Settings{.bytes_as_symbols = true, .ignore_merges = pre.ignore_merges, .unknown_id = parts.unk});
  add_merges(*model, file.merges);
  parts.model = std::move(model);
  for (const std::string& pattern : pre.patterns) parts.pre_tokenizer.push_back({.pattern = Regex(pattern)});
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const auto bytes = is_added(type_of(file, id)) ? std::nullopt : byte_level_decode(file.tokens[id]);
    parts.decoded.push_back(bytes.value_or(std::string(file.tokens[id])));
  }
  if (file.add_bos.value_or(pre.add_bos) && parts.bos) parts.prefix = {*parts.bos};
}

bool has_byte_tokens(const GgufVocabulary& file) {
  return std::find(file.tokens.begin(), file.tokens.end(), "<0x00>") != file.tokens.end();
}

// What the tokens of SentencePiece-like vocabularies stand for: ▁ is a space, <0x41> a byte.
void decode_pieces(const GgufVocabulary& file, Tokenizer::Parts& parts) {
  const bool has_bytes = has_byte_tokens(file);
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    std::string text(file.tokens[id]);
    const TokenType type = type_of(file, id);
    const auto value = type == byte || (type == normal && has_bytes) ? byte_of_token_text(text) : std::nullopt;
    if (value) {
      text.assign(1, static_cast<char>(*value));
    } else if (!is_added(type)) {
      for (size_t at = text.find(space_mark); at != std::string::npos; at = text.find(space_mark, at + 1)) {
        text.replace(at, space_mark.size(), " ");
      }
    }
    parts.decoded.push_back(std::move(text));
  }
}

NormalizerStep spaces_to_marks() {
  return {.kind = NormalizerStep::Kind::replace, .pattern = Regex::literal(" "), .text = std::string(space_mark)};
}

std::unique_ptr<Bpe> pieces_of(const GgufVocabulary& file, const Tokenizer::Parts& parts) {
  return std::make_unique<Bpe>(read_vocabulary(file),
                               Bpe::Settings{.byte_fallback = has_byte_tokens(file), .unknown_id = parts.unk});
}

void take_pieces(std::unique_ptr<const Bpe> model, Tokenizer::Parts& parts) {
  if (model->splits_before(space_mark))
    parts.pre_tokenizer.push_back({.kind = PreTokenizerStep::Kind::before_marks, .text = std::string(space_mark)});
  parts.model = std::move(model);
}

// SentencePiece BPE: the whole text between added tokens is one word; a space is put in front of it. Pieces of type byte come
// from the fall-back only, never from merging the characters "<0x41>".
void read_llama(const GgufVocabulary& file, Tokenizer::Parts& parts) {
  check(!file.scores.empty(), ErrorCode::bad_file, "tokenizer.ggml.scores is missing; a llama tokenizer needs it");
  check(file.scores.size() >= file.tokens.size(), ErrorCode::bad_file,
        "tokenizer.ggml.scores has " + std::to_string(file.scores.size()) + " entries, needed " +
            std::to_string(file.tokens.size()) + " as tokenizer.ggml.tokens; the file is damaged");
  std::vector<float> scores(file.scores.begin(), file.scores.end());
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    if (type_of(file, id) == byte) scores[id] = Bpe::never_merge;
  }
  auto model = pieces_of(file, parts);
  model->merge_by_score(scores);
  take_pieces(std::move(model), parts);
  if (file.add_space_prefix.value_or(true)) {
    parts.normalizer.push_back({.kind = NormalizerStep::Kind::prepend, .text = std::string(space_mark)});
    parts.strip_leading_spaces = 1;
  }
  parts.normalizer.push_back(spaces_to_marks());
  decode_pieces(file, parts);
  if (file.add_bos.value_or(true) && parts.bos) parts.prefix = {*parts.bos};
}

// Gemma 4: SentencePiece's pieces, merged by a list of merges; no space in front.
void read_gemma4(const GgufVocabulary& file, Tokenizer::Parts& parts) {
  check(!file.merges.empty(), ErrorCode::bad_file, "tokenizer.ggml.merges is missing; a gemma4 tokenizer needs it");
  auto model = pieces_of(file, parts);
  add_merges(*model, file.merges);
  take_pieces(std::move(model), parts);
  parts.normalizer.push_back(spaces_to_marks());
  decode_pieces(file, parts);
  if (parts.bos) parts.prefix = {*parts.bos};  // whatever add_bos_token says: early files have it wrong
}

// SentencePiece's own ids stand in for what a llama file does not say, as in llama.cpp.
void read_special_ids(const GgufVocabulary& file, Tokenizer::Parts& parts) {
  const bool is_llama = file.model == "llama";
  const auto checked = [&](std::optional<int32_t> id, std::optional<int32_t> otherwise) {
    if (!id && is_llama) id = otherwise;
    return id && *id >= 0 && static_cast<size_t>(*id) < file.tokens.size() ? id : std::nullopt;
  };
  parts.bos = checked(file.bos_id, 1), parts.eos = checked(file.eos_id, 2), parts.unk = checked(file.unk_id, 0);
  parts.pad = checked(file.pad_id, std::nullopt);
}

}  // namespace

Tokenizer Tokenizer::from_gguf(const GgufVocabulary& file) {
  check_lengths(file);
  auto parts = std::make_shared<Parts>();
  read_special_ids(file, *parts);
  if (file.model == "gpt2") {
    read_gpt2(file, *parts);
  } else if (file.model == "llama") {
    read_llama(file, *parts);
  } else if (file.model == "gemma4") {
    read_gemma4(file, *parts);
  } else {
    throw Error(ErrorCode::bad_file, "tokenizer.ggml.model: found \"" + std::string(file.model) +
                                         "\", needed gpt2, llama or gemma4; use the model's tokenizer.json instead");
  }
  if (file.eot_id) parts->stop_ids = {*file.eot_id};
  if (file.add_eos.value_or(false) && parts->eos) parts->suffix = {*parts->eos};
  std::vector<AddedToken> added;
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const TokenType type = type_of(file, id);
    if (!is_added(type)) continue;
    check(utf8_valid_end(file.tokens[id], 0) == file.tokens[id].size(), ErrorCode::bad_file,
          "tokenizer.ggml.tokens: special token " + std::to_string(id) + " is not UTF-8; the file is damaged");
    added.push_back(
        {.id = static_cast<int32_t>(id), .text = std::string(file.tokens[id]), .special = type != user_defined});
    parts->added.add(static_cast<int32_t>(id), file.tokens[id]);
  }
  parts->finish(std::move(added));
  return Tokenizer(std::move(parts));
}

}  // namespace sluice
