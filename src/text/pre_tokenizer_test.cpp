#include "text/pre_tokenizer.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "core/json.h"
#include "support/tokenizer_golden.h"
#include "text/tokenizer_json_steps.h"

namespace sluice::test {
namespace {

std::vector<std::string> pieces_of(const PreTokenizer& steps, const std::string& source) {
  AlignedText text(source, 0);
  PreTokenizerScratch scratch;
  std::vector<ByteRange> words;
  pre_tokenize(steps, text, scratch, words);
  std::vector<std::string> pieces;
  for (const ByteRange& word : words)
    pieces.emplace_back(text.text().substr(static_cast<size_t>(word.begin), static_cast<size_t>(word.size())));
  return pieces;
}

TEST_CASE("pre_tokenize: every step cuts as Hugging Face tokenizers does") {
  for (const Json& one : Json::parse(read_text(golden_tokenizer_folder() + "splits.json"))) {
    CAPTURE(one.dump());
    const std::string config = one.at("pre_tokenizer").dump();
    simdjson::dom::parser parser;
    const JsonNode node(parser.parse(config), "pre_tokenizer");
    const std::vector<std::string> pieces = one.at("pieces");
    CHECK(pieces_of(read_pre_tokenizer(node).steps, one.at("text")) == pieces);
  }
}

TEST_CASE("pre_tokenize: words know which bytes of the source they came from, through changes of the text") {
  const std::string source = "xx a  b";
  AlignedText text = AlignedText(source, 0).slice({2, 7});  // " a  b"
  PreTokenizerScratch scratch;
  std::vector<ByteRange> words;
  const PreTokenizer steps = {{.kind = PreTokenizerStep::Kind::metaspace, .text = "▁"},
                              {.pattern = Regex::literal("▁"), .behavior = SplitBehavior::merged_with_next}};
  pre_tokenize(steps, text, scratch, words);
  std::vector<ByteRange> sources;
  for (const ByteRange& word : words)
    sources.push_back(text.source(static_cast<size_t>(word.begin), static_cast<size_t>(word.end)));
  CHECK(text.text() == "▁a▁▁b");
  CHECK(sources == std::vector<ByteRange>{{2, 4}, {4, 5}, {5, 7}});
}

TEST_CASE("normalize: a composed character comes from all its parts, and its neighbours from themselves") {
  RegexScratch scratch;
  const std::string source = "ae\u0301z\u212b \u1100\u1161\u11a8x";
  const AlignedText text = normalize({{.kind = NormalizerStep::Kind::nfc}}, AlignedText(source, 10), scratch);
  CHECK(text.text() == "a\u00e9z\u00c5 \uac01x");
  CHECK(text.source(0, 1) == ByteRange{10, 11});
  CHECK(text.source(1, 3) == ByteRange{11, 14});    // é from e and U+0301
  CHECK(text.source(3, 4) == ByteRange{14, 15});    // z
  CHECK(text.source(4, 6) == ByteRange{15, 18});    // Å from U+212B
  CHECK(text.source(7, 10) == ByteRange{19, 28});   // 각 from three letters
  CHECK(text.source(10, 11) == ByteRange{28, 29});  // x
}

}  // namespace
}  // namespace sluice::test
