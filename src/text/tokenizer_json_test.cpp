#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "support/tokenizer_golden.h"
#include "text/normalizer.h"
#include "text/regex.h"
#include "text/tokenizer.h"

namespace sluice::test {
namespace {

// A byte-level tokenizer of the golden data, with changes.
Json base_json() {
  static const Json json = Json::parse(read_text(golden_tokenizer_folder() + "llama3.tokenizer.json"));
  return json;
}

std::string refusal(const Json& json, ErrorCode code = ErrorCode::bad_file) {
  try {
    Tokenizer::from_tokenizer_json(json.dump());
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "loaded";
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST_CASE("from_tokenizer_json: what is not implemented is refused by its name") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"normalizer": {"type": "Uppercase"}})", "the normalizer Uppercase"},
      {R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Martian"}]}})",
       "the normalizer Martian"},
      {R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}})", "precompiled_charsmap"},
      {R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}})", "not base64"},
      {R"({"pre_tokenizer": {"type": "RandomSplit"}})", "the pre-tokenizer RandomSplit"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]}})",
       "Digits after ByteLevel"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"}})", "&&"},
      {R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sideways"}})",
       "the behavior Sideways"},
      {R"({"decoder": {"type": "CTC"}})", "the decoder CTC"},
      {R"({"decoder": {"type": "BPEDecoder"}})", "the decoder BPEDecoder"},
      {R"({"decoder": {"type": "Metaspace", "replacement": ""}})", "Metaspace with an empty replacement"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": ""}})", "Metaspace with an empty replacement"},
      {R"({"post_processor": {"type": "RobertaProcessing"}})", "no cls"},
      {R"({"post_processor": {"type": "Martian"}})", "the post-processor Martian"},
      {R"({"model": {"type": "Unigram", "unk_id": 0, "vocab": []}})",
       "the model Unigram after a pre-tokenizer ByteLevel"},
      {R"({"pre_tokenizer": null, "model": {"type": "Unigram", "vocab": [["a", 0.0]]}})", "Unigram without unk_id"},
      {R"({"pre_tokenizer": null, "model": {"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]}})", "found 7"},
      {R"({"pre_tokenizer": null, "model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", "b"]]}})", "pairs of them"},
      {R"({"pre_tokenizer": null, "model": {"type": "WordPiece", "unk_token": "u", "vocab": {}}})", "\"u\""},
      {R"({"model": {"type": "Martian"}})", "the model Martian"},
      {R"({"model": {"type": "BPE", "end_of_word_suffix": "</w>", "vocab": {"a": 0}, "merges": []}})",
       "end_of_word_suffix"},
      {R"({"model": {"type": "BPE", "dropout": 0.1, "vocab": {"a": 0}, "merges": []}})", "dropout"},
  };
  for (const auto& [patch, name] : cases) {
    CAPTURE(patch);
    Json json = base_json();
    const Json changes = Json::parse(patch);
    for (const auto& [key, value] : changes.items()) json[key] = value;
    const std::string message = refusal(json);
    CHECK_MESSAGE(contains(message, name), message);
    CHECK_MESSAGE(contains(message, "tokenizer.json"), message);
  }
}

