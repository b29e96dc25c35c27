// Files that appear whole or not at all, also when the process is killed or the disk is full.
//
//   atomic_write_file("out/state.json", state.dump());
//
//   AtomicFile file("out/x.safetensors", expected_bytes);   // checks the free space first
//   file.write(header);  file.write(data);
//   file.commit();                                          // fsync, rename, fsync of the folder
//
// The bytes go to "<name>.tmp" in the same folder. Two writers of one path take turns; what a killed writer left is
// overwritten by the next. Throws Error(bad_file) naming the path, and for a full disk the bytes needed and free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sluice {

class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path, uint64_t expected_bytes = 0);
  ~AtomicFile();  // without a commit(), removes the temporary file and leaves `path` as it was
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  [[noreturn]] void fail(const char* what);

  std::string path_, temporary_;
  uint64_t expected_bytes_, written_ = 0;
  int fd_ = -1;
};

// The folder must exist.
void atomic_write_file(const std::string& path, std::span<const std::byte> bytes);
void atomic_write_file(const std::string& path, std::string_view text);

// Free bytes on the disk that holds `path` (a file or folder, which need not exist yet), for
// estimates at the start of a run. Nothing is known on file systems that do not count: then UINT64_MAX.
uint64_t free_disk_bytes(const std::string& path);

}  // namespace sluice
