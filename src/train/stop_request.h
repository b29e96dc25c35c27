// Asks a run to end before its length is done: from a signal handler, another thread or a Progress, since asking is two atomic stores.
//
//   StopRequest stop;
//   train(config, progress, {}, &stop);   // elsewhere: stop.ask("the user pressed stop")
//
// Asked once, the run ends after the step it is in, with a checkpoint. Asked again, it ends after the microbatch (or the row of a validation)
// that is running and saves nothing more: the last whole checkpoint stays. Either way train() throws Error(cancelled) that says which.
// What is nobody's wish uses ask_to_save() and never hastens: a terminal that closes sends SIGHUP, often twice, and refuses what is printed.
#pragma once

#include <atomic>

namespace sluice {

class StopRequest {
 public:
  // `why` must outlive the request; it stands in the run's last message. The first one is kept.
  void ask(const char* why) noexcept {
    ask_to_save(why);
    times_.fetch_add(1);
  }
  void ask_to_save(const char* why) noexcept {
    const char* none = nullptr;
    why_.compare_exchange_strong(none, why);
  }
  bool asked() const noexcept { return why() != nullptr; }
  bool at_once() const noexcept { return times_.load() > 1; }
  const char* why() const noexcept { return why_.load(); }  // null before it was asked

 private:
  std::atomic<int> times_{0};
  std::atomic<const char*> why_{nullptr};
  static_assert(std::atomic<int>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);
};

}  // namespace sluice
