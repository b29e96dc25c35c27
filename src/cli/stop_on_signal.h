// Signals to a StopRequest, while it lives: SIGINT, SIGTERM, SIGUSR1 and, unless it is ignored (nohup), SIGHUP.
//
// The first one answers at once on standard error and asks the run to end after its step; the second asks it to end after its microbatch; a
// third ends the process. A SIGHUP counts for neither: a terminal that closes sends it twice, by its shell and by the system. SIGPIPE and
// SIGXFSZ are ignored meanwhile, so that a closed output or a file that may not grow is an error of the write, which is handled where it
// happens. The destructor puts everything back.
#pragma once

#include <csignal>

#include <array>

#include "train/stop_request.h"

namespace sluice {

class StopOnSignal {
 public:
  explicit StopOnSignal(StopRequest& stop);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  static constexpr std::array signals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ};
  std::array<struct sigaction, signals.size()> before_{};
};

}  // namespace sluice
