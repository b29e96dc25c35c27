// tokenizer.model of SentencePiece: unigram_model.cc, bpe_model.cc and normalizer.cc say what it does.
#include <algorithm>
#include <limits>

#include "core/error.h"
#include "text/bpe.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer_parts.h"
#include "text/unigram.h"
#include "text/utf8.h"

namespace sluice {
namespace {

using Type = SentencePieceModel::Type;
using Algorithm = SentencePieceModel::Algorithm;

[[noreturn]] void refuse(const std::string& construct) {
  throw Error(ErrorCode::bad_file,
              "SentencePiece model: found " + construct + ", which is not supported; docs/formats.md lists what is");
}

void check_kinds(const SentencePieceModel& file) {
  if (file.algorithm == Algorithm::word) refuse("the model type WORD");
  if (file.algorithm == Algorithm::character) refuse("the model type CHAR");
  if (file.space_as_suffix) refuse("treat_whitespace_as_suffix");
  if (!file.denormalizer_charsmap.empty()) refuse("a denormalizer_spec with rules");
  for (const auto& piece : file.pieces) {
    check(utf8_valid_end(piece.text, 0) == piece.text.size() && !piece.text.empty(), ErrorCode::bad_file,
          "SentencePiece model: a piece is empty or not UTF-8; the file is damaged");
    if (piece.type == Type::unused && file.algorithm == Algorithm::bpe)
      refuse("a BPE model with pieces of type UNUSED");
  }
}

bool is_special(Type type) { return type == Type::control || type == Type::unknown; }

Vocabulary read_vocabulary(const SentencePieceModel& file) {
  Vocabulary vocabulary;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const auto& piece = file.pieces[id];
    vocabulary.add(static_cast<int32_t>(id), piece.text, !is_special(piece.type));
  }
  return vocabulary;
}

std::unique_ptr<const TokenModel> make_unigram(const SentencePieceModel& file, int32_t unknown) {
  std::vector<Unigram::Piece> pieces;
  // The greatest score starts from FLT_MIN, the least number above 0, as in unigram_model.cc: scores are below that.
  float least = std::numeric_limits<float>::max(), most = std::numeric_limits<float>::min();
  for (const auto& piece : file.pieces) {
    if (piece.type == Type::normal) least = std::min(least, piece.score), most = std::max(most, piece.score);
  }
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const auto& piece = file.pieces[id];
    if (piece.type == Type::normal) pieces.push_back({static_cast<int32_t>(id), piece.score});
    // So that it is always taken.
    if (piece.type == Type::user_defined)
      pieces.push_back({static_cast<int32_t>(id), static_cast<float>(piece.text.size()) * most - 0.1});
  }
  return std::make_unique<Unigram>(
      read_vocabulary(file), pieces,
      Unigram::Settings{.unknown_id = unknown,
                        .unknown_score = least - static_cast<float>(Unigram::unknown_penalty),
                        .byte_fallback = file.byte_fallback,
                        .single_precision = true});
}

std::unique_ptr<const TokenModel> make_bpe(const SentencePieceModel& file, int32_t unknown, PreTokenizer& pre) {
  std::vector<float> scores;
  for (const auto& piece : file.pieces) {
    check(piece.score == piece.score, ErrorCode::bad_file, "a piece's score is NaN; the model is damaged");
    scores.push_back(piece.type == Type::normal || piece.type == Type::user_defined ? piece.score : Bpe::never_merge);
  }
  auto model = std::make_unique<Bpe>(
      read_vocabulary(file),
      Bpe::Settings{.byte_fallback = file.byte_fallback, .fuse_unknown = true, .unknown_id = unknown});
  model->merge_by_score(scores);
  if (model->splits_before(space_mark))
    pre.push_back({.kind = PreTokenizerStep::Kind::before_marks, .text = std::string(space_mark)});
  return model;
}

