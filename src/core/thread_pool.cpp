#include "core/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace sluice {

namespace {
// Workers look for new work this many times before they sleep: a step launches thousands of short loops.
constexpr int spins_before_sleep = 20000;

constexpr int spins_before_yield = 2000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}
}  // namespace

struct ThreadPool::Shared {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> generation{0};
  std::atomic<int64_t> next{0};
  std::atomic<int> running{0};
  std::atomic<bool> stop{false}, failed{false};
  int64_t count = 0;
  const std::function<void(int64_t, int)>* body = nullptr;
  std::exception_ptr exception;

  void work(int worker) {
    for (;;) {
      const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= count || failed.load(std::memory_order_relaxed)) return;
      try {
        (*body)(item, worker);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed.exchange(true)) exception = std::current_exception();
      }
    }
  }

  void loop(int worker) {
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < spins_before_sleep && generation.load(std::memory_order_acquire) == seen; ++spin)
        pause_cpu();
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load(std::memory_order_acquire) != seen; });
      }
      seen = generation.load(std::memory_order_acquire);
      if (stop.load()) return;
      work(worker);
      running.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  void publish() {
    {
      const std::lock_guard lock(mutex);
      generation.fetch_add(1, std::memory_order_acq_rel);
    }
    wake.notify_all();
  }
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads), shared_(std::make_unique<Shared>()) {
  check(num_threads >= 1, ErrorCode::bad_config, "threads is " + std::to_string(num_threads) + "; give at least 1");
  for (int worker = 1; worker < num_threads; ++worker) {
    shared_->threads.emplace_back([shared = shared_.get(), worker] { shared->loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  shared_->stop = true;
  shared_->publish();
  for (std::thread& thread : shared_->threads) thread.join();
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t, int)>& body) {
  if (count <= 0) return;
  Shared& s = *shared_;
  s.count = count;
  s.body = &body;
  s.failed = false;
  s.exception = nullptr;
  s.next.store(0, std::memory_order_relaxed);
  const bool alone = count == 1 || num_threads_ == 1;
  if (!alone) {
    s.running.store(num_threads_ - 1, std::memory_order_relaxed);
    s.publish();
  }
  s.work(0);
  if (!alone) {
    // A worker may have lost its core to another program: then waiting must give way.
    for (int spin = 0; s.running.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin < spins_before_yield) pause_cpu();
      else std::this_thread::yield();
    }
  }
  if (s.failed) std::rethrow_exception(s.exception);
}

int ThreadPool::default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}

}  // namespace sluice
