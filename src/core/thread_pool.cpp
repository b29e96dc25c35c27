#include "core/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/control_groups.h"
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

// The cores that this process may run on. The kernel refuses a mask smaller than its own.
int cores_of_affinity() {
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(most));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    const int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return 1;
}

}  // namespace

struct ThreadPool::Shared {
  std::vector<std::thread> threads;
  std::mutex turn;  // held by the caller whose loop runs
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

  // Ends and joins the workers that there are.
  void end() {
    stop = true;
    publish();
    for (std::thread& thread : threads) thread.join();
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
  int made = 1;  // the caller's is there
  try {
    for (; made < num_threads; ++made)
      shared_->threads.emplace_back([shared = shared_.get(), worker = made] { shared->loop(worker); });
  } catch (const std::exception& e) {  // std::system_error, or no memory
    shared_->end();
    throw Error(ErrorCode::device,
                "of " + std::to_string(num_threads) + " threads the system gave " + std::to_string(made) + " (" +
                    e.what() + "); give --threads " + std::to_string(made) +
                    " or fewer, or raise the limit on processes (ulimit -u, a container's pids limit) or memory");
  }
}

ThreadPool::~ThreadPool() { shared_->end(); }

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t, int)>& body) {
  if (count <= 0) return;
  Shared& s = *shared_;
  const std::lock_guard turn(s.turn);
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
  const int cores = cores_of_affinity();
  return std::min(cores, quota_of_cores().value_or(cores));
}

}  // namespace sluice
