#include "text/tokenizer_json_steps.h"

#include <algorithm>
#include <map>

#include "text/base64.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/old_unicode.h"
#include "text/scripts.h"
#include "text/token_model.h"

namespace sluice {
namespace {

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string_view name = node.string();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  node.refuse("the behavior " + std::string(name));
}

void read_byte_level(const JsonNode& node, JsonPreTokenizer& out) {
  out.byte_level = true;
  if (node.boolean_or("add_prefix_space", true)) {
    out.steps.push_back({.kind = PreTokenizerStep::Kind::add_prefix, .text = " "});
  }
  if (node.boolean_or("use_regex", true)) out.steps.push_back({.pattern = Regex(gpt2_pattern)});
}

void read_metaspace(const JsonNode& node, JsonPreTokenizer& out) {
  const std::string mark = read_mark(node);
  out.steps.push_back({.kind = PreTokenizerStep::Kind::metaspace, .text = mark, .prepend = read_prepend(node)});
  if (node.boolean_or("split", true)) {
    out.steps.push_back({.pattern = Regex::literal(mark), .behavior = SplitBehavior::merged_with_next});
  }
}

// Punctuation of Unicode 8, and what ASCII has besides.
const std::string& punctuation() {
  static const std::string pattern =
      R"((?:\p{P}(?<![)" + unnamed_class_items() + R"(])|[!-/:-@\[-`{-~\x{166D}\x{111C9}]))";
  return pattern;
}

void read_pre_tokenizer_step(const JsonNode& node, JsonPreTokenizer& out) {
  const std::string type(node.at("type").string());
  if (out.byte_level) node.refuse(type + " after ByteLevel");
  const auto split = [&](std::string_view pattern, SplitBehavior behavior, bool invert = false) {
    out.steps.push_back({.pattern = Regex(pattern), .behavior = behavior, .invert = invert});
  };
  if (type == "ByteLevel") return read_byte_level(node, out);
  if (type == "Metaspace") return read_metaspace(node, out);
  if (type == "Split") {
    out.steps.push_back({.pattern = read_pattern(node),
                         .behavior = read_behavior(node.at("behavior")),
                         .invert = node.boolean_or("invert", false)});
    return;
  }
  if (type == "Digits") {
    const bool individual = node.boolean_or("individual_digits", false);
    return split("\\p{N}", individual ? SplitBehavior::isolated : SplitBehavior::contiguous);
  }
  if (type == "Punctuation") {
    const auto behavior = node.find("behavior");
    return split(punctuation(), behavior ? read_behavior(*behavior) : SplitBehavior::isolated);
  }
  if (type == "Whitespace") {  // Rust's \w has the two joiners, too
    return split(R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)", SplitBehavior::removed, true);
  }
  if (type == "BertPreTokenizer") {
    split(R"(\s)", SplitBehavior::removed);
    return split(punctuation(), SplitBehavior::isolated);
  }
  if (type == "UnicodeScripts") return split(script_runs_pattern(), SplitBehavior::removed, true);
  if (type == "FixedLength") {
    const JsonNode length = node.at("length");
    if (length.integer() < 1 || length.integer() > 65535) length.fail(std::to_string(length.integer()), "1 to 65535");
    return split("\\p{Any}{1," + std::to_string(length.integer()) + "}", SplitBehavior::isolated);
  }
  if (type == "WhitespaceSplit") return split(R"(\s)", SplitBehavior::removed);
  if (type == "CharDelimiterSplit") {
    out.steps.push_back({.pattern = Regex::literal(node.at("delimiter").string()), .behavior = SplitBehavior::removed});
    return;
  }
  node.refuse("the pre-tokenizer " + type);
}

std::shared_ptr<const SentencePieceRules> read_charsmap(const JsonNode& node) {
  auto rules = std::make_shared<SentencePieceRules>();
  const JsonNode text = node.at("precompiled_charsmap");
  text.locate([&] {
    const auto bytes = base64_decode(text.string());
    if (!bytes) text.fail("text that is not base64", "base64");
    return rules->charsmap.emplace(*bytes);
  });
  return rules;
}

void read_bert_normalizer(const JsonNode& node, Normalizer& out) {
  using Kind = NormalizerStep::Kind;
  const bool lowercase = node.boolean_or("lowercase", true);
  if (node.boolean_or("clean_text", true)) out.push_back({.kind = Kind::clean});
  if (node.boolean_or("handle_chinese_chars", true)) out.push_back({.kind = Kind::space_han});
  if (node.boolean_or("strip_accents", lowercase)) {
    out.push_back({.kind = Kind::nfd});
    out.push_back({.kind = Kind::strip_nonspacing});
  }
  if (lowercase) out.push_back({.kind = Kind::lowercase});
}

void read_normalizer_step(const JsonNode& node, Normalizer& out) {
  using Kind = NormalizerStep::Kind;
  static const std::map<std::string_view, Kind> plain = {{"NFC", Kind::nfc},
                                                         {"NFD", Kind::nfd},
                                                         {"NFKC", Kind::nfkc},
                                                         {"NFKD", Kind::nfkd},
                                                         {"Nmt", Kind::nmt},
                                                         {"Lowercase", Kind::lowercase},
                                                         {"ByteLevel", Kind::byte_level},
                                                         {"StripAccents", Kind::strip_accents}};
  const std::string type(node.at("type").string());
  if (const auto found = plain.find(type); found != plain.end()) {
    out.push_back({.kind = found->second});
  } else if (type == "Prepend") {
    out.push_back({.kind = Kind::prepend, .text = std::string(node.at("prepend").string())});
  } else if (type == "Strip") {
    out.push_back({.kind = Kind::strip,
                   .left = node.boolean_or("strip_left", true),
                   .right = node.boolean_or("strip_right", true)});
  } else if (type == "Replace") {
    out.push_back(
        {.kind = Kind::replace, .pattern = read_pattern(node), .text = std::string(node.at("content").string())});
  } else if (type == "Precompiled") {
    if (node.find("precompiled_charsmap") && !node.at("precompiled_charsmap").string().empty())
      out.push_back({.kind = Kind::precompiled, .rules = read_charsmap(node)});
  } else if (type == "BertNormalizer") {
    read_bert_normalizer(node, out);
  } else {
    node.refuse("the normalizer " + type);
  }
}

void read_template(const JsonNode& node, JsonPostProcessor& out) {
  bool seen_text = false;
  size_t i = 0;
  for (auto element : node.at("single").array()) {
    const JsonNode piece(element, node.path() + ".single[" + std::to_string(i++) + "]");
    if (piece.find("Sequence")) {
      if (seen_text) piece.refuse("a template that repeats the text");
      seen_text = true;
      continue;
    }
    const JsonNode token = node.at("special_tokens").at(piece.at("SpecialToken").at("id").string());
    for (auto id : token.at("ids").array()) {
      const int64_t value = JsonNode(id, token.path() + ".ids").integer();
      (seen_text ? out.suffix : out.prefix).push_back(static_cast<int32_t>(std::clamp<int64_t>(value, -1, INT32_MAX)));
    }
  }
  if (!seen_text) node.refuse("a template without the text");
}

// ["[CLS]", 101]
int32_t read_token_pair(const JsonNode& node) {
  const simdjson::dom::array pair = node.array();
  if (pair.size() != 2) node.fail("a list of " + std::to_string(pair.size()), "a token and its id");
  return static_cast<int32_t>(std::clamp<int64_t>(JsonNode(pair.at(1), node.path() + "[1]").integer(), -1, INT32_MAX));
}

void read_cls_sep(const JsonNode& node, JsonPostProcessor& out) {
  out.prefix.push_back(read_token_pair(node.at("cls")));
  out.suffix.push_back(read_token_pair(node.at("sep")));
}

}  // namespace

