// A byte-level tokenizer of plain data: the 256 bytes, two merges, two special tokens. Chat rows use the ChatML template.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace sluice::test {

inline constexpr const char* chatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

inline std::string utf8(uint32_t code) {
  std::string out;
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else {
    out.push_back(static_cast<char>(0xC0 | code >> 6));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
  return out;
}

// GPT-2's letters for bytes: the printable ones stand for themselves, the others for 256, 257, …
inline std::vector<std::string> byte_letters() {
  std::vector<std::string> letters(256);
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    letters[b] = utf8(printable ? b : next++);
  }
  return letters;
}

// Byte b is token b; 256 is "ab", 257 " a" ("Ġa"), 258 <|im_start|>, 259 <|im_end|>: both EOS and padding.
struct Letters {
  std::vector<std::string> texts = byte_letters();
  std::vector<std::string> merges = {"a b", "Ġ a"};
  ModelText model(bool with_template) {
    for (const char* text : {"ab", "Ġa", "<|im_start|>", "<|im_end|>"}) texts.emplace_back(text);
    std::vector<std::string_view> tokens(texts.begin(), texts.end()), pairs(merges.begin(), merges.end());
    std::vector<int32_t> types(tokens.size(), 1);
    types[258] = types[259] = 3;
    GgufVocabulary v;
    v.model = "gpt2";
    v.pre = "smollm";
    v.tokens = tokens;
    v.types = types;
    v.merges = pairs;
    v.eos_id = 259;
    v.pad_id = 259;
    v.add_bos = false;
    ModelText text{.tokenizer = Tokenizer::from_gguf(v)};
    if (with_template) text.chat = ChatTemplate::from_sources({{.text = chatml}}, {.stops = {"<|im_end|>"}});
    return text;
  }
};

inline const ModelText& chat_model() {
  static const ModelText text = Letters().model(true);
  return text;
}
inline const ModelText& base_model() {
  static const ModelText text = Letters().model(false);
  return text;
}

// What a row's supervised tokens spell, special tokens written out.
inline std::string learned(const Sample& sample, const ModelText& text) {
  std::vector<int32_t> ids;
  for (size_t t = 0; t < sample.ids.size(); ++t) {
    if (sample.supervised[t] != 0) ids.push_back(sample.ids[t]);
  }
  return text.tokenizer.decode(ids);
}

// A file that is removed again.
struct File {
  std::string path;
  explicit File(const std::string& content) {
    static int count = 0;
    path = (std::filesystem::temp_directory_path() /
            ("sluice_data_test_" + std::to_string(::getpid()) + "_" + std::to_string(count++)))
               .string();
    std::ofstream(path, std::ios::binary) << content;
  }
  ~File() { std::filesystem::remove(path); }
};

}  // namespace sluice::test
