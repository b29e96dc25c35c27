#include "text/tokenizer_parts.h"

#include <array>

#include "core/error.h"

namespace sluice {
namespace {

// Tokens that end a turn or a text in the model families we know; a generation stops at them whatever eos is.
constexpr std::array<std::string_view, 14> end_texts = {"<|eot_id|>",
                                                        "<|eom_id|>",
                                                        "<|im_end|>",
                                                        "<|end|>",
                                                        "<end_of_turn>",
                                                        "<|endoftext|>",
                                                        "<|end_of_text|>",
                                                        "<end_of_utterance>",
                                                        "<EOT>",
                                                        "<turn|>",
                                                        "<｜end▁of▁sentence｜>",
                                                        "[EOT]",
                                                        "<|eot|>",
                                                        "<|eom|>"};

// The id that Hugging Face tokenizers gives the next token added.
int32_t next_id(const Vocabulary& vocabulary, const std::vector<AddedToken>& added) {
  int32_t next = vocabulary.count();
  for (const AddedToken& token : added) next = std::max(next, token.id + 1);
  return next;
}

}  // namespace

void add_further(const std::vector<AddedToken>& further, const Vocabulary& vocabulary, std::vector<AddedToken>& added) {
  for (const AddedToken& token : further) {
    const auto same = std::find_if(added.begin(), added.end(), [&](const auto& a) { return a.text == token.text; });
    int32_t id = same != added.end() ? same->id : vocabulary.find(token.text);
    if (id < 0) id = next_id(vocabulary, added);
    if (token.id >= 0 && token.id != id) {
      throw Error(ErrorCode::bad_file,
                  "tokenizer_config.json or added_tokens.json gives \"" + token.text + "\" the id " +
                      std::to_string(token.id) + ", with tokenizer.json it has the id " + std::to_string(id) +
                      ", needed one id; take all files from the same place, or put the token into tokenizer.json");
    }
    AddedToken whole = token;
    whole.id = id;
    if (same == added.end()) added.push_back(std::move(whole));
    else if (token.id >= 0) *same = std::move(whole);  // its flags count; a mere name has none
  }
}

void apply_config(const TokenizerConfig& config, Tokenizer::Parts& parts) {
  const auto id_of = [&](const std::optional<std::string>& text) -> std::optional<int32_t> {
    const int32_t id = text ? parts.find(*text) : -1;
    return id < 0 ? std::nullopt : std::optional(id);
  };
  if (config.bos_token) parts.bos = id_of(config.bos_token);
  if (config.eos_token) parts.eos = id_of(config.eos_token);
  if (config.pad_token) parts.pad = id_of(config.pad_token);
  if (config.unk_token) parts.unk = id_of(config.unk_token);
  if (!parts.unk) parts.unk = parts.model->unknown_id();
  if (!parts.eos && !config.stop_ids.empty()) parts.eos = config.stop_ids[0];
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
            "the tokenizer's post-processor: found token id " + std::to_string(id) + ", needed 0 to " +
                std::to_string(parts.size() - 1));
    }
  }
}

void Tokenizer::Parts::finish(std::vector<AddedToken> tokens) {
  special.resize(static_cast<size_t>(size()));
  for (const AddedToken& token : tokens) special[static_cast<size_t>(token.id)] = token.special;
  std::vector<int32_t> stops;
  const auto add_stop = [&](int32_t id) {
    if (id >= 0 && id < size() && std::find(stops.begin(), stops.end(), id) == stops.end()) stops.push_back(id);
  };
  if (eos) add_stop(*eos);
  for (int32_t id : stop_ids) add_stop(id);
  for (std::string_view text : end_texts) {
    if (text == "<|end|>" && find("<|return|>") >= 0) continue;  // in the Harmony format it ends a message, not a turn
    if (const int32_t id = find(text); id >= 0 && special[static_cast<size_t>(id)]) add_stop(id);
  }
  stop_ids = std::move(stops);
  const auto middle =
      std::stable_partition(tokens.begin(), tokens.end(), [](const AddedToken& token) { return !token.normalized; });
  normalized_tokens = AddedTokenMatcher({middle, tokens.end()});
  raw_tokens = AddedTokenMatcher({tokens.begin(), middle});
}

}  // namespace sluice
