// Any bytes either parse, with every tensor and value inside them, or are refused with Error(bad_file).
#include "io/file_error.h"
#include "io/gguf.h"

namespace {

using namespace sluice;

unsigned touch(const GgufValue& value) {
  unsigned sum = static_cast<unsigned>(value.number().value_or(0) > 0);
  if (const auto text = value.string()) {
    for (char c : *text) sum += static_cast<unsigned char>(c);
  }
  for (std::string_view text : value.strings()) sum += static_cast<unsigned>(text.size());
  sum += static_cast<unsigned>(value.integers().size() + value.numbers().size());
  value.for_each([&](const GgufValue& element) {
    sum += touch(element);
    return true;
  });
  return sum;
}

}  // namespace

volatile size_t result;  // so that no reading is optimised away

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::span<const std::byte> file = std::as_bytes(std::span(bytes, size));
  for (TensorData data : {TensorData::required, TensorData::may_be_absent}) {
    try {
      const GgufHeader header = parse_gguf(file, "fuzz", data);
      unsigned sum = 0;
      for (const StoredTensor& t : header.tensors) {
        if (!is_utf8(t.name) || t.numel() <= 0) __builtin_trap();
        for (std::byte b : t.data) sum += std::to_integer<unsigned>(b);  // the address sanitizer watches
      }
      for (const auto& [key, value] : header.metadata) sum += touch(value);
      result = sum + gguf_metadata_json(header).dump().size();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::bad_file || !is_utf8(e.what())) __builtin_trap();
    }
  }
  return 0;
}