TEST_CASE("from_tokenizer_json: replacements that multiply a text are stopped") {
  Json steps = Json::array();
  for (int i = 0; i < 12; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100, 'a')}});
  }
  Json decoded = base_json();
  decoded["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  CHECK(contains(refusal(decoded), "longer than 1 MiB"));
  Json normalized = base_json();
  normalized["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const Tokenizer tokenizer = Tokenizer::from_tokenizer_json(normalized.dump());
  CHECK(tokenizer.encode("b").ids.size() == 1);
  CHECK_THROWS_WITH_AS(tokenizer.encode("a"), doctest::Contains("64 times longer"), Error);
}

TEST_CASE("from_tokenizer_json: a damaged file gives one line that says where") {
  const auto patched = [](const char* pointer, const Json& value) {
    Json json = base_json();
    json[Json::json_pointer(pointer)] = value;
    return refusal(json);
  };
  CHECK(contains(patched("/model/vocab", Json::parse(R"({"a": 0, "b": 0})")), "both have id 0"));
  CHECK(contains(patched("/model/vocab", Json::parse(R"({"a": -1})")), "id -1"));
  CHECK(contains(patched("/model/vocab", Json::parse(R"({"a": 99999999999})")), "needed 0 to"));
  CHECK(contains(patched("/model/vocab", Json::parse(R"({"a": "x"})")), "whole number"));
  CHECK(contains(patched("/model/merges/0", "a b c"), "two tokens"));
  CHECK(contains(patched("/model/merges/0", Json::parse(R"(["a"])")), "not a pair"));
  CHECK(contains(patched("/model/merges/0", Json::parse(R"(["zzzz", "q"])")), "\"zzzz\""));
  CHECK(contains(patched("/model/merges", nullptr), "no merges"));
  CHECK(contains(patched("/added_tokens/0/content", 7), "added_tokens[0].content: found a number, needed a string"));
  CHECK(contains(patched("/model/unk_token", "nowhere"), "\"nowhere\""));
  CHECK(contains(patched("/model", nullptr), "no model"));
  Json fallback = base_json();
  fallback["pre_tokenizer"] = nullptr;
  fallback["model"]["byte_fallback"] = true;
  CHECK(contains(refusal(fallback), "<0x00>"));
  for (const char* text : {"", "{", "[]", "null", "\xFF\xFE", "{\"model\": \"\xC3\"}"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(Tokenizer::from_tokenizer_json(text), Error);
  }
}

TEST_CASE("from_tokenizer_json: a merge that stands twice has its last rank, as in Hugging Face tokenizers") {
  Json json = base_json();
  json["pre_tokenizer"] = nullptr, json["post_processor"] = nullptr, json["added_tokens"] = nullptr;
  json["decoder"] = Json::parse(R"({"type": "Fuse"})");
  json["model"] = Json::parse(
      R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4}, "merges": ["a b", "b c", "a b"]})");
  CHECK(Tokenizer::from_tokenizer_json(json.dump()).encode("abc").ids == std::vector<int32_t>{0, 4});
}

// Expected ids: transformers 5.24 with the same files.
TEST_CASE("from_tokenizer_json: tokens that stand in other files have the ids that transformers gives them") {
  const Json json = base_json();
  const int32_t next = static_cast<int32_t>(json.at("model").at("vocab").size());
  const auto load = [&](const char* config, const char* map = "", const char* added = "") {
    return Tokenizer::from_tokenizer_json(json.dump(), TokenizerConfig::from_json(config, map, added));
  };
  const std::string decoder =
      R"({"added_tokens_decoder": {")" + std::to_string(next + 1) + R"(": {"content": "<y>", "special": true}, ")" +
      std::to_string(next) +
      R"(": {"content": "<x>", "special": false, "rstrip": true}}, "eos_token": "<y>", "pad_token": "[PAD]"})";
  const Tokenizer with_decoder = load(decoder.c_str(), R"({"eos_token": "<z>"})", R"({"<w>": 5})");
  CHECK(with_decoder.encode("<x> a<y>").ids.front() == next);
  CHECK(with_decoder.encode("<x> a<y>").ids.back() == next + 1);
  CHECK(with_decoder.eos_id() == next + 1);
  CHECK(with_decoder.stop_ids().front() == next + 1);
  CHECK(with_decoder.pad_id() == next + 2);
  CHECK_FALSE(with_decoder.is_special(next));
  CHECK(with_decoder.token_id("<w>") == std::nullopt);  // with added_tokens_decoder the other files do not count

  const std::string added = R"({"<y>": )" + std::to_string(next + 1) + R"(, "<x>": )" + std::to_string(next) + "}";
  const Tokenizer with_file = load("{}", R"({"eos_token": {"content": "<y>", "lstrip": false}})", added.c_str());
  CHECK(with_file.token_id("<x>") == next);
  CHECK(with_file.eos_id() == next + 1);
  CHECK(with_file.is_special(next + 1));
  CHECK_FALSE(with_file.is_special(next));

  const Tokenizer named =
      load(R"({"bos_token": {"content": "<b>"}, "additional_special_tokens": ["<x>", {"content": "<y>"}, "<b>"]})");
  CHECK(named.encode("<b><x><y>").ids == std::vector<int32_t>{next, next + 1, next + 2});
  CHECK(named.bos_id() == next);
  CHECK(named.decode(std::vector<int32_t>{next, next + 2}, true).empty());

  TokenizerConfig only_ids;
  only_ids.stop_ids = {3, 4};
  CHECK(Tokenizer::from_tokenizer_json(json.dump(), only_ids).eos_id() == 3);
}

