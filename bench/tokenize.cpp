// Encodes the documents of a file with one tokenizer file, for tests/oracle/compare_tokenizers.py: writes what it gets, or times it.
//
//   tokenize TOKENIZER CORPUS.jsonl dump OUT      for each document: number of ids, ids, begins, ends (int32), decoded size, bytes
//                                                 (SentencePiece does not read special tokens in a text: then neither do we)
//   tokenize TOKENIZER CORPUS.jsonl time THREADS  seconds of the fastest of five passes over all documents
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/json.h"
#include "text/tokenizer.h"

namespace {

using namespace sluice;

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A file of tiktoken may name its scheme: cl100k_base.small.tiktoken.
Tokenizer load(const std::string& path) {
  const std::string text = read_text(path), name = path.substr(path.rfind('/') + 1);
  if (path.ends_with(".json")) return Tokenizer::from_tokenizer_json(text);
  if (!is_tiktoken(text)) return Tokenizer::from_sentencepiece(text);
  const size_t small = name.find(".small.");
  return Tokenizer::from_tiktoken(
      text, {}, small == std::string::npos ? std::string_view() : std::string_view(name).substr(0, small));
}

void dump(const Tokenizer& tokenizer, const std::vector<std::string>& documents, bool parse_special,
          const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  const auto put = [&](int64_t value) {
    const auto number = static_cast<int32_t>(value);
    out.write(reinterpret_cast<const char*>(&number), sizeof number);
  };
  for (const std::string& document : documents) {
    const Encoding encoding = tokenizer.encode(document, {.parse_special = parse_special});
    const std::string text = tokenizer.decode(encoding.ids);
    put(static_cast<int64_t>(encoding.ids.size()));
    for (int32_t id : encoding.ids) put(id);
    for (const ByteRange& range : encoding.offsets) put(range.begin);
    for (const ByteRange& range : encoding.offsets) put(range.end);
    put(static_cast<int64_t>(text.size()));
    out << text;
  }
}

double fastest_pass(const Tokenizer& tokenizer, const std::vector<std::string>& documents, int num_threads) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < 5; ++pass) {
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t i; (i = next++) < documents.size();) tokenizer.encode(documents[i]);
    };
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int t = 1; t < num_threads; ++t) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    fastest = std::min(fastest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return fastest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return std::fprintf(stderr, "tokenize TOKENIZER CORPUS.jsonl dump OUT | time THREADS\n"), 2;
  try {
    const Tokenizer tokenizer = load(argv[1]);
    std::vector<std::string> documents;
    std::ifstream lines(argv[2]);
    for (std::string line; std::getline(lines, line);) documents.push_back(Json::parse(line));
    if (std::string(argv[3]) == "dump") dump(tokenizer, documents, !std::string(argv[1]).ends_with(".model"), argv[4]);
    else std::printf("%.6f\n", fastest_pass(tokenizer, documents, std::stoi(argv[4])));
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
