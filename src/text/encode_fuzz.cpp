// Any bytes as a text, for a byte-level and for a byte-fallback tokenizer: decoding gives the text back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace {

using namespace sluice;

Tokenizer byte_level() {
  std::vector<std::string> texts{"<s>", "<|im_end|>", "  "};
  std::vector<int32_t> types{3, 3, 4};
  for (int byte = 0; byte < 256; ++byte) texts.push_back(byte_level_encode(std::string(1, static_cast<char>(byte))));
  const std::vector<std::string_view> merges = {"a a", "a b", "aa aa", "Ġ a", "Ġ Ġ", "Ã ©"};
  for (std::string_view merge : merges) {
    const size_t space = merge.find(' ');
    texts.push_back(std::string(merge.substr(0, space)) + std::string(merge.substr(space + 1)));
  }
  types.resize(texts.size(), 1);
  const std::vector<std::string_view> tokens(texts.begin(), texts.end());
  return Tokenizer::from_gguf(
      {.model = "gpt2", .pre = "llama-bpe", .tokens = tokens, .types = types, .merges = merges, .bos_id = 0});
}

Tokenizer pieces() {
  std::vector<std::string> texts{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view hex = "0123456789ABCDEF";
    texts.push_back({'<', '0', 'x', hex[static_cast<size_t>(byte / 16)], hex[static_cast<size_t>(byte % 16)], '>'});
  }
  types.resize(texts.size(), 6);
  for (const char* piece : {"▁", "a", "b", "▁a", "aa", "é", "▁▁", "aaaa", "ab"}) texts.emplace_back(piece);
  types.resize(texts.size(), 1);
  std::vector<float> scores(texts.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = -static_cast<float>(i % 7);
  const std::vector<std::string_view> tokens(texts.begin(), texts.end());
  return Tokenizer::from_gguf(
      {.model = "llama", .tokens = tokens, .types = types, .scores = scores, .add_space_prefix = false});
}

// ▁ of the text and the mark of a space are one character for pieces.
std::string without_marks(std::string text) {
  for (size_t at = text.find("\xE2\x96\x81"); at != std::string::npos; at = text.find("\xE2\x96\x81"))
    text.replace(at, 3, " ");
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer bytes = byte_level(), marks = pieces();
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (bytes.decode(bytes.encode(text).ids) != text) std::abort();
  if (marks.decode(marks.encode(text, {.parse_special = false}).ids) != without_marks(text)) std::abort();
  return 0;
}
