// A fixed set of threads that runs independent items. The calling thread takes part as worker 0.
//
//   pool.parallel_for(num_blocks, [&](int64_t block, int worker) { … });
//
// Items are claimed in increasing order, one at a time, so an item may wait for an earlier one. What an item
// computes must not depend on the worker: results are then the same for any number of threads. Callers take turns.
// The first exception of an item is kept and rethrown at the join; the items not yet claimed are dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace sluice {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // >= 1; throws Error(device) when the system gives fewer
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }
  void parallel_for(int64_t count, const std::function<void(int64_t item, int worker)>& body);

  static int default_threads();  // cores of its affinity, and no more than its control groups grant

 private:
  struct Shared;
  int num_threads_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace sluice
