#include "text/tokenizer_json_decoder.h"

#include <algorithm>
#include <array>

#include "text/byte_level.h"
#include "text/token_model.h"
#include "text/tokenizer_json_steps.h"

namespace sluice {
namespace {

using Step = JsonDecoder::Step;
using Kind = Step::Kind;

// Bytes that a token may have after the decoder's replacements, which a hostile file can make grow without end.
constexpr size_t max_decoded_token = 1 << 20;

void check_length(size_t size) {
  check(size <= max_decoded_token, ErrorCode::bad_file,
        "tokenizer.json: its decoder makes a token longer than 1 MiB; the file is damaged");
}

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  size_t at = text.find(what);
  if (at == std::string::npos) return;
  std::string result;
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(what, done)) {
    result.append(text, done, at - done).append(by);
    check_length(result.size());
    done = at + what.size();
  }
  text = result.append(text, done);
}

void replace_pattern(std::string& text, const Regex& pattern, std::string_view by, RegexScratch& scratch) {
  if (!pattern.find(text, 0, scratch)) return;
  const Normalizer step{{.kind = NormalizerStep::Kind::replace, .pattern = pattern, .text = std::string(by)}};
  text = normalize(step, AlignedText(text, 0), scratch).text();
  check_length(text.size());
}

void strip(std::string& text, const Step& step) {
  for (int64_t i = 0; i < step.start && text.starts_with(step.text); ++i) text.erase(0, step.text.size());
  for (int64_t i = 0; i < step.stop && text.ends_with(step.text); ++i) text.erase(text.size() - step.text.size());
}

// Hugging Face tokenizers' clean-up after WordPiece (decoders/wordpiece.rs).
void clean_up(std::string& text) {
  constexpr std::array<std::array<std::string_view, 2>, 11> pairs = {{{" .", "."},
                                                                      {" ?", "?"},
                                                                      {" !", "!"},
                                                                      {" ,", ","},
                                                                      {" ' ", "'"},
                                                                      {" n't", "n't"},
                                                                      {" 'm", "'m"},
                                                                      {" do not", " don't"},
                                                                      {" 's", "'s"},
                                                                      {" 've", "'ve"},
                                                                      {" 're", "'re"}}};
  for (const auto& [what, by] : pairs) replace_all(text, what, by);
}

void apply(const Step& step, std::string& text, bool is_added, bool first, RegexScratch& scratch) {
  switch (step.kind) {
    case Kind::byte_level:
      if (!is_added) text = byte_level_decode(text).value_or(text);
      return;
    case Kind::byte_fallback:
      if (const auto byte = byte_of_token_text(text)) text.assign(1, static_cast<char>(*byte));
      return;
    case Kind::replace:
      if (step.pattern) return replace_pattern(text, *step.pattern, step.text, scratch);
      return replace_all(text, step.what, step.text);
    case Kind::strip: return strip(text, step);
    case Kind::metaspace: return replace_all(text, step.text, first && step.first ? "" : " ");
    case Kind::word_piece:
      if (!first && text.starts_with(step.text)) text.erase(0, step.text.size());
      else if (!first) text.insert(0, " ");
      if (step.clean) clean_up(text);
      return;
    case Kind::separate:
      if (!first) text.insert(0, " ");
  }
}

void read_strip(const JsonNode& node, bool fused, JsonDecoder& out) {
  const std::string text(node.at("content").string());
  const int64_t start = std::max<int64_t>(0, node.at("start").integer()),
                stop = std::max<int64_t>(0, node.at("stop").integer());
  if (text.empty()) node.refuse("Strip of an empty text");
  if (!fused) return out.steps.push_back({.kind = Kind::strip, .text = text, .start = start, .stop = stop});
  if (text != " " || stop != 0) node.refuse("Strip other than of spaces at the start after Fuse");
  out.strip_leading_spaces = static_cast<size_t>(start);
}

void read_decoder_step(const JsonNode& node, bool& fused, JsonDecoder& out) {
  const std::string type(node.at("type").string());
  if (type == "Fuse") {
    fused = true;
    return;
  }
  if (type == "Strip") return read_strip(node, fused, out);
  if (fused) node.refuse(type + " after Fuse");
  const auto seen = [&](Kind kind) {
    return std::any_of(out.steps.begin(), out.steps.end(), [&](const Step& step) { return step.kind == kind; });
  };
  if (seen(Kind::byte_fallback) && type != "Metaspace") node.refuse(type + " after ByteFallback");
  if (type == "ByteLevel") {
    out.steps.push_back({.kind = Kind::byte_level});
  } else if (type == "ByteFallback") {
    out.steps.push_back({.kind = Kind::byte_fallback});
  } else if (type == "Replace") {
    const auto text = node.at("pattern").find("String");
    if (text && text->string().empty()) node.refuse("Replace of an empty text");
    out.steps.push_back({.kind = Kind::replace,
                         .pattern = text ? std::nullopt : std::optional(read_pattern(node)),
                         .text = std::string(node.at("content").string()),
                         .what = std::string(text ? text->string() : "")});
  } else if (type == "Metaspace") {
    out.steps.push_back({.kind = Kind::metaspace,
                         .text = read_mark(node),
                         .first = read_prepend(node) != PreTokenizerStep::Prepend::never});
  } else if (type == "WordPiece") {
    out.steps.push_back({.kind = Kind::word_piece,
                         .text = std::string(node.string_or("prefix", "##")),
                         .clean = node.boolean_or("cleanup", true)});
  } else {
    node.refuse("the decoder " + type);
  }
}

}  // namespace

JsonDecoder read_decoder(const std::optional<JsonNode>& node) {
  JsonDecoder decoder;
  if (!node) {
    decoder.steps.push_back({.kind = Kind::separate});
    return decoder;
  }
  bool fused = false;
  for_each_step(node, "decoders", [&](const JsonNode& step) { read_decoder_step(step, fused, decoder); });
  return decoder;
}

std::string JsonDecoder::decode(std::string_view token, bool is_added, bool first, RegexScratch& scratch) const {
  std::string text(token);
  for (const Step& step : steps) apply(step, text, is_added, first, scratch);
  return text;
}

bool JsonDecoder::knows_the_first() const {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) {
    return step.kind == Kind::word_piece || step.kind == Kind::separate || (step.kind == Kind::metaspace && step.first);
  });
}

}  // namespace sluice
