#include "train/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "io/file_error.h"

namespace sluice {

namespace {

std::string path_in(const std::string& folder) { return folder + "/run.lock"; }

enum class Taken { yes, held, unsupported };

Taken take(int fd, int kind) {
  while (::flock(fd, kind | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? Taken::held : Taken::unsupported;
  }
  return Taken::yes;
}

// A run that only looks whether the lock is held has it for a moment: one that is held by a run still is a little later.
Taken take_after_lookers(int fd) {
  Taken taken = take(fd, LOCK_EX);
  for (int i = 0; i < 10 && taken == Taken::held; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    taken = take(fd, LOCK_EX);
  }
  return taken;
}

[[noreturn]] void refuse(const std::string& folder, int fd) {
  std::array<char, 512> text{};
  const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
  std::string holder = size > 0 ? printable({text.data(), static_cast<size_t>(size)}) : "another process";
  ::close(fd);
  bad_file(folder,
           fmt::format("another run writes here: {}; wait for it or end it, or give another adapter_path", holder));
}

bool is_still_named(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

}  // namespace

RunLock::RunLock(const std::string& folder) : path_(path_in(folder)) {
  for (;;) {
    fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ < 0) bad_file_errno(path_, "cannot be made; is adapter_path writable?");
    const Taken taken = take_after_lookers(fd_);
    if (taken == Taken::held) refuse(folder, fd_);
    works_ = taken == Taken::yes;
    if (is_still_named(fd_, path_)) break;
    ::close(fd_);  // its holder ended, and took the file along, between our two calls
  }
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const std::string holder = fmt::format("process {} on {}", ::getpid(), host.data());
  // Only for the message: on a full disk the lock holds without it.
  if (::ftruncate(fd_, 0) == 0) [[maybe_unused]]
    const ssize_t ignored = ::write(fd_, holder.data(), holder.size());
}

RunLock::~RunLock() {
  // Before the close, which lets the next run in; not where somebody removed the file and another run made its own.
  if (is_still_named(fd_, path_)) ::unlink(path_.c_str());
  ::close(fd_);
}

void RunLock::refuse_if_held(const std::string& folder) {
  const int fd = ::open(path_in(folder).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  if (take(fd, LOCK_SH) == Taken::held) refuse(folder, fd);
  ::close(fd);
}

}  // namespace sluice
