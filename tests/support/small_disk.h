// A disk of a few megabytes, where mounting is allowed; else a folder like any other.
#pragma once

#include <doctest/doctest.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>

namespace sluice::test {

class SmallDisk {
 public:
  // `size` as in mount's options, "8m"; empty: a folder.
  SmallDisk(const std::filesystem::path& path, const std::string& size) : path_(path) {
    std::filesystem::create_directories(path);
    if (size.empty()) return;
    mounted_ = mount("tmpfs", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
    if (!mounted_) MESSAGE("SKIPPED: mounting a tmpfs is not allowed here");
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool mounted_ = false;
};

}  // namespace sluice::test
