// The pre-tokenizers that a GGUF file names in tokenizer.ggml.pre.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct GgufPreTokenizer {
  std::vector<std::string_view> names;
  std::vector<std::string> patterns;  // applied one after the other; every match is a word, and so is what lies between
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

// Throws Error(bad_file) for an unknown name, listing the known ones.
const GgufPreTokenizer& gguf_pre_tokenizer(std::string_view name);

// GPT-2's pattern, also that of Hugging Face's ByteLevel.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace sluice
