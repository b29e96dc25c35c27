// Parity with Hugging Face tokenizers, SentencePiece and llama.cpp: tests/oracle/make_tokenizer_golden.py.
#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "support/tokenizer_golden.h"
#include "text/tokenizer.h"

namespace sluice::test {
namespace {

const std::string folder = golden_tokenizer_folder();

Tokenizer load_json(const std::string& name) {
  return Tokenizer::from_tokenizer_json(read_text(folder + name + ".tokenizer.json"));
}

// The arrays of a GGUF file, kept alive while a tokenizer is made of them.
struct GgufArrays {
  std::string model, pre;
  std::vector<std::string> tokens;
  std::vector<std::string_view> token_views;
  std::vector<int32_t> types;
  std::vector<float> scores;
  bool add_space_prefix;

  explicit GgufArrays(const std::string& name) {
    const Json json = Json::parse(read_text(folder + name + ".vocabulary.json"));
    model = json.at("model"), pre = json.at("pre");
    tokens = json.at("tokens").get<std::vector<std::string>>();
    types = json.at("types").get<std::vector<int32_t>>();
    scores = json.at("scores").get<std::vector<float>>();
    add_space_prefix = json.at("add_space_prefix");
    token_views.assign(tokens.begin(), tokens.end());
  }
  Tokenizer load() const {
    return Tokenizer::from_gguf({.model = model,
                                 .pre = pre,
                                 .tokens = token_views,
                                 .types = types,
                                 .scores = scores,
                                 .bos_id = 1,
                                 .eos_id = 2,
                                 .unk_id = 0,
                                 .add_space_prefix = add_space_prefix});
  }
};

// The judge writes a second BOS or EOS around a text that has one; Sluice does not.
std::vector<int32_t> without_doubles(const Tokenizer& tokenizer, std::vector<int32_t> ids) {
  const size_t n = ids.size();
  if (n >= 3 && ids[n - 1] == ids[n - 2] && tokenizer.token_text(ids[n - 1]) == "</s>") ids.pop_back();
  if (n >= 2 && ids[0] == ids[1] && tokenizer.bos_id() == ids[0]) ids.erase(ids.begin());
  return ids;
}

TEST_CASE("tokenizer.json: byte-level tokenizers give the ids and texts of Hugging Face tokenizers") {
  for (const char* name : {"gpt2", "smollm", "llama3", "qwen2", "minicpm5", "gpt4o", "tekken", "deepseek", "prefix"}) {
    check_corpus(name, load_json(name));
  }
}

TEST_CASE("tokenizer.json: tokenizers over pieces give the ids and texts of Hugging Face tokenizers") {
  for (const char* name : {"gemma", "llama2", "mistral", "metaspace", "words", "splits"})
    check_corpus(name, load_json(name));
}

TEST_CASE("GGUF llama: gives the ids and texts of llama.cpp and SentencePiece") {
  for (const char* name : {"sentencepiece", "sentencepiece_no_prefix"}) check_corpus(name, GgufArrays(name).load());
}

TEST_CASE("tokenizer.json: added tokens, post-processors and decoders on single texts") {
  std::string loaded;
  std::optional<Tokenizer> tokenizer;
  for (const Json& one : Json::parse(read_text(folder + "cases.json"))) {
    const std::string name = one.at("tokenizer"), text = one.at("text");
    if (name != loaded) tokenizer = load_json(loaded = name);
    CAPTURE(name);
    CAPTURE(text);
    const EncodeOptions options{.add_special = one.at("add_special"), .parse_special = one.at("parse_special")};
    CAPTURE(options.add_special);
    CAPTURE(options.parse_special);
    const std::vector<int32_t> ids = one.at("ids");
    const Encoding encoding = tokenizer->encode(text, options);
    CHECK(encoding.ids == (options.add_special ? without_doubles(*tokenizer, ids) : ids));
    CHECK(tokenizer->decode(ids) == one.at("decoded"));
    CHECK(tokenizer->decode(ids, true) == one.at("decoded_skip"));
  }
}

}  // namespace
}  // namespace sluice::test
