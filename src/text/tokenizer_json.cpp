#include <algorithm>

#include "core/error.h"
#include "text/json_reader.h"
#include "text/tokenizer_json_steps.h"
#include "text/tokenizer_parts.h"

namespace sluice {
namespace {

JsonNode parse(simdjson::dom::parser& parser, std::string_view json, const char* name) {
  simdjson::dom::element root;
  const auto error = parser.parse(json.data(), json.size()).get(root);
  check(error == simdjson::SUCCESS, ErrorCode::bad_file,
        std::string(name) + " is not JSON (" + simdjson::error_message(error) + "); download it again");
  return {root, name};
}

int32_t read_id(const JsonNode& node) {
  return static_cast<int32_t>(std::clamp<int64_t>(node.integer(), -1, int64_t{Vocabulary::max_id} + 1));
}

Vocabulary read_vocabulary(const JsonNode& model) {
  const JsonNode vocab = model.at("vocab");
  if (vocab.is_array()) vocab.refuse("a list of pieces with scores (Unigram)");
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

void check_model(const JsonNode& model) {
  const std::string_view type = model.string_or("type", "BPE");
  if (type != "BPE") model.refuse("the model " + std::string(type));
  for (std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string_or(key, "").empty())
      model.refuse(std::string(key) + " \"" + std::string(model.string_or(key, "")) + "\"");
  }
  double dropout = 0;
  if (const auto node = model.find("dropout"); node && node->raw().get(dropout) == simdjson::SUCCESS && dropout != 0) {
    model.refuse("dropout");
  }
}

Bpe read_model(const JsonNode& model, bool byte_level) {
  check_model(model);
  Vocabulary vocabulary = read_vocabulary(model);
  Bpe::Settings settings{.bytes_as_symbols = byte_level,
                         .byte_fallback = model.boolean_or("byte_fallback", false),
                         .ignore_merges = model.boolean_or("ignore_merges", false),
                         .fuse_unknown = model.boolean_or("fuse_unk", false)};
  if (const auto unknown = model.find("unk_token")) {
    const int32_t id = vocabulary.find(unknown->string());
    if (id < 0) unknown->fail("\"" + std::string(unknown->string()) + "\"", "a token of the vocabulary");
    settings.unknown_id = id;
  }
  Bpe bpe(std::move(vocabulary), settings);
  const JsonNode merges = model.at("merges");
  const simdjson::dom::array list = merges.array();
  bpe.reserve_merges(list.size());
  for (auto element : list) {
    const auto [left, right] = read_merge(merges, element);
    bpe.add_merge(left, right, true);
  }
  return bpe;
}

struct AddedLists {
  std::vector<AddedToken> raw, normalized;
};

AddedLists read_added_tokens(const JsonNode& root, Tokenizer::Parts& parts) {
  AddedLists lists;
  const auto node = root.find("added_tokens");
  if (!node) return lists;
  size_t i = 0;
  for (auto element : node->array()) {
    const JsonNode item(element, node->path() + "[" + std::to_string(i++) + "]");
    AddedToken token{.id = read_id(item.at("id")),
                     .text = std::string(item.at("content").string()),
                     .special = item.boolean_or("special", false),
                     .single_word = item.boolean_or("single_word", false),
                     .lstrip = item.boolean_or("lstrip", false),
                     .rstrip = item.boolean_or("rstrip", false)};
    parts.added.add(token.id, token.text);
    if (!item.boolean_or("normalized", !token.special)) {
      lists.raw.push_back(std::move(token));
      continue;
    }
    token.text = normalize(parts.normalizer, token.text);
    lists.normalized.push_back(std::move(token));
  }
  return lists;
}

void decode_all(const JsonDecoder& decoder, Tokenizer::Parts& parts) {
  parts.strip_leading_spaces = decoder.strip_leading_spaces;
  parts.decoded.reserve(static_cast<size_t>(parts.size()));
  for (int32_t id = 0; id < parts.size(); ++id) {
    parts.decoded.push_back(decoder.decode(parts.text(id), parts.added.has(id)));
  }
}

void apply_config(const TokenizerConfig& config, Tokenizer::Parts& parts) {
  const auto id_of = [&](const std::optional<std::string>& text) -> std::optional<int32_t> {
    const int32_t id = text ? parts.find(*text) : -1;
    return id < 0 ? std::nullopt : std::optional(id);
  };
  parts.bos = id_of(config.bos_token), parts.eos = id_of(config.eos_token);
  parts.pad = id_of(config.pad_token), parts.unk = id_of(config.unk_token);
  if (!parts.unk) parts.unk = parts.model.settings().unknown_id;
  if (!parts.bos && !config.bos_token && parts.prefix.size() == 1) parts.bos = parts.prefix[0];
  const auto overrule = [](std::optional<bool> wanted, std::optional<int32_t> id, std::vector<int32_t>& ids) {
    if (!wanted || !id) return;
    if (!*wanted) std::erase(ids, *id);
    else if (std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
  };
  overrule(config.add_bos_token, parts.bos, parts.prefix);
  overrule(config.add_eos_token, parts.eos, parts.suffix);
  parts.stop_ids = config.stop_ids;
  for (const auto* ids : {&parts.prefix, &parts.suffix}) {
    for (int32_t id : *ids) {
      check(id >= 0 && id < parts.size(), ErrorCode::bad_file,
            "tokenizer.json.post_processor: found token id " + std::to_string(id) + ", needed 0 to " +
                std::to_string(parts.size() - 1));
    }
  }
}

// "text", {"content": "text", …} or null.
std::optional<std::string> read_token_text(const JsonNode& root, std::string_view key) {
  const auto node = root.find(key);
  if (!node) return std::nullopt;
  return std::string(node->is_object() ? node->at("content").string() : node->string());
}

}  // namespace

Tokenizer Tokenizer::from_tokenizer_json(std::string_view json, const TokenizerConfig& config) {
  simdjson::dom::parser parser;
  const JsonNode root = parse(parser, json, "tokenizer.json");
  auto parts = std::make_shared<Parts>();
  parts->normalizer = read_normalizer(root.find("normalizer"));
  JsonPreTokenizer pre = read_pre_tokenizer(root.find("pre_tokenizer"));
  parts->pre_tokenizer = std::move(pre.steps);
  const JsonNode model = root.at("model");
  parts->model = model.locate([&] { return read_model(model, pre.byte_level); });
  const AddedLists added = read_added_tokens(root, *parts);
  decode_all(read_decoder(root.find("decoder")), *parts);
  JsonPostProcessor post = read_post_processor(root.find("post_processor"));
  parts->prefix = std::move(post.prefix), parts->suffix = std::move(post.suffix);
  apply_config(config, *parts);
  parts->finish(added.raw, added.normalized);
  return Tokenizer(std::move(parts));
}

TokenizerConfig TokenizerConfig::from_json(std::string_view json) {
  simdjson::dom::parser parser;
  const JsonNode root = parse(parser, json, "tokenizer_config.json");
  TokenizerConfig config;
  config.bos_token = read_token_text(root, "bos_token"), config.eos_token = read_token_text(root, "eos_token");
  config.pad_token = read_token_text(root, "pad_token"), config.unk_token = read_token_text(root, "unk_token");
  if (const auto add = root.find("add_bos_token")) config.add_bos_token = add->boolean();
  if (const auto add = root.find("add_eos_token")) config.add_eos_token = add->boolean();
  const auto chat = root.find("chat_template");
  if (!chat) return config;
  if (chat->is_string()) {
    config.chat_template = chat->string();
    return config;
  }
  for (auto element : chat->array()) {  // several, by name
    const JsonNode item(element, chat->path());
    if (item.at("name").string() == "default") config.chat_template = item.at("template").string();
  }
  return config;
}

}  // namespace sluice
