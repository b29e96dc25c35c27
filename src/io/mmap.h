// A read-only view of a whole file, mapped into memory: pages are read when they are touched, and the kernel may
// drop them again.
//
//   MappedFile file("model.safetensors");
//   std::span<const std::byte> bytes = file.bytes();   // valid while `file` lives; moving `file` keeps it valid
//   file.advise(offset, size, MappedFile::Advice::will_need);
//
// The file must not be shortened while it is mapped (reading a page that is gone ends the process).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace sluice {

class MappedFile {
 public:
  enum class Advice { normal, sequential, random, will_need, dont_need };

  MappedFile() = default;
  // Throws Error(bad_file) when `path` cannot be opened, is not a regular file, or is empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  size_t size() const { return size_; }

  // Hints about [offset, offset + size), widened to whole pages; out-of-range parts are ignored. Never fails.
  void advise(size_t offset, size_t size, Advice advice) const;
  void advise(Advice advice) const { advise(0, size_, advice); }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace sluice
