#include "io/byte_stream.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <fstream>

#include "core/error.h"

namespace sluice {

namespace {

constexpr size_t packed_bytes = size_t{256} << 10;

[[noreturn]] void damaged(const std::string& path, const char* kind, const std::string& what) {
  throw Error(ErrorCode::bad_file,
              fmt::format("{}: the {} data is damaged or cut off ({}); copy or download it again", path, kind, what));
}

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const std::string& path) : path_(path), file_(path, std::ios::binary) {
    check(file_.good(), ErrorCode::bad_file, path + ": cannot be read");
  }
  size_t read(char* to, size_t size) override {
    file_.read(to, static_cast<std::streamsize>(size));
    check(!file_.bad(), ErrorCode::bad_file, path_ + ": reading stopped with an error of the disk");
    return static_cast<size_t>(file_.gcount());
  }

 private:
  std::string path_;
  std::ifstream file_;
};

class GzipStream : public ByteStream {
 public:
  explicit GzipStream(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    check(file_ != nullptr, ErrorCode::bad_file, path + ": cannot be read");
    gzbuffer(file_.get(), packed_bytes);
  }
  size_t read(char* to, size_t size) override {
    const int count = gzread(file_.get(), to, static_cast<unsigned>(std::min<size_t>(size, 1 << 30)));
    int code = Z_OK;
    const char* what = gzerror(file_.get(), &code);
    if (count < 0 || (count == 0 && code != Z_OK && code != Z_STREAM_END)) damaged(path_, "gzip", what);
    return static_cast<size_t>(count);
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

class ZstdStream : public ByteStream {
 public:
  explicit ZstdStream(const std::string& path) : path_(path), file_(path), state_(ZSTD_createDStream()) {}
  size_t read(char* to, size_t size) override {
    ZSTD_outBuffer out{to, size, 0};
    while (out.pos == 0) {
      if (in_.pos == in_.size) in_ = {packed_.data(), file_.read(packed_.data(), packed_.size()), 0};
      const bool ended = in_.size == 0;
      if (ended && rest_ == 0) return 0;
      rest_ = ZSTD_decompressStream(state_.get(), &out, &in_);
      if (ZSTD_isError(rest_) != 0) damaged(path_, "Zstandard", ZSTD_getErrorName(rest_));
      if (ended && out.pos == 0) damaged(path_, "Zstandard", "it ends inside a frame");
    }
    return out.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* state) const { ZSTD_freeDStream(state); }
  };
  std::string path_;
  PlainStream file_;
  std::unique_ptr<ZSTD_DStream, Free> state_;
  std::string packed_ = std::string(packed_bytes, '\0');
  ZSTD_inBuffer in_{nullptr, 0, 0};
  size_t rest_ = 0;  // 0: between frames
};

}  // namespace

std::unique_ptr<ByteStream> open_bytes(const std::string& path) {
  std::array<char, 4> first{};
  const size_t count = PlainStream(path).read(first.data(), first.size());
  const std::string_view magic(first.data(), count);
  if (magic.starts_with("\x1F\x8B")) return std::make_unique<GzipStream>(path);
  if (magic == "\x28\xB5\x2F\xFD") return std::make_unique<ZstdStream>(path);
  return std::make_unique<PlainStream>(path);
}

ByteScanner::ByteScanner(std::unique_ptr<ByteStream> stream, size_t buffer_bytes)
    : stream_(std::move(stream)), buffer_(buffer_bytes, '\0') {}

std::string_view ByteScanner::window() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    // Full, however short the frames of a packed file are: what the rows are shows in their beginning.
    for (size_t count = 1; count > 0 && end_ < buffer_.size(); end_ += count)
      count = stream_->read(buffer_.data() + end_, buffer_.size() - end_);
  }
  return std::string_view(buffer_).substr(begin_, end_ - begin_);
}

}  // namespace sluice
