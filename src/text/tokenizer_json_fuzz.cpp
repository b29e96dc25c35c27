// Any bytes as a tokenizer.json: it loads or is refused with an Error; what loads encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const Tokenizer tokenizer = Tokenizer::from_tokenizer_json(input);
    const std::string_view tail = input.substr(input.size() - std::min<size_t>(input.size(), 200));
    for (std::string_view text : {std::string_view("Hello, w\xC3\xB6rld\xFF 123\r\n  <s>\xE2\x96\x81x"), tail}) {
      const Encoding encoding = tokenizer.encode(text, {.add_special = true});
      if (encoding.ids.size() != encoding.offsets.size()) std::abort();
      StreamDecoder stream(tokenizer, false, true);
      std::string streamed;
      for (size_t i = 0; i < encoding.ids.size(); ++i) {
        if (encoding.offsets[i].begin < 0 || encoding.offsets[i].end > static_cast<int64_t>(text.size())) std::abort();
        streamed += stream.push(encoding.ids[i]);
      }
      streamed += stream.finish();
      if (to_valid_utf8(streamed) != streamed) std::abort();
      tokenizer.decode(encoding.ids);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::bug) std::abort();
  }
  return 0;
}