Regex read_pattern(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  return pattern.locate([&] {
    const auto text = pattern.find("String");
    return text ? Regex::literal(text->string()) : Regex(pattern.at("Regex").string());
  });
}

// The mark of a Metaspace step that stands for a space.
std::string read_mark(const JsonNode& node) {
  const std::string_view mark = node.string_or("replacement", "\xE2\x96\x81");
  if (mark.empty()) node.refuse("Metaspace with an empty replacement");
  return std::string(mark);
}

PreTokenizerStep::Prepend read_prepend(const JsonNode& node) {
  using Prepend = PreTokenizerStep::Prepend;
  if (!node.find("prepend_scheme")) return node.boolean_or("add_prefix_space", true) ? Prepend::always : Prepend::never;
  const std::string_view scheme = node.at("prepend_scheme").string();
  if (scheme == "always") return Prepend::always;
  if (scheme == "first") return Prepend::first;
  if (scheme == "never") return Prepend::never;
  node.refuse("the prepend_scheme " + std::string(scheme));
}

Normalizer read_normalizer(const std::optional<JsonNode>& node) {
  Normalizer steps;
  for_each_step(node, "normalizers", [&](const JsonNode& step) { read_normalizer_step(step, steps); });
  return steps;
}

JsonPreTokenizer read_pre_tokenizer(const std::optional<JsonNode>& node) {
  JsonPreTokenizer result;
  for_each_step(node, "pretokenizers", [&](const JsonNode& step) { read_pre_tokenizer_step(step, result); });
  return result;
}

AddedToken read_added_token(const JsonNode& node, bool special) {
  return {.text = std::string(node.at("content").string()),
          .special = special,
          .single_word = node.boolean_or("single_word", false),
          .lstrip = node.boolean_or("lstrip", false),
          .rstrip = node.boolean_or("rstrip", false),
          .normalized = node.boolean_or("normalized", !special)};
}

JsonPostProcessor read_post_processor(const std::optional<JsonNode>& node) {
  JsonPostProcessor result;
  for_each_step(node, "processors", [&](const JsonNode& step) {
    const std::string type(step.at("type").string());
    if (type == "TemplateProcessing") read_template(step, result);
    else if (type == "BertProcessing" || type == "RobertaProcessing") read_cls_sep(step, result);
    else if (type != "ByteLevel") step.refuse("the post-processor " + type);  // ByteLevel moves offsets only
  });
  return result;
}

}  // namespace sluice
