#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/tokenizer_parts.h"

namespace sluice {
namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // ▁, U+2581

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

// Control tokens are never the outcome of merging ordinary text; byte tokens of SentencePiece are not, either.
Vocabulary read_vocabulary(const GgufVocabulary& file, bool bytes_can_merge) {
  Vocabulary vocabulary;
  size_t num_bytes = 0;
  for (std::string_view token : file.tokens) num_bytes += token.size();
  vocabulary.reserve(file.tokens.size(), num_bytes);
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const TokenType type = type_of(file, id);
    const bool can_merge = type != control && type != unknown && (bytes_can_merge || type != byte);
    vocabulary.add(static_cast<int32_t>(id), file.tokens[id], can_merge);
  }
  return vocabulary;
}

void add_merges(Bpe& model, std::span<const std::string_view> merges) {
  model.reserve_merges(merges.size());
  for (std::string_view merge : merges) {
    const size_t space = merge.find(' ', 1);
    check(space != std::string_view::npos, ErrorCode::bad_file,
          "tokenizer.ggml.merges: found \"" + std::string(merge) + "\", needed two tokens with a space between; the file is damaged");
    model.add_merge(merge.substr(0, space), merge.substr(space + 1), false);
  }
}

void read_gpt2(const GgufVocabulary& file, Tokenizer::Parts& parts) {
  const GgufPreTokenizer& pre = gguf_pre_tokenizer(file.pre);
  check(!file.merges.empty(), ErrorCode::bad_file, "tokenizer.ggml.merges is missing; a gpt2 tokenizer needs it");
  parts.model = Bpe(read_vocabulary(file, true), {.bytes_as_symbols = true, .ignore_merges = pre.ignore_merges,
                                                  .unknown_id = file.unk_id});
  add_merges(parts.model, file.merges);
  for (const std::string& pattern : pre.patterns) parts.pre_tokenizer.push_back({.pattern = Regex(pattern)});
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const auto bytes = is_added(type_of(file, id)) ? std::nullopt : byte_level_decode(file.tokens[id]);
    parts.decoded.push_back(bytes.value_or(std::string(file.tokens[id])));
  }
  if (file.add_bos.value_or(pre.add_bos) && file.bos_id) parts.prefix = {*file.bos_id};
}

}  // namespace

Tokenizer Tokenizer::from_gguf(const GgufVocabulary& file) {
  check_lengths(file);
  auto parts = std::make_shared<Parts>();
  if (file.model == "gpt2") {
    read_gpt2(file, *parts);
  } else {
    throw Error(ErrorCode::bad_file, "tokenizer.ggml.model: found \"" + std::string(file.model) +
                                         "\", needed gpt2; use the model's tokenizer.json instead");
  }
  const auto in_range = [&](std::optional<int32_t> id) { return id && *id >= 0 && *id < parts->size() ? id : std::nullopt; };
  parts->bos = in_range(file.bos_id), parts->eos = in_range(file.eos_id);
  parts->pad = in_range(file.pad_id), parts->unk = in_range(file.unk_id);
  if (file.eot_id) parts->stop_ids = {*file.eot_id};
  if (file.add_eos.value_or(false) && parts->eos) parts->suffix = {*parts->eos};
  std::vector<AddedToken> added;
  for (size_t id = 0; id < file.tokens.size(); ++id) {
    const TokenType type = type_of(file, id);
    if (!is_added(type)) continue;
    added.push_back({.id = static_cast<int32_t>(id), .text = std::string(file.tokens[id]), .special = type != user_defined});
    parts->added.add(static_cast<int32_t>(id), file.tokens[id]);
  }
  parts->finish(added, {});
  return Tokenizer(std::move(parts));
}

}  // namespace sluice
