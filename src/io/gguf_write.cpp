#include "io/gguf_write.h"

#include "core/error.h"
#include "io/atomic_file.h"
#include "io/gguf.h"

namespace sluice {

namespace {

constexpr uint64_t alignment = 32;  // the format's default
constexpr uint32_t type_f32 = 0;    // of a tensor

class Bytes {
 public:
  template <class T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void string(const std::string& value) {
    number<uint64_t>(value.size());
    text_ += value;
  }
  void pad() { text_.resize((text_.size() + alignment - 1) / alignment * alignment, '\0'); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

void write_gguf(const std::string& path, const std::vector<std::pair<std::string, GgufScalar>>& metadata,
                const std::vector<GgufTensorToWrite>& tensors) {
  Bytes header;
  header.number<uint32_t>(0x46554747);  // "GGUF"
  header.number<uint32_t>(3);
  header.number<uint64_t>(tensors.size());
  header.number<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    header.string(key);
    if (const auto* text = std::get_if<std::string>(&value)) {
      header.number(static_cast<uint32_t>(GgufType::string));
      header.string(*text);
    } else if (const auto* count = std::get_if<uint32_t>(&value)) {
      header.number(static_cast<uint32_t>(GgufType::u32));
      header.number(*count);
    } else {
      header.number(static_cast<uint32_t>(GgufType::f32));
      header.number(std::get<float>(value));
    }
  }
  uint64_t offset = 0;
  for (const GgufTensorToWrite& t : tensors) {
    uint64_t count = 1;
    for (int64_t extent : t.shape) count *= static_cast<uint64_t>(extent);
    SLUICE_ASSERT(count == t.values.size());
    header.string(t.name);
    header.number(static_cast<uint32_t>(t.shape.size()));
    for (size_t i = t.shape.size(); i-- > 0;) header.number(static_cast<uint64_t>(t.shape[i]));  // innermost first
    header.number(type_f32);
    header.number(offset);
    offset += (count * sizeof(float) + alignment - 1) / alignment * alignment;
  }
  header.pad();
  AtomicFile file(path, header.text().size() + offset);
  file.write(header.text());
  for (const GgufTensorToWrite& t : tensors) {
    file.write(std::as_bytes(t.values));
    file.write(std::string(static_cast<size_t>((alignment - t.values.size_bytes() % alignment) % alignment), '\0'));
  }
  file.commit();
}

}  // namespace sluice
