#include "cli/stop_on_signal.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace sluice {

namespace {

std::atomic<StopRequest*> current{nullptr};
std::atomic<bool> hangup_ignored{false};  // by whoever started the program: nohup

const char* name_of(int signal) {
  switch (signal) {
    case SIGINT: return "SIGINT";
    case SIGTERM: return "SIGTERM";
    case SIGHUP: return "SIGHUP";
    default: return "SIGUSR1";
  }
}

// One write, of a line put together without the heap: a handler may do no more.
void say(const char* name, const char* text) {
  char line[256];
  size_t length = 0;
  for (const char* part : {"\nsluice: ", name, text}) {
    const size_t size = strlen(part);
    memcpy(line + length, part, size);
    length += size;
  }
  const size_t begin = isatty(STDERR_FILENO) != 0 ? 0 : 1;  // a terminal may show the bar's line
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, line + begin, length - begin);
}

void handle(int signal) {
  const int saved_errno = errno;
  StopRequest* stop = current.load();
  if (stop == nullptr) return;  // it came while the destructor ran
  if (signal == SIGHUP) stop->ask_to_save(name_of(signal));
  else stop->ask(name_of(signal));
  if (stop->at_once()) {
    say(name_of(signal), ": the run ends after this microbatch and saves nothing; one more ends it at once\n");
    for (int each : {SIGINT, SIGTERM, SIGUSR1}) ::signal(each, SIG_DFL);
    if (!hangup_ignored.load()) ::signal(SIGHUP, SIG_DFL);
  } else if (signal == SIGHUP) {
    say(name_of(signal), ": the run ends after this step and saves a checkpoint\n");
  } else {
    say(name_of(signal),
        ": the run ends after this step and saves a checkpoint; one more ends it after this microbatch, without\n");
  }
  errno = saved_errno;
}

}  // namespace

StopOnSignal::StopOnSignal(StopRequest& stop) {
  StopRequest* none = nullptr;
  SLUICE_ASSERT(current.compare_exchange_strong(none, &stop));
  for (size_t i = 0; i < signals.size(); ++i) {
    sigaction(signals[i], nullptr, &before_[i]);
    struct sigaction action {};
    action.sa_handler = signals[i] == SIGPIPE || signals[i] == SIGXFSZ ? SIG_IGN : handle;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (int each : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&action.sa_mask, each);  // one at a time
    if (signals[i] == SIGHUP) {
      hangup_ignored.store(before_[i].sa_handler == SIG_IGN);
      if (hangup_ignored.load()) continue;
    }
    sigaction(signals[i], &action, nullptr);
  }
}

StopOnSignal::~StopOnSignal() {
  for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &before_[i], nullptr);
  current.store(nullptr);
}

}  // namespace sluice
