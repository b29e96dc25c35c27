// Any bytes as a model file of SentencePiece: it loads or is refused with an Error; what loads encodes and decodes.
#include <cstddef>
#include <cstdint>

#include "text/tokenizer_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check_tokenizer_file(input, [&] { return Tokenizer::from_sentencepiece(input); });
  return 0;
}
