// What the fuzz targets of tokenizer files ask of a tokenizer that loads: it encodes, and what it gives is sound.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/error.h"
#include "text/tokenizer.h"

namespace sluice {

// `load` gives a Tokenizer of `input` or throws an Error, which may not be a bug of ours.
template <class Load>
void check_tokenizer_file(std::string_view input, const Load& load) {
  try {
    const Tokenizer tokenizer = load();
    const std::string_view tail = input.substr(input.size() - std::min<size_t>(input.size(), 200));
    for (std::string_view text :
         {std::string_view("Hello, w\xC3\xB6rld\xFF 123\r\n  <s>\xE2\x96\x81x\xE5\xAD\x97"), tail}) {
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
}

}  // namespace sluice
