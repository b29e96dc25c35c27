// tokenizer_config.json, special_tokens_map.json and added_tokens.json, read as transformers reads them.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "text/tokenizer.h"
#include "text/tokenizer_json_steps.h"

namespace sluice {
namespace {

// Tokens with a part of their own, in the order in which transformers adds those that are new.
constexpr std::array<std::string_view, 7> parts = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                   "pad_token", "cls_token", "mask_token"};

// "text" or {"content": "text", …}
AddedToken read_token(const JsonNode& node) {
  if (node.is_object()) return read_added_token(node, true);
  return {.text = std::string(node.string()), .special = true};
}

class Reader {
 public:
  Reader(std::string_view config, std::string_view map, std::string_view added)
      : config_(parse(config_parser_, config, "tokenizer_config.json")) {
    if (config_.find("added_tokens_decoder")) return;
    if (!map.empty()) map_ = parse(map_parser_, map, "special_tokens_map.json");
    if (!added.empty()) added_ = parse(added_parser_, added, "added_tokens.json");
  }

  TokenizerConfig read() {
    TokenizerConfig config;
    std::array<std::optional<AddedToken>, parts.size()> named;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (const auto node = find(parts[i])) named[i] = read_token(*node);
    }
    const auto text = [&](size_t part) { return named[part] ? std::optional(named[part]->text) : std::nullopt; };
    config.bos_token = text(0), config.eos_token = text(1), config.unk_token = text(2), config.pad_token = text(4);
    const std::vector<AddedToken> further = further_tokens();
    config.tokens = tokens_with_ids(named, further);
    const auto add = [&](const AddedToken& token) {
      const bool known = std::any_of(config.tokens.begin(), config.tokens.end(),
                                     [&](const AddedToken& other) { return other.text == token.text; });
      if (known || token.text.empty()) return;
      config.tokens.push_back(token);
      config.tokens.back().id = -1;
    };
    for (const auto& token : named) {
      if (token) add(*token);
    }
    for (const AddedToken& token : further) add(token);
    return config;
  }

  const JsonNode& root() const { return config_; }

 private:
  static JsonNode parse(simdjson::dom::parser& parser, std::string_view text, const char* name) {
    return parse_json(parser, text.empty() ? "{}" : text, name);
  }

  // special_tokens_map.json goes before tokenizer_config.json, where it counts.
  std::optional<JsonNode> find(std::string_view key) const {
    const auto node = map_ ? map_->find(key) : std::nullopt;
    return node ? node : config_.find(key);
  }

  // A list of tokens, or an object whose values are tokens.
  std::vector<AddedToken> further_tokens() const {
    std::vector<AddedToken> tokens;
    for (std::string_view key : {"additional_special_tokens", "extra_special_tokens"}) {
      const auto node = find(key);
      if (!node) continue;
      if (node->is_object()) {
        for (auto [name, value] : node->object())
          tokens.push_back(read_token({value, node->path() + "." + std::string(name)}));
        continue;
      }
      size_t i = 0;
      for (auto value : node->array())
        tokens.push_back(read_token({value, node->path() + "[" + std::to_string(i++) + "]"}));
    }
    return tokens;
  }

  // added_tokens_decoder, or added_tokens.json, by id.
  std::vector<AddedToken> tokens_with_ids(const std::array<std::optional<AddedToken>, parts.size()>& named,
                                          const std::vector<AddedToken>& further) const {
    std::map<int32_t, AddedToken> by_id;
    const auto put = [&](int32_t id, AddedToken token) {
      token.id = id;
      by_id[id] = std::move(token);
    };
    if (const auto decoder = config_.find("added_tokens_decoder")) {
      for (auto [key, value] : decoder->object()) {
        const JsonNode node(value, decoder->path() + "." + std::string(key));
        int32_t id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc() || end != key.data() + key.size() || id < 0)
          decoder->fail("the key \"" + std::string(key) + "\"", "ids");
        put(id, read_added_token(node, node.boolean_or("special", false)));
      }
    } else if (added_) {
      for (auto [text, value] : added_->object()) {
        const int64_t id = JsonNode(value, added_->path() + "." + std::string(text)).integer();
        if (id < 0 || id > INT32_MAX) added_->fail("the id " + std::to_string(id), "ids");
        const auto is_it = [text = std::string_view(text)](const AddedToken& token) { return token.text == text; };
        const bool special =
            std::any_of(further.begin(), further.end(), is_it) ||
            std::any_of(named.begin(), named.end(), [&](const auto& token) { return token && is_it(*token); });
        put(static_cast<int32_t>(id), {.text = std::string(text), .special = special, .normalized = !special});
      }
    }
    std::vector<AddedToken> tokens;
    for (auto& [id, token] : by_id) tokens.push_back(std::move(token));
    return tokens;
  }

  simdjson::dom::parser config_parser_, map_parser_, added_parser_;
  JsonNode config_;
  std::optional<JsonNode> map_, added_;
};

}  // namespace

TokenizerConfig TokenizerConfig::from_json(std::string_view tokenizer_config, std::string_view special_tokens_map,
                                           std::string_view added_tokens) {
  Reader reader(tokenizer_config, special_tokens_map, added_tokens);
  TokenizerConfig config = reader.read();
  const JsonNode& root = reader.root();
  if (const auto add = root.find("add_bos_token")) config.add_bos_token = add->boolean();
  if (const auto add = root.find("add_eos_token")) config.add_eos_token = add->boolean();
  if (const auto legacy = root.find("legacy")) config.legacy = legacy->boolean();
  return config;
}

}  // namespace sluice