std::vector<AddedToken> tokens_of(const SentencePieceModel& file, Type type, bool normalized) {
  std::vector<AddedToken> tokens;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    const auto& piece = file.pieces[id];
    if (piece.type != type) continue;
    tokens.push_back({.id = static_cast<int32_t>(id),
                      .text = std::string(piece.text),
                      .special = is_special(type),
                      .normalized = normalized});
  }
  return tokens;
}

NormalizerStep make_rules(const SentencePieceModel& file, bool legacy) {
  using Prefix = SentencePieceRules::Prefix;
  auto rules = std::make_shared<SentencePieceRules>();
  if (!file.charsmap.empty()) rules->charsmap.emplace(file.charsmap);
  rules->dummy_prefix = !file.add_dummy_prefix ? Prefix::never : legacy ? Prefix::each : Prefix::first;
  rules->remove_extra_spaces = file.remove_extra_spaces;
  rules->escape_spaces = file.escape_spaces;
  rules->user_defined = AddedTokenMatcher(tokens_of(file, Type::user_defined, false));
  return {.kind = NormalizerStep::Kind::sentencepiece, .rules = std::move(rules)};
}

std::string decoded(const SentencePieceModel& file, const SentencePieceModel::Piece& piece) {
  std::string text(piece.text);
  if (piece.type == Type::unknown) return file.unk_surface;
  if (piece.type == Type::control) return text;
  if (piece.type == Type::byte) {
    if (const auto byte = byte_of_token_text(text)) return std::string(1, static_cast<char>(*byte));
  }
  for (size_t at = text.find(space_mark); at != std::string::npos; at = text.find(space_mark, at + 1))
    text.replace(at, space_mark.size(), " ");
  return text;
}

std::optional<int32_t> in_range(const SentencePieceModel& file, int32_t id) {
  return id >= 0 && static_cast<size_t>(id) < file.pieces.size() ? std::optional(id) : std::nullopt;
}

}  // namespace

Tokenizer Tokenizer::from_sentencepiece(std::string_view bytes, const TokenizerConfig& config) {
  const SentencePieceModel file = SentencePieceModel::parse(bytes);
  check_kinds(file);
  const auto unknown = std::find_if(file.pieces.begin(), file.pieces.end(),
                                    [](const auto& piece) { return piece.type == Type::unknown; });
  if (unknown == file.pieces.end()) refuse("no piece of type UNKNOWN");
  const auto unknown_id = static_cast<int32_t>(unknown - file.pieces.begin());
  auto parts = std::make_shared<Parts>();
  parts->normalizer = {make_rules(file, config.legacy.value_or(true))};
  const bool is_bpe = file.algorithm == Algorithm::bpe;
  parts->model = is_bpe ? make_bpe(file, unknown_id, parts->pre_tokenizer) : make_unigram(file, unknown_id);
  parts->bos = in_range(file, file.bos_id), parts->eos = in_range(file, file.eos_id);
  parts->pad = in_range(file, file.pad_id), parts->unk = unknown_id;
  for (const auto& piece : file.pieces) parts->decoded.push_back(decoded(file, piece));
  parts->strip_leading_spaces = file.add_dummy_prefix || file.remove_extra_spaces ? 1 : 0;

  std::vector<AddedToken> added = tokens_of(file, Type::control, false);
  for (AddedToken& token : tokens_of(file, Type::unknown, false)) added.push_back(std::move(token));
  // BPE never merges them with their neighbours; Unigram's search takes them by their score.
  if (is_bpe) {
    for (AddedToken& token : tokens_of(file, Type::user_defined, true)) added.push_back(std::move(token));
  }
  add_further(config.tokens, parts->model->vocabulary(), added);
  for (const AddedToken& token : added) {
    parts->added.add(token.id, token.text);
    if (static_cast<size_t>(token.id) == parts->decoded.size()) parts->decoded.push_back(token.text);
  }
  if (config.add_bos_token.value_or(true) && parts->bos) parts->prefix = {*parts->bos};
  apply_config(config, *parts);
  parts->finish(std::move(added));
  return Tokenizer(std::move(parts));
}

}  // namespace sluice
