// One run a folder: a lock on adapter_path/run.lock, which a process that dies lets go of.
//
//   const RunLock lock(config.adapter_path);   // before anything is written there
//
// The file says who holds it, and goes with the lock. What a killed process left is taken over.
#pragma once

#include <string>

namespace sluice {

class RunLock {
 public:
  // The folder must exist. Throws Error(bad_file) naming the holder when another run has the lock.
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  bool works() const { return works_; }  // false: the file system has no locks, so that a second run is not noticed

  // The same refusal without taking the lock and without writing anything.
  static void refuse_if_held(const std::string& folder);

 private:
  std::string path_;
  int fd_ = -1;
  bool works_ = true;
};

}  // namespace sluice
