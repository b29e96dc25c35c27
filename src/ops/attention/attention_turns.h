// Lets parallel items add into one place in a fixed order, without atomics on floats: each place counts its turns.
//
//   if (!turns.wait(place, n)) return;   // until n turns were done here; false when another item failed
//   …add…;  turns.done(place);
//
// Items are claimed in increasing order (core/thread_pool.h) and wait only for earlier ones, so none waits for ever; an item that
// ends by an exception must call fail(), see FailGuard.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>

namespace sluice::attention {

class Turns {
 public:
  using Counter = std::atomic<int64_t>;
  static constexpr int64_t bytes_each = sizeof(Counter);

  // `memory` holds `places` counters.
  Turns(void* memory, int64_t places) : counters_(static_cast<Counter*>(memory)) {
    for (int64_t i = 0; i < places; ++i) std::construct_at(counters_ + i, 0);
  }

  bool wait(int64_t place, int64_t turn) const {
    constexpr int spins_before_yield = 2000;  // a turn takes tens of microseconds
    for (int spin = 0; counters_[place].load(std::memory_order_acquire) != turn; ++spin) {
      if (failed_.load(std::memory_order_relaxed)) return false;
      if (spin < spins_before_yield) __builtin_ia32_pause();
      else std::this_thread::yield();
    }
    return true;
  }
  void done(int64_t place) { counters_[place].fetch_add(1, std::memory_order_release); }
  void fail() { failed_.store(true, std::memory_order_relaxed); }

 private:
  Counter* counters_;
  std::atomic<bool> failed_{false};
};

// Tells the waiting items when the scope is left by an exception.
class FailGuard {
 public:
  explicit FailGuard(Turns& turns) : turns_(turns), exceptions_(std::uncaught_exceptions()) {}
  ~FailGuard() {
    if (std::uncaught_exceptions() > exceptions_) turns_.fail();
  }
  FailGuard(const FailGuard&) = delete;
  FailGuard& operator=(const FailGuard&) = delete;

 private:
  Turns& turns_;
  int exceptions_;
};

}  // namespace sluice::attention
