#include "text/tokenizer.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "text/byte_level.h"

namespace sluice {
namespace {

// A byte-level vocabulary: <s>, <|im_end|>, the 256 bytes, and the merges given.
struct TinyGguf {
  std::vector<std::string> texts{"<s>", "<|im_end|>"};
  std::vector<std::string> merge_texts;
  std::vector<std::string_view> tokens, merges;
  std::vector<int32_t> types{3, 3};
  GgufVocabulary file;

  explicit TinyGguf(const std::vector<std::string>& merge_list) : merge_texts(merge_list) {
    for (int byte = 0; byte < 256; ++byte) texts.push_back(byte_level_encode(std::string(1, static_cast<char>(byte))));
    for (const std::string& merge : merge_list) {
      const size_t space = merge.find(' ');
      texts.push_back(merge.substr(0, space) + merge.substr(space + 1));
    }
    types.resize(texts.size(), 1);
    tokens.assign(texts.begin(), texts.end());
    merges.assign(merge_texts.begin(), merge_texts.end());
    file = {.model = "gpt2",
            .pre = "smollm",
            .tokens = tokens,
            .types = types,
            .merges = merges,
            .bos_id = 0,
            .eos_id = 1,
            .add_bos = true};
  }
};

std::vector<std::string> texts_of(const Tokenizer& tokenizer, const Encoding& encoding) {
  std::vector<std::string> texts;
  for (int32_t id : encoding.ids) texts.emplace_back(tokenizer.token_text(id));
  return texts;
}

using Texts = std::vector<std::string>;

TEST_CASE("encode: merges go by rank, the leftmost first, inside words only") {
  const TinyGguf tiny({"a b", "b c", "ab c", "Ġ a"});
  const Tokenizer tokenizer = Tokenizer::from_gguf(tiny.file);
  CHECK(texts_of(tokenizer, tokenizer.encode("abc")) == Texts{"abc"});
  CHECK(texts_of(tokenizer, tokenizer.encode("bcab")) == Texts{"bc", "ab"});
  CHECK(texts_of(tokenizer, tokenizer.encode("ab 12")) == Texts{"ab", "Ġ", "1", "2"});
  CHECK(texts_of(tokenizer, tokenizer.encode("b a")) == Texts{"b", "Ġa"});
}

TEST_CASE("encode: a long word gives the tokens of the same rule by plain loops") {
  const TinyGguf tiny({"a a", "b a", "aa aa", "aa b", "aaaa aaaa"});
  const Tokenizer tokenizer = Tokenizer::from_gguf(tiny.file);
  std::string word;
  for (int i = 0; i < 500; ++i) word += (i * i + i / 7) % 5 == 1 ? 'b' : 'a';
  Texts plain;
  for (char c : word) plain.emplace_back(1, c);
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"a", "a"}, {"b", "a"}, {"aa", "aa"}, {"aa", "b"}, {"aaaa", "aaaa"}};
  for (bool merged = true; merged;) {
    merged = false;
    for (const auto& [left, right] : merges) {
      for (size_t i = 0; i + 1 < plain.size() && !merged; ++i) {
        if (plain[i] != left || plain[i + 1] != right) continue;
        plain[i] += plain[i + 1];
        plain.erase(plain.begin() + static_cast<ptrdiff_t>(i) + 1);
        merged = true;
      }
      if (merged) break;
    }
  }
  CHECK(texts_of(tokenizer, tokenizer.encode(word)) == plain);
}

TEST_CASE("encode: special tokens in the text are tokens only when parse_special says so") {
  const TinyGguf tiny({"a b"});
  const Tokenizer tokenizer = Tokenizer::from_gguf(tiny.file);
  CHECK(texts_of(tokenizer, tokenizer.encode("a<|im_end|>")) == Texts{"a", "<|im_end|>"});
  const Encoding plain = tokenizer.encode("a<|im_end|>", {.parse_special = false});
  CHECK(plain.ids.size() == 11);
  CHECK(tokenizer.decode(plain.ids) == "a<|im_end|>");
}

TEST_CASE("FieldD1_encode: a text that starts with BOS gets no second one") {
  const TinyGguf tiny({"a b"});
  const Tokenizer tokenizer = Tokenizer::from_gguf(tiny.file);
  CHECK(texts_of(tokenizer, tokenizer.encode("a", {.add_special = true})) == Texts{"<s>", "a"});
  CHECK(texts_of(tokenizer, tokenizer.encode("<s>a", {.add_special = true})) == Texts{"<s>", "a"});
  CHECK(texts_of(tokenizer, tokenizer.encode("", {.add_special = true})) == Texts{"<s>"});
}

TEST_CASE("encode: offsets tile the text, also inside a character and through bytes that are no character") {
  const TinyGguf tiny({"a b"});
  const Tokenizer tokenizer = Tokenizer::from_gguf(tiny.file);
  const std::string text = "ab é\xF0\x9F\x98<|im_end|>\xFF\x80 ab";
  const Encoding encoding = tokenizer.encode(text, {.add_special = true});
  REQUIRE(encoding.offsets.size() == encoding.ids.size());
  CHECK(encoding.offsets[0] == ByteRange{0, 0});
  int64_t end = 0;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    CHECK(encoding.offsets[i].begin == end);
    end = encoding.offsets[i].end;
    if (i > 0) {
      CHECK(tokenizer.token_bytes(encoding.ids[i]) ==
            std::string_view(text).substr(static_cast<size_t>(encoding.offsets[i].begin),
                                          static_cast<size_t>(encoding.offsets[i].size())));
    }
  }
  CHECK(end == static_cast<int64_t>(text.size()));
  CHECK(tokenizer.decode(encoding.ids, true) == "ab é\xF0\x9F\x98\xFF\x80 ab");
}

TEST_CASE("from_gguf: what is not implemented is refused by name") {
  TinyGguf tiny({"a b"});
  const auto message = [&] {
    try {
      Tokenizer::from_gguf(tiny.file);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::bad_file);
      return std::string(error.what());
    }
    return std::string();
  };
  tiny.file.pre = "martian";
  CHECK(message().find("\"martian\"") != std::string::npos);
  CHECK(message().find("smollm") != std::string::npos);
  tiny.file.pre = "smollm";
  tiny.file.model = "bert";
  CHECK(message().find("\"bert\"") != std::string::npos);
}

TEST_CASE("StreamDecoder: gives whole characters only, and U+FFFD for what cannot become one") {
  const TinyGguf tiny({"a b"});
  const Tokenizer tokenizer = Tokenizer::from_gguf(tiny.file);
  StreamDecoder decoder(tokenizer);
  std::vector<std::string> parts;
  for (int32_t id : tokenizer.encode("x😀\xF0\x9F!\xE2\x82").ids) parts.push_back(decoder.push(id));
  parts.push_back(decoder.finish());
  CHECK(parts == Texts{"x", "", "", "", "😀", "", "", "\uFFFD!", "", "", "\uFFFD"});
}

}  // namespace
}  // namespace sluice
