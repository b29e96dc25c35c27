#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/error.h"
#include "text/bpe.h"
#include "text/json_reader.h"
#include "text/tokenizer_json_decoder.h"
#include "text/tokenizer_json_steps.h"
#include "text/tokenizer_parts.h"
#include "text/unigram.h"
#include "text/word_piece.h"

namespace sluice {
namespace {

int32_t read_id(const JsonNode& node) {
  return static_cast<int32_t>(std::clamp<int64_t>(node.integer(), -1, int64_t{Vocabulary::max_id} + 1));
}

Vocabulary read_vocabulary(const JsonNode& model) {
  const JsonNode vocab = model.at("vocab");
  Vocabulary vocabulary;
  const simdjson::dom::object tokens = vocab.object();
  vocabulary.reserve(tokens.size(), 16 * tokens.size());
  for (auto [text, id] : tokens) {
    int64_t value = -1;
    if (id.get(value) != simdjson::SUCCESS) vocab.fail("an id that is no whole number", "whole numbers");
    vocabulary.add(static_cast<int32_t>(std::clamp<int64_t>(value, -1, int64_t{Vocabulary::max_id} + 1)), text);
  }
  return vocabulary;
}

// "left right", or ["left", "right"].
std::pair<std::string_view, std::string_view> read_merge(const JsonNode& merges, simdjson::dom::element element) {
  std::string_view text, left, right;
  if (element.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      merges.fail("\"" + std::string(text) + "\"", "two tokens with a space between");
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }
  simdjson::dom::array pair;
  if (element.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
      pair.at(1).get(right) != simdjson::SUCCESS) {
    merges.fail("an entry that is not a pair", "pairs of tokens");
  }
  return {left, right};
}

void check_bpe(const JsonNode& model) {
  for (std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string_or(key, "").empty())
      model.refuse(std::string(key) + " \"" + std::string(model.string_or(key, "")) + "\"");
  }
  double dropout = 0;
  if (const auto node = model.find("dropout"); node && node->raw().get(dropout) == simdjson::SUCCESS && dropout != 0) {
    model.refuse("dropout");
  }
}

int32_t read_unknown(const JsonNode& unknown, const Vocabulary& vocabulary) {
  const int32_t id = vocabulary.find(unknown.string());
  if (id < 0) unknown.fail("\"" + std::string(unknown.string()) + "\"", "a token of the vocabulary");
  return id;
}

std::unique_ptr<const TokenModel> read_bpe(const JsonNode& model, bool byte_level, PreTokenizer& pre) {
  check_bpe(model);
  Vocabulary vocabulary = read_vocabulary(model);
  Bpe::Settings settings{.bytes_as_symbols = byte_level,
                         .byte_fallback = model.boolean_or("byte_fallback", false),
                         .ignore_merges = model.boolean_or("ignore_merges", false),
                         .fuse_unknown = model.boolean_or("fuse_unk", false)};
  if (const auto unknown = model.find("unk_token")) settings.unknown_id = read_unknown(*unknown, vocabulary);
  auto bpe = std::make_unique<Bpe>(std::move(vocabulary), settings);
  const JsonNode merges = model.at("merges");
  const simdjson::dom::array list = merges.array();
  bpe->reserve_merges(list.size());
  for (auto element : list) {
    const auto [left, right] = read_merge(merges, element);
    bpe->add_merge(left, right, true);
  }
  if (bpe->splits_before(space_mark))
    pre.push_back({.kind = PreTokenizerStep::Kind::before_marks, .text = std::string(space_mark)});
  return bpe;
}

// The score as Hugging Face tokenizers reads it: its JSON library divides the digits, as a float64, by a power of ten, which may be one
// bit off the nearest float64. Where two ways to cut a word have scores that are sums of the same numbers, that bit decides.
double read_score(double nearest) {
  char text[40];
  const auto [end, error] = std::to_chars(text, text + sizeof text, std::abs(nearest), std::chars_format::scientific);
  uint64_t digits = 0;
  int exponent = 0;
  for (const char* c = text; c != end; ++c) {
    if (*c == 'e') {
      exponent += std::atoi(std::string(c + 1, static_cast<const char*>(end)).c_str());
      break;
    }
    if (*c == '.') continue;
    digits = 10 * digits + static_cast<uint64_t>(*c - '0');
    exponent -= c > text ? 1 : 0;
  }
  if (error != std::errc() || std::abs(exponent) > 300) return nearest;
  const double power = std::pow(10.0, std::abs(exponent)), value = static_cast<double>(digits);
  return std::copysign(exponent < 0 ? value / power : value * power, nearest);
}

std::unique_ptr<const TokenModel> read_unigram(const JsonNode& model) {
  const JsonNode vocab = model.at("vocab");
  Vocabulary vocabulary;
  std::vector<Unigram::Piece> pieces;
  double least = std::numeric_limits<double>::infinity();
  for (auto element : vocab.array()) {
    simdjson::dom::array pair;
    std::string_view text;
    double score = 0;
    if (element.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(text) != simdjson::SUCCESS ||
        pair.at(1).get(score) != simdjson::SUCCESS)
      vocab.fail("an entry that is not a piece and a score", "pairs of them");
    const auto id = static_cast<int32_t>(std::min(pieces.size(), size_t{Vocabulary::max_id} + 1));
    vocabulary.add(id, text);
    pieces.push_back({id, read_score(score)});
    least = std::min(least, pieces.back().score);
  }
  const auto unknown = model.find("unk_id");
  if (!unknown) model.refuse("Unigram without unk_id");
  if (unknown->integer() < 0 || unknown->integer() >= vocabulary.size())
    unknown->fail(std::to_string(unknown->integer()), "an id of the vocabulary");
  return std::make_unique<Unigram>(std::move(vocabulary), pieces,
                                   Unigram::Settings{.unknown_id = static_cast<int32_t>(unknown->integer()),
                                                     .unknown_score = least - Unigram::unknown_penalty,
                                                     .byte_fallback = model.boolean_or("byte_fallback", false),
                                                     .find_unknown_runs = true});
}

std::unique_ptr<const TokenModel> read_word_piece(const JsonNode& model) {
  Vocabulary vocabulary = read_vocabulary(model);
  WordPiece::Settings settings{.unknown_id = read_unknown(model.at("unk_token"), vocabulary)};
  settings.continuing_prefix = model.string_or("continuing_subword_prefix", "##");
  if (const auto most = model.find("max_input_chars_per_word")) settings.max_word_characters = most->integer();
  return std::make_unique<WordPiece>(std::move(vocabulary), settings);
}

// Files of old versions do not name the model's type: what they hold tells it.
std::string_view type_of(const JsonNode& model) {
  if (const auto type = model.find("type")) return type->string();
  if (model.find("merges")) return "BPE";
  if (model.find("unk_id")) return "Unigram";
  return model.find("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

std::unique_ptr<const TokenModel> read_model(const JsonNode& model, bool byte_level, PreTokenizer& pre) {
  const std::string_view type = type_of(model);
  if (type == "BPE") return read_bpe(model, byte_level, pre);
  if (byte_level) model.refuse("the model " + std::string(type) + " after a pre-tokenizer ByteLevel");
  if (type == "Unigram") return read_unigram(model);
  if (type == "WordPiece") return read_word_piece(model);
  if (type == "WordLevel") {
    Vocabulary vocabulary = read_vocabulary(model);
    const int32_t unknown = read_unknown(model.at("unk_token"), vocabulary);
    return std::make_unique<WordLevel>(std::move(vocabulary), unknown);
  }
  model.refuse("the model " + std::string(type));
}

std::vector<AddedToken> read_added_tokens(const JsonNode& root) {
  std::vector<AddedToken> tokens;
  const auto node = root.find("added_tokens");
  if (!node) return tokens;
  size_t i = 0;
  for (auto element : node->array()) {
    const JsonNode item(element, node->path() + "[" + std::to_string(i++) + "]");
    tokens.push_back(read_added_token(item, item.boolean_or("special", false)));
    tokens.back().id = read_id(item.at("id"));
  }
  return tokens;
}

// A normalized token decodes to what the normalizer makes of it.
void decode_all(const JsonDecoder& decoder, const std::vector<AddedToken>& added, Tokenizer::Parts& parts) {
  parts.strip_leading_spaces = decoder.strip_leading_spaces;
  RegexScratch scratch;
  const auto decode = [&](bool first, std::vector<std::string>& out) {
    out.reserve(static_cast<size_t>(parts.size()));
    for (int32_t id = 0; id < parts.size(); ++id)
      out.push_back(decoder.decode(parts.text(id), parts.added.has(id), first, scratch));
    for (const AddedToken& token : added) {
      if (token.normalized) out[static_cast<size_t>(token.id)] = decoder.decode(token.text, true, first, scratch);
    }
  };
  decode(false, parts.decoded);
  if (decoder.knows_the_first()) decode(true, parts.decoded_first);
}

}  // namespace

Tokenizer Tokenizer::from_tokenizer_json(std::string_view json, const TokenizerConfig& config) {
  simdjson::dom::parser parser;
  const JsonNode root = parse_json(parser, json, "tokenizer.json");
  auto parts = std::make_shared<Parts>();
  parts->normalizer = read_normalizer(root.find("normalizer"));
  JsonPreTokenizer pre = read_pre_tokenizer(root.find("pre_tokenizer"));
  parts->pre_tokenizer = std::move(pre.steps);
  const JsonNode model = root.at("model");
  parts->model = model.locate([&] { return read_model(model, pre.byte_level, parts->pre_tokenizer); });
  std::vector<AddedToken> added = read_added_tokens(root);
  add_further(config.tokens, parts->model->vocabulary(), added);
  for (AddedToken& token : added) {
    parts->added.add(token.id, token.text);
    if (token.normalized) token.text = normalize(parts->normalizer, token.text);
  }
  decode_all(read_decoder(root.find("decoder")), added, *parts);
  JsonPostProcessor post = read_post_processor(root.find("post_processor"));
  parts->prefix = std::move(post.prefix), parts->suffix = std::move(post.suffix);
  apply_config(config, *parts);
  parts->finish(std::move(added));
  return Tokenizer(std::move(parts));
}

}  // namespace sluice
