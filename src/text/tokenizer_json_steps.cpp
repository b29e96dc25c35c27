#include "text/tokenizer_json_steps.h"

#include <cstdlib>

#include "text/byte_level.h"
#include "text/gguf_pre_tokenizers.h"

namespace sluice {
namespace {

// Calls `visit` for the node, or for each part of a Sequence, in order. `list` is the key under which a Sequence keeps its parts.
template <class Visit>
void for_each_step(const std::optional<JsonNode>& node, std::string_view list, const Visit& visit, int depth = 0) {
  if (!node || node->is_null()) return;
  if (node->at("type").string() != "Sequence") return visit(*node);
  if (depth > 8) node->refuse("a Sequence inside " + std::to_string(depth) + " others");
  const JsonNode parts = node->at(list);
  size_t i = 0;
  for (auto part : parts.array()) {
    for_each_step(std::optional(JsonNode(part, parts.path() + "[" + std::to_string(i++) + "]")), list, visit,
                  depth + 1);
  }
}

Regex read_pattern(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  return pattern.locate([&] {
    const auto text = pattern.find("String");
    return text ? Regex::literal(text->string()) : Regex(pattern.at("Regex").string());
  });
}

SplitBehavior read_behavior(const JsonNode& node) {
  const std::string_view name = node.string();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  node.refuse("the behavior " + std::string(name));
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

void read_byte_level(const JsonNode& node, JsonPreTokenizer& out) {
  out.byte_level = true;
  if (node.boolean_or("add_prefix_space", true)) {
    out.steps.push_back({.kind = PreTokenizerStep::Kind::add_prefix, .text = " "});
  }
  if (node.boolean_or("use_regex", true)) out.steps.push_back({.pattern = Regex(gpt2_pattern)});
}

// The mark of a Metaspace step that stands for a space.
std::string read_mark(const JsonNode& node) {
  const std::string_view mark = node.string_or("replacement", "\xE2\x96\x81");
  if (mark.empty()) node.refuse("Metaspace with an empty replacement");
  return std::string(mark);
}

void read_metaspace(const JsonNode& node, JsonPreTokenizer& out) {
  const std::string mark = read_mark(node);
  out.steps.push_back({.kind = PreTokenizerStep::Kind::metaspace, .text = mark, .prepend = read_prepend(node)});
  if (node.boolean_or("split", true)) {
    out.steps.push_back({.pattern = Regex::literal(mark), .behavior = SplitBehavior::merged_with_next});
  }
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
    return split(R"([\p{P}!-/:-@\[-`{-~])", behavior ? read_behavior(*behavior) : SplitBehavior::isolated);
  }
  if (type == "Whitespace") {  // Rust's \w has the two joiners, too
    return split(R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)", SplitBehavior::removed, true);
  }
  if (type == "WhitespaceSplit") return split(R"(\s)", SplitBehavior::removed);
  if (type == "CharDelimiterSplit") {
    out.steps.push_back({.pattern = Regex::literal(node.at("delimiter").string()), .behavior = SplitBehavior::removed});
    return;
  }
  node.refuse("the pre-tokenizer " + type);
}

void read_normalizer_step(const JsonNode& node, Normalizer& out) {
  using Kind = NormalizerStep::Kind;
  const std::string type(node.at("type").string());
  if (type == "NFC") out.push_back({.kind = Kind::nfc});
  else if (type == "NFD") out.push_back({.kind = Kind::nfd});
  else if (type == "NFKC") out.push_back({.kind = Kind::nfkc});
  else if (type == "NFKD") out.push_back({.kind = Kind::nfkd});
  else if (type == "Prepend") out.push_back({.kind = Kind::prepend, .text = std::string(node.at("prepend").string())});
  else if (type == "Replace")
    out.push_back(
        {.kind = Kind::replace, .pattern = read_pattern(node), .text = std::string(node.at("content").string())});
  else node.refuse("the normalizer " + type);
}

void read_decoder_step(const JsonNode& node, bool& fused, JsonDecoder& out) {
  const std::string type(node.at("type").string());
  if (type == "ByteLevel") {
    out.byte_level = true;
  } else if (type == "ByteFallback") {
    if (fused) node.refuse("ByteFallback after Fuse");
    out.byte_fallback = true;
  } else if (type == "Fuse") {
    fused = true;
  } else if (type == "Replace") {
    const auto text = node.at("pattern").find("String");
    if (!text || fused || out.byte_fallback)
      node.refuse(text ? "Replace after ByteFallback or Fuse" : "Replace of a Regex");
    if (text->string().empty()) node.refuse("Replace of an empty text");
    out.replacements.emplace_back(text->string(), node.at("content").string());
  } else if (type == "Strip") {
    if (!fused || node.at("content").string() != " " || node.at("stop").integer() != 0) {
      node.refuse("Strip other than of spaces at the start after Fuse");
    }
    out.strip_leading_spaces = static_cast<size_t>(std::max<int64_t>(0, node.at("start").integer()));
  } else if (type == "Metaspace") {
    out.replacements.emplace_back(read_mark(node), " ");
    out.strip_leading_spaces = read_prepend(node) == PreTokenizerStep::Prepend::never ? 0 : 1;
  } else {
    node.refuse("the decoder " + type);
  }
}

// Bytes that a token may have after the decoder's replacements, which a hostile file can make grow without end.
constexpr size_t max_decoded_token = 1 << 20;

std::string replace_all(std::string_view text, std::string_view what, std::string_view by) {
  std::string result;
  size_t done = 0;
  for (size_t at; (at = text.find(what, done)) != std::string_view::npos; done = at + what.size()) {
    result.append(text, done, at - done).append(by);
    check(result.size() <= max_decoded_token, ErrorCode::bad_file,
          "tokenizer.json: its decoder makes a token longer than 1 MiB; the file is damaged");
  }
  return result.append(text, done);
}

std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const std::string hex(token.substr(3, 2));
  if (hex.find_first_not_of("0123456789ABCDEFabcdef") != std::string::npos) return std::nullopt;
  return static_cast<char>(std::strtol(hex.c_str(), nullptr, 16));
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

}  // namespace

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

JsonDecoder read_decoder(const std::optional<JsonNode>& node) {
  check(node.has_value(), ErrorCode::bad_file,
        "tokenizer.json has no decoder, needed one; convert the tokenizer again");
  JsonDecoder decoder;
  bool fused = false;
  for_each_step(node, "decoders", [&](const JsonNode& step) { read_decoder_step(step, fused, decoder); });
  return decoder;
}

std::string JsonDecoder::decode(std::string_view token, bool is_added) const {
  if (byte_level) {
    auto bytes = is_added ? std::nullopt : byte_level_decode(token);
    return bytes ? *bytes : std::string(token);
  }
  std::string text(token);
  for (const auto& [what, by] : replacements) text = replace_all(text, what, by);
  if (byte_fallback) {
    if (const auto byte = byte_of(text)) return std::string(1, *byte);
  }
  return text;
}

JsonPostProcessor read_post_processor(const std::optional<JsonNode>& node) {
  JsonPostProcessor result;
  for_each_step(node, "processors", [&](const JsonNode& step) {
    const std::string type(step.at("type").string());
    if (type == "TemplateProcessing") read_template(step, result);
    else if (type != "ByteLevel") step.refuse("the post-processor " + type);  // ByteLevel moves offsets only
  });
  return result;
}

}  // namespace sluice