TEST_CASE("from_tokenizer_json: a file that gives a token another id than the tokenizer has is refused") {
  for (const char* config : {R"({"added_tokens_decoder": {"9999": {"content": "<x>"}}})",
                             R"({"added_tokens_decoder": {"1": {"content": "<|begin_of_text|>"}}})",
                             R"({"added_tokens_decoder": {"0": {"content": "<x>"}}})"}) {
    CAPTURE(config);
    CHECK_THROWS_WITH_AS(Tokenizer::from_tokenizer_json(base_json().dump(), TokenizerConfig::from_json(config)),
                         doctest::Contains("needed one id"), Error);
  }
  CHECK_THROWS_WITH_AS(TokenizerConfig::from_json(R"({"added_tokens_decoder": {"x": {"content": "<x>"}}})"),
                       doctest::Contains("the key \"x\""), Error);
}

TEST_CASE("TokenizerConfig: names the special tokens and overrules the post-processor") {
  const std::string json = read_text(golden_tokenizer_folder() + "llama2.tokenizer.json");
  const TokenizerConfig config = TokenizerConfig::from_json(
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null, "unk_token": "<unk>", "add_bos_token": true,
          "add_eos_token": true})");
  const Tokenizer both = Tokenizer::from_tokenizer_json(json, config);
  CHECK(both.bos_id() == both.token_id("<s>"));
  CHECK(both.eos_id() == both.token_id("</s>"));
  CHECK(both.pad_id() == std::nullopt);
  CHECK(both.stop_ids() == std::vector<int32_t>{*both.eos_id()});
  const std::vector<int32_t> around = both.encode("a", {.add_special = true}).ids;
  CHECK(around.front() == both.bos_id());
  CHECK(around.back() == both.eos_id());

  TokenizerConfig without = config;
  without.add_bos_token = false, without.add_eos_token = std::nullopt, without.stop_ids = {5, 2, 9000};
  const Tokenizer none = Tokenizer::from_tokenizer_json(json, without);
  CHECK_FALSE(none.adds_bos());
  CHECK(none.encode("a", {.add_special = true}).ids == none.encode("a").ids);
  CHECK(none.stop_ids() == std::vector<int32_t>{2, 5});
}

TEST_CASE("FieldD1_encode: a rendered template that writes BOS gives exactly one, with or without the post-processor") {
  const Tokenizer tokenizer = Tokenizer::from_tokenizer_json(base_json().dump(), {.bos_token = "<|begin_of_text|>"});
  for (const char* text :
       {"<|begin_of_text|><|start_header_id|>user", "<|start_header_id|>user", "<|begin_of_text|>", "", "x"}) {
    CAPTURE(text);
    const std::vector<int32_t> ids = tokenizer.encode(text, {.add_special = true}).ids;
    CHECK(std::count(ids.begin(), ids.end(), *tokenizer.bos_id()) == 1);
    CHECK(ids[0] == tokenizer.bos_id());
  }
}

