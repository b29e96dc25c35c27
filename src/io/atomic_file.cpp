#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "io/file_error.h"

namespace sluice {
namespace {

std::string folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

[[noreturn]] void disk_full(const std::string& path, uint64_t needed, uint64_t free) {
  bad_file(path,
           fmt::format(
               "the disk is full: needed {} ({} bytes), free {} ({} bytes); free some space or write to another folder",
               format_bytes(needed), needed, format_bytes(free), free));
}

// Opens the temporary file and locks it. Another writer may have renamed it away while we waited: then again.
int open_locked(const std::string& path, const std::string& temporary) {
  for (;;) {
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) bad_file_errno(path, "cannot create " + temporary);
    while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }  // a file system without locks: go on, the lock only orders our own writers
    struct stat opened {
    }, named{};
    if (::fstat(fd, &opened) == 0 && ::stat(temporary.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
        opened.st_dev == named.st_dev) {
      if (::ftruncate(fd, 0) == 0) return fd;
      const int reason = errno;
      ::close(fd);
      errno = reason;
      bad_file_errno(path, "cannot write " + temporary);
    }
    ::close(fd);
  }
}

}  // namespace

uint64_t free_disk_bytes(const std::string& path) {
  struct statvfs info {};
  std::string there = path;
  while (::statvfs(there.c_str(), &info) != 0) {
    const std::string above = folder_of(there);
    if (errno != ENOENT || above == there) return UINT64_MAX;
    there = above;
  }
  if (info.f_blocks == 0) return UINT64_MAX;
  return static_cast<uint64_t>(::geteuid() == 0 ? info.f_bfree : info.f_bavail) * info.f_frsize;
}

AtomicFile::AtomicFile(const std::string& path, uint64_t expected_bytes)
    : path_(path), temporary_(path + ".tmp"), expected_bytes_(expected_bytes) {
  fd_ = open_locked(path_, temporary_);
  // After the truncation, which may have freed what a killed writer left.
  if (const uint64_t free = free_disk_bytes(temporary_); expected_bytes > free) {
    ::unlink(temporary_.c_str());
    ::close(fd_);
    disk_full(path_, expected_bytes, free);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());  // before the close, which lets the next writer in
  ::close(fd_);
}

void AtomicFile::fail(const char* what) {
  const int reason = errno;
  if (reason == ENOSPC) {
    const uint64_t free = free_disk_bytes(temporary_);
    disk_full(path_, std::max(expected_bytes_, written_ + 1), free == UINT64_MAX ? 0 : free + written_);
  }
  bad_file_errno(path_, what);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr size_t most_at_once = size_t{1} << 30;  // Linux writes at most 2 GiB a call
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), std::min(bytes.size(), most_at_once));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errno = ENOSPC;
    if (count <= 0) {
      expected_bytes_ = std::max(expected_bytes_, written_ + bytes.size());
      fail("cannot write");
    }
    written_ += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail("cannot flush to the disk");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename the finished file");
  // Errors of a deferred write show at fsync, so close has nothing more to say.
  ::close(fd_);
  fd_ = -1;
  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) bad_file_errno(path_, "cannot open its folder");
  const bool flushed = ::fsync(folder) == 0 || errno == EINVAL;  // some file systems cannot flush a folder
  const int reason = errno;
  ::close(folder);
  errno = reason;
  if (!flushed) fail("cannot flush its folder to the disk");
}

void atomic_write_file(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path, bytes.size());
  file.write(bytes);
  file.commit();
}

void atomic_write_file(const std::string& path, std::string_view text) {
  atomic_write_file(path, std::as_bytes(std::span(text)));
}

}  // namespace sluice
