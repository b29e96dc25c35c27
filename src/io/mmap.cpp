#include "io/mmap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "io/file_error.h"

namespace sluice {

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer; it is refused below.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) bad_file_errno(path, "cannot open the file");
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close_at_end{fd};

  struct stat info {};
  if (::fstat(fd, &info) != 0) bad_file_errno(path, "cannot read the file's size");
  if (S_ISDIR(info.st_mode)) bad_file(path, "is a directory, a file is needed");
  if (!S_ISREG(info.st_mode)) bad_file(path, "is not a regular file; copy it to one");
  if (info.st_size == 0) bad_file(path, "is empty; download or copy it again");
  size_ = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    size_ = 0;
    bad_file_errno(path, "cannot map the file");
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::advise(size_t offset, size_t size, Advice advice) const {
  if (offset >= size_) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page, end = offset + std::min(size, size_ - offset);
  const int value = advice == Advice::sequential  ? MADV_SEQUENTIAL
                    : advice == Advice::random    ? MADV_RANDOM
                    : advice == Advice::will_need ? MADV_WILLNEED
                    : advice == Advice::dont_need ? MADV_DONTNEED
                                                  : MADV_NORMAL;
  static_cast<void>(::madvise(const_cast<std::byte*>(data_) + begin, end - begin, value));
}

}  // namespace sluice
