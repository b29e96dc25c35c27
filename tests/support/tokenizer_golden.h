// The golden data of tokenizers: tests/oracle/make_tokenizer_golden.py says what the files hold.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "support/source_dir.h"
#include "text/tokenizer.h"

namespace sluice::test {

inline std::string golden_tokenizer_folder() { return (source_dir() / "tests/golden/tokenizer/").string(); }

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE_MESSAGE(file.good(), "cannot open " << path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline const std::vector<std::string>& tokenizer_corpus() {
  static const std::vector<std::string> documents = [] {
    std::vector<std::string> list;
    std::istringstream lines(read_text(golden_tokenizer_folder() + "corpus.jsonl"));
    for (std::string line; std::getline(lines, line);) list.push_back(Json::parse(line));
    return list;
  }();
  return documents;
}

inline std::string fold_hash(std::string_view bytes) {
  uint64_t h = 0xcbf29ce484222325ULL;
  for (char c : bytes) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  char text[9];
  std::snprintf(text, sizeof text, "%08x", static_cast<unsigned>((h >> 32) ^ (h & 0xffffffffU)));
  return text;
}

inline std::string ids_text(const std::vector<int32_t>& ids) {
  std::string text;
  for (int32_t id : ids) text += " " + std::to_string(id);
  return text;
}

// Offsets must come in order, lie inside the text and leave no byte out; where tokens are bytes of the text, they tile it.
inline bool offsets_are_in_order(const Encoding& encoding, std::string_view text) {
  int64_t begin = 0, end = 0;
  for (const ByteRange& range : encoding.offsets) {
    if (range.begin < begin || range.end < range.begin || range.end > static_cast<int64_t>(text.size())) return false;
    begin = range.begin, end = range.end;
  }
  return encoding.offsets.size() == encoding.ids.size() && end <= static_cast<int64_t>(text.size());
}

// Encodes and decodes the corpus and compares with <name>.expected.
inline void check_corpus(const std::string& name, const Tokenizer& tokenizer, EncodeOptions options = {}) {
  const auto& documents = tokenizer_corpus();
  std::istringstream lines(read_text(golden_tokenizer_folder() + name + ".expected"));
  size_t num_bytes = 0, num_wrong = 0, i = 0;
  for (std::string line; std::getline(lines, line); ++i) {
    REQUIRE(i < documents.size());
    std::istringstream fields(line);
    std::string ids_hash, text_hash, colon;
    size_t count = 0;
    fields >> ids_hash >> text_hash >> count >> colon;
    const Encoding encoding = tokenizer.encode(documents[i], options);
    std::string bytes(reinterpret_cast<const char*>(encoding.ids.data()), 4 * encoding.ids.size());
    const std::string decoded = tokenizer.decode(encoding.ids);
    const bool same_text = text_hash == "=" ? decoded == documents[i] : fold_hash(decoded) == text_hash;
    num_bytes += documents[i].size();
    if (encoding.ids.size() == count && fold_hash(bytes) == ids_hash && same_text &&
        offsets_are_in_order(encoding, documents[i]))
      continue;
    if (++num_wrong > 3) continue;
    std::string rest;
    std::getline(fields, rest);
    MESSAGE(name << " document " << i << ": \"" << documents[i].substr(0, 200) << "\"\n  decoded \""
                 << decoded.substr(0, 200) << "\"\n  got      " << encoding.ids.size() << ":"
                 << ids_text(encoding.ids).substr(0, 300) << "\n  expected " << count << ":" << rest.substr(0, 300));
  }
  CAPTURE(name);
  CHECK(i == documents.size());
  CHECK(num_bytes >= 1'000'000);
  CHECK(num_wrong == 0);
}

}  // namespace sluice::test
