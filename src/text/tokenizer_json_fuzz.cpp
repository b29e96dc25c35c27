// Any bytes as a tokenizer.json, and as the files beside it: they load or are refused with an Error; what loads encodes and decodes.
#include <cstddef>
#include <cstdint>

#include "text/tokenizer_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check_tokenizer_file(input, [&] { return Tokenizer::from_tokenizer_json(input); });
  check_tokenizer_file(input, [&] {
    return Tokenizer::from_tokenizer_json(
        R"({"model": {"type": "WordLevel", "vocab": {"u": 0, "Hello": 1}, "unk_token": "u"}})",
        TokenizerConfig::from_json(input, input, input));
  });
  return 0;
}