// Tokens of `whole` that lie in its first `seam` bytes, and how many straddle it.
TEST_CASE("FieldD8_encode: one pass over prompt and answer gives offsets that say what belongs to which") {
  for (const char* name : {"llama3", "smollm", "gemma", "llama2"}) {
    const Tokenizer tokenizer =
        Tokenizer::from_tokenizer_json(read_text(golden_tokenizer_folder() + std::string(name) + ".tokenizer.json"));
    for (const auto& [prompt, answer] :
         std::vector<std::pair<std::string, std::string>>{{"The answer: ", "yes"},
                                                          {"Answer:", " yes"},
                                                          {"line\n", "\nmore"},
                                                          {"x\xF0\x9F\x91", "\x8D thumb"},
                                                          {"👩\u200d", "👧"},
                                                          {"riv", "er"},
                                                          {"12", "34"},
                                                          {"a ", "  b"},
                                                          {"don", "'t"},
                                                          {"e", "\u0301"}}) {
      CAPTURE(name);
      CAPTURE(prompt);
      const std::string whole = prompt + answer;
      const Encoding once = tokenizer.encode(whole);
      CHECK(tokenizer.decode(once.ids) == whole);
      const auto seam = static_cast<int64_t>(prompt.size());
      size_t before = 0, across = 0, after = 0;
      int64_t end = 0;
      for (const ByteRange& range : once.offsets) {
        CHECK(range.begin <= end);
        (range.end <= seam ? before : range.begin >= seam ? after : across) += 1;
        end = range.end;
      }
      CHECK(end == static_cast<int64_t>(whole.size()));
      CHECK(before + across + after == once.ids.size());
    }
  }
  // "riv" + "er": a token across the seam, which two encodings would have cut.
  const Tokenizer tokenizer = Tokenizer::from_tokenizer_json(base_json().dump());
  const Encoding once = tokenizer.encode("a river");
  std::vector<int32_t> apart = tokenizer.encode("a riv").ids;
  for (int32_t id : tokenizer.encode("er").ids) apart.push_back(id);
  CHECK(once.ids != apart);
}

TEST_CASE("Regex: Oniguruma's constructs are read as Oniguruma reads them") {
  RegexScratch scratch;
  const auto found = [&](const char* pattern, const std::string& text) -> std::string {
    const auto match = Regex(pattern).find(text, 0, scratch);
    return match ? text.substr(static_cast<size_t>(match->begin), static_cast<size_t>(match->size())) : "none";
  };
  CHECK(found("\\s+", "a\u00a0\u3000\u0085b") == "\u00a0\u3000\u0085");
  CHECK(found("\\s", "a\u180eb") == "none");
  CHECK(found("[^\\s]+", "\u180e x") == "\u180e");
  CHECK(found("\\w+", "-a\u0301\u203f9\u24b6!") == "a\u0301\u203f9\u24b6");
  CHECK(found("\\bb", "ab b") == "b");
  CHECK(found("^b$", "a\nb\nc") == "b");
  CHECK(found("(?i:'S|'k)", "'\u017f") == "'\u017f");
  CHECK(found("a{,2}b", "aaab") == "aab");
  CHECK(found("\\u00e9", "caf\u00e9") == "\u00e9");
  CHECK(found("[]a]+", "x]a") == "]a");
  CHECK(found("\\p{^L}+", "ab12") == "12");
  for (const char* pattern :
       {"\\h", "[a[b]]", "[\\p{L}&&\\p{Lu}]", "(?m:a)", "(?<n>a)", "a{1,2}+", "\\X", "(", "[a", "a\\", "\\1", "*"}) {
    CAPTURE(pattern);
    CHECK_THROWS_AS(Regex{pattern}, Error);
  }
}

// U+A7F2 has a compatibility form since version 14, U+1DF7 a combining class since version 10; tokenizers 0.23 knows neither.
TEST_CASE("normalize: the forms are those of Unicode 9, as in Hugging Face tokenizers; tiktoken's those of Python") {
  using Kind = NormalizerStep::Kind;
  CHECK(normalize({{.kind = Kind::nfkc}}, "\uA7F2 \u00B9") == "\uA7F2 1");
  CHECK(normalize({{.kind = Kind::nfc}}, "a\u1DF7\u20D8") == "a\u1DF7\u20D8");
  CHECK(normalize({{.kind = Kind::nfc, .unicode_9 = false}}, "a\u1DF7\u20D8") == "a\u20D8\u1DF7");
  CHECK(normalize({{.kind = Kind::nfd}}, "\u0125\u1DFA\u0323") == "h\u0302\u1DFA\u0323");
}

TEST_CASE("encode: texts that make a pattern backtrack or a word grow come back in time") {
  const Tokenizer tokenizer = Tokenizer::from_tokenizer_json(base_json().dump());
  for (const std::string& part : {std::string(" "), std::string("\n"), std::string("a"), std::string("\u0301"),
                                  std::string("!"), std::string("\xFF")}) {
    std::string text;
    while (text.size() < 300'000) text += part;
    const Encoding encoding = tokenizer.encode(text);
    CHECK(tokenizer.decode(encoding.ids) == text);
  }
}

}  // namespace
}  // namespace sluice::test
