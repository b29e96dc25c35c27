// Parity with Hugging Face tokenizers, SentencePiece and llama.cpp: tests/oracle/make_tokenizer_golden.py.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
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
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;
  bool add_space_prefix = true;

  static GgufArrays of_vocabulary(const std::string& name) {
    const Json json = Json::parse(read_text(folder + name + ".vocabulary.json"));
    GgufArrays arrays{.model = json.at("model"), .pre = json.at("pre")};
    arrays.tokens = json.at("tokens").get<std::vector<std::string>>();
    arrays.types = json.at("types").get<std::vector<int32_t>>();
    arrays.scores = json.at("scores").get<std::vector<float>>();
    arrays.add_space_prefix = json.at("add_space_prefix");
    return arrays;
  }

  // As a converter writes a tokenizer.json: type 3 for special tokens, 4 for other added ones.
  static GgufArrays of_tokenizer_json(const std::string& name, const std::string& model, const std::string& pre) {
    const Json json = Json::parse(read_text(folder + name + ".tokenizer.json"));
    GgufArrays arrays{.model = model, .pre = pre};
    const auto put = [&](const std::string& text, size_t id, int32_t type) {
      if (id >= arrays.tokens.size()) arrays.tokens.resize(id + 1), arrays.types.resize(id + 1, 5);
      arrays.tokens[id] = text, arrays.types[id] = type;
    };
    for (const auto& [text, id] : json.at("model").at("vocab").items()) put(text, id, text.starts_with("<0x") ? 6 : 1);
    for (const Json& token : json.at("added_tokens"))
      put(token.at("content"), token.at("id"), token.at("special") ? 3 : 4);
    for (const Json& merge : json.at("model").at("merges")) {
      arrays.merges.push_back(merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
    }
    return arrays;
  }

  Tokenizer load() const {
    const std::vector<std::string_view> token_views(tokens.begin(), tokens.end()),
        merge_views(merges.begin(), merges.end());
    return Tokenizer::from_gguf({.model = model,
                                 .pre = pre,
                                 .tokens = token_views,
                                 .types = types,
                                 .merges = merge_views,
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

// The names of the files with this ending: "gpt2" for gpt2.tokenizer.json.
std::vector<std::string> names_of(std::string_view ending) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(ending)) names.push_back(name.substr(0, name.size() - ending.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

Tokenizer load_sentencepiece(const std::string& name) {
  return Tokenizer::from_sentencepiece(read_text(folder + name + ".model"));
}

Tokenizer load_tiktoken(const std::string& name) {
  return Tokenizer::from_tiktoken(read_text(folder + name + ".tiktoken"), {}, name.substr(0, name.find('.')));
}

TEST_CASE("tokenizer.json: every tokenizer gives the ids and texts of Hugging Face tokenizers") {
  const std::vector<std::string> names = names_of(".tokenizer.json");
  CHECK(names.size() >= 20);
  for (const std::string& name : names) check_corpus(name, load_json(name));
}

TEST_CASE("tokenizer.model: every model gives the ids and texts of SentencePiece") {
  const std::vector<std::string> names = names_of(".model");
  CHECK(names.size() >= 5);
  for (const std::string& name : names) check_corpus(name, load_sentencepiece(name), {.parse_special = false});
}

TEST_CASE("tiktoken: every file gives the ids and texts of tiktoken") {
  const std::vector<std::string> names = names_of(".tiktoken");
  CHECK(names.size() >= 4);
  for (const std::string& name : names) check_corpus(name, load_tiktoken(name));
}

TEST_CASE("GGUF llama: gives the ids and texts of llama.cpp and SentencePiece") {
  for (const char* name : {"sentencepiece", "sentencepiece_no_prefix"})
    check_corpus(name, GgufArrays::of_vocabulary(name).load());
}

TEST_CASE("GGUF gpt2 and gemma4: the arrays of a tokenizer.json give what the tokenizer.json gives") {
  for (const auto& [name, pre] : std::vector<std::pair<std::string, std::string>>{{"gpt2", "gpt-2"},
                                                                                  {"smollm", "smollm"},
                                                                                  {"llama3", "llama-bpe"},
                                                                                  {"minicpm5", "minicpm5"},
                                                                                  {"gpt4o", "gpt-4o"},
                                                                                  {"tekken", "tekken"},
                                                                                  {"deepseek", "deepseek-v3"}}) {
    check_corpus(name, GgufArrays::of_tokenizer_json(name, "gpt2", pre).load());
  }
  check_corpus("gemma", GgufArrays::of_tokenizer_json("gemma", "gemma4", "").load());
}

TEST_CASE("encode: several threads that share a tokenizer get what one gets") {
  const Tokenizer tokenizer = load_json("llama3");
  const auto& documents = tokenizer_corpus();
  std::vector<std::vector<int32_t>> alone, shared(documents.size());
  for (const std::string& document : documents) alone.push_back(tokenizer.encode(document).ids);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < documents.size(); i += 4) shared[i] = tokenizer.encode(documents[i]).ids;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(shared == alone);
}

TEST_CASE("StreamDecoder: gives the text of decode, in valid pieces") {
  std::map<std::string, Tokenizer> tokenizers;
  for (const char* name :
       {"llama3", "llama2", "mistral", "bert", "bert_cased", "unigram", "unigram_whole", "wordlevel"})
    tokenizers.emplace(name, load_json(name));
  for (const std::string& name : names_of(".model")) tokenizers.emplace(name, load_sentencepiece(name));
  tokenizers.emplace("o200k", load_tiktoken("o200k_base.small"));
  for (const auto& [name, tokenizer] : tokenizers) {
    CAPTURE(name);
    for (size_t i = 0; i < tokenizer_corpus().size(); i += 37) {
      const std::vector<int32_t> ids = tokenizer.encode(tokenizer_corpus()[i]).ids;
      StreamDecoder stream(tokenizer, false, true);
      std::string text;
      bool all_valid = true;
      for (int32_t id : ids) {
        const std::string part = stream.push(id);
        all_valid = all_valid && to_valid_utf8(part) == part;
        text += part;
      }
      text += stream.finish();
      CAPTURE(i);
      CHECK(all_valid);
      CHECK(text == to_valid_utf8(tokenizer.decode(ids)));
    }
  }
}

TEST_CASE("FieldT5_tokenizer.json: spaces beside added tokens, post-processors and decoders on single texts") {
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

TEST_CASE("FieldE9_encode: BOS stands in front as the tokenizer's file says, and once, also where the text brings it") {
  std::map<std::string, Tokenizer> tokenizers;
  for (const std::string& name : names_of(".tokenizer.json")) tokenizers.emplace(name, load_json(name));
  for (const std::string& name : names_of(".model")) tokenizers.emplace(name, load_sentencepiece(name));
  for (const std::string& name : names_of(".tiktoken")) tokenizers.emplace(name, load_tiktoken(name));
  for (const char* name : {"sentencepiece", "sentencepiece_no_prefix"})
    tokenizers.emplace(name, GgufArrays::of_vocabulary(name).load());
  int with_bos = 0;
  for (const auto& [name, tokenizer] : tokenizers) {
    if (!tokenizer.bos_id()) continue;
    CAPTURE(name);
    const int32_t bos = *tokenizer.bos_id();
    const auto ids_of = [&](const std::string& text) { return tokenizer.encode(text, {.add_special = true}).ids; };
    const std::vector<int32_t> plain = ids_of("hello"),
                               brought = ids_of(std::string(tokenizer.token_text(bos)) + "hello");
    CHECK(std::count(plain.begin(), plain.end(), bos) == (tokenizer.adds_bos() ? 1 : 0));
    CHECK(std::count(brought.begin(), brought.end(), bos) == 1);
    CHECK(brought.at(0) == bos);
    if (tokenizer.adds_bos()) CHECK(plain.at(0) == bos);
    with_bos += tokenizer.adds_bos() ? 1 : 0;
  }
  CHECK(with_bos >= 8);
}

TEST_SUITE("full") {
  // Work that grows with the square of the length would take days.
  TEST_CASE("encode: a word of millions of bytes, as BERT, T5 and SentencePiece files meet it, comes back") {
    std::vector<std::pair<std::string, Tokenizer>> tokenizers;
    for (const char* name : {"bert", "bert_cased", "wordlevel", "unigram", "unigram_whole", "llama2", "gemma"})
      tokenizers.emplace_back(name, load_json(name));
    for (const std::string& name : names_of(".model")) tokenizers.emplace_back(name, load_sentencepiece(name));
    for (const auto& [name, tokenizer] : tokenizers) {
      CAPTURE(name);
      for (const std::string part : {"a", "=", "\xE2\x96\x81", "\u0301"}) {
        std::string text;
        while (text.size() < 1'000'000) text += part;
        const Encoding encoding = tokenizer.encode(text);
        CHECK(encoding.ids.size() == encoding.offsets.size());
        CHECK(encoding.ids.size() <= text.size() + 1);
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
