// The bytes of a file from its beginning to its end, unpacked where it is compressed, with memory for a buffer only.
//
//   ByteScanner bytes(open_bytes("train.jsonl.gz"));
//   while (!bytes.window().empty()) { … look at bytes.window() …; bytes.take(n); }
//
// gzip (RFC 1952, several members too) and Zstandard (RFC 8878, several frames too) are known by their first bytes, whatever the file's name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace sluice {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Up to `size` bytes; 0 at the end alone. Throws Error(bad_file) naming the file when it is damaged, cut off or cannot be read.
  virtual size_t read(char* to, size_t size) = 0;
};

// Throws Error(bad_file) when the file cannot be opened.
std::unique_ptr<ByteStream> open_bytes(const std::string& path);

// A stream by pieces of its buffer.
class ByteScanner {
 public:
  explicit ByteScanner(std::unique_ptr<ByteStream> stream, size_t buffer_bytes = size_t{256} << 10);
  // What is buffered and not yet taken, read on when that is nothing; empty at the end. Valid until the next call.
  std::string_view window();
  void take(size_t size) { begin_ += size; }

 private:
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;
};

}  // namespace sluice
