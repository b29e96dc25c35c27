// Any bytes either parse, with every tensor inside them, or are refused with Error(bad_file).
#include "io/file_error.h"
#include "io/safetensors.h"

volatile size_t result;  // so that no reading is optimised away

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace sluice;
  const std::span<const std::byte> file = std::as_bytes(std::span(bytes, size));
  for (TensorData data : {TensorData::required, TensorData::may_be_absent}) {
    try {
      unsigned sum = 0;
      for (const StoredTensor& t : parse_safetensors(file, "fuzz", data).tensors) {
        if (!is_utf8(t.name) || t.numel() < 0) __builtin_trap();
        if (data == TensorData::required && static_cast<uint64_t>(t.numel()) > 8 * size) __builtin_trap();
        for (std::byte b : t.data) sum += std::to_integer<unsigned>(b);  // the address sanitizer watches
      }
      result = sum;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::bad_file || !is_utf8(e.what())) __builtin_trap();
    }
  }
  return 0;
}
