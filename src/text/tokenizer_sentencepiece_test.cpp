#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace sluice::test {
namespace {

// A field of a protobuf message that is short: a number, or bytes.
std::string field(int number, int value) { return {static_cast<char>(number << 3), static_cast<char>(value)}; }
std::string field(int number, std::string_view bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())}.append(bytes);
}

constexpr int normal = 1, unknown = 2, control = 3;

// <unk> <s> </s> and the letters a to e.
std::string small_model() {
  std::string file;
  const auto piece = [&](std::string_view text, int type) { file += field(1, field(1, text) + field(3, type)); };
  piece("<unk>", unknown);
  piece("<s>", control);
  piece("</s>", control);
  for (std::string_view text : {"a", "b", "c", "d", "e"}) piece(text, normal);
  return file + field(2, field(3, 1));
}

TEST_CASE("from_sentencepiece: a token of added_tokens.json follows the pieces, those that no text is included") {
  const TokenizerConfig config = TokenizerConfig::from_json("", "", R"({"<new>": 8})");
  const Tokenizer tokenizer = Tokenizer::from_sentencepiece(small_model(), config);
  CHECK(tokenizer.token_id("<new>") == 8);
  CHECK(tokenizer.token_text(5) == "c");
  CHECK(tokenizer.vocab_size() == 9);
  CHECK(tokenizer.decode(std::vector<int32_t>{3, 8}) == "a<new>");
}

TEST_CASE("from_sentencepiece: a token that is named alone takes the next id, and no piece's") {
  const TokenizerConfig config = TokenizerConfig::from_json(R"({"additional_special_tokens": ["<new>"]})");
  CHECK(Tokenizer::from_sentencepiece(small_model(), config).token_id("<new>") == 8);
}

}  // namespace
}  // namespace sluice::test
