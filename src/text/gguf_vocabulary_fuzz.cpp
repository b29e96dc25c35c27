// Any bytes as the arrays of a GGUF vocabulary: a first byte for the model, then a line for each token: type, score, text; lines
// with a space in their text are merges.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/tokenizer_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  constexpr std::string_view models[] = {"gpt2", "llama", "gemma4", "bert"};
  GgufVocabulary file{.model = models[size > 0 ? data[0] % 4 : 0], .pre = "smollm", .bos_id = 1, .eos_id = 2};
  std::vector<std::string_view> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;
  for (size_t begin = std::min<size_t>(1, size); begin < size;) {
    const size_t end = std::min(input.find('\n', begin), size);
    const std::string_view line = input.substr(begin, end - begin);
    begin = end + 1;
    if (line.size() < 2) continue;
    const std::string_view text = line.substr(2);
    if (text.find(' ') != std::string_view::npos) merges.push_back(text);
    else tokens.push_back(text), types.push_back(line[0] - '0'), scores.push_back(static_cast<float>('0' - line[1]));
  }
  file.tokens = tokens, file.merges = merges, file.types = types, file.scores = scores;
  check_tokenizer_file(input, [&] { return Tokenizer::from_gguf(file); });
  return 0;
}
