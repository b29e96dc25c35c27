// sluice train and the signals and outputs that end it early.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "cli/stop_on_signal.h"
#include "support/child.h"
#include "train/checkpoint.h"

namespace sluice::test {

namespace {

class Handled {
 public:
  Handled(int signal, void (*handler)(int)) : signal_(signal) {
    struct sigaction action {};
    action.sa_handler = handler;
    sigaction(signal, &action, &before_);
  }
  ~Handled() { sigaction(signal_, &before_, nullptr); }
  static bool is(int signal, void (*handler)(int)) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    return action.sa_handler == handler;
  }

 private:
  int signal_;
  struct sigaction before_ {};
};

// A run that goes on for longer than any test waits.
struct LongRun {
  TinyRun tiny;
  std::vector<std::string> command;

  LongRun() {
    tiny.config.max_steps = 20000;
    tiny.config.save_every = 0;
    tiny.config.steps_per_eval = 0;
    tiny.config.max_seq_length = 64;
    command = train_command(tiny.config, tiny.folder / "c.yaml");
  }
  std::string log() const { return read_whole_file(tiny.folder / "log"); }
  // Waits until the log holds a text.
  bool says(const std::string& text) const {
    for (int i = 0; i < 600; ++i) {
      if (fs::exists(tiny.folder / "log") && contains(log(), text)) return true;  // the child makes it
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  // The run goes on from where it was stopped.
  void check_resumable() {
    const auto found = find_checkpoint(tiny.config.adapter_path);
    REQUIRE(found);
    TrainConfig next = tiny.config;
    next.resume = true;
    next.max_steps = found->state.step + 2;
    CHECK(wait_for(start(train_command(next, tiny.folder / "next.yaml"), tiny.folder / "next.log")) == 0);
    CHECK(find_checkpoint(tiny.config.adapter_path)->state.step == found->state.step + 2);
  }
};

}  // namespace

TEST_CASE(
    "signals: a terminal that closes sends SIGHUP twice, which asks once; a SIGTERM after it is the first of two") {
  StopRequest stop;
  const StopOnSignal on(stop);
  raise(SIGHUP);
  raise(SIGHUP);
  CHECK(stop.why() == std::string("SIGHUP"));
  CHECK_FALSE(stop.at_once());
  raise(SIGTERM);
  CHECK_FALSE(stop.at_once());
  raise(SIGTERM);
  CHECK(stop.at_once());
  CHECK(Handled::is(SIGTERM, SIG_DFL));
  CHECK(Handled::is(SIGHUP, SIG_DFL));
}

TEST_CASE("signals: what nohup had ignored stays ignored, also when the run is to end at once") {
  const Handled ignored(SIGHUP, SIG_IGN);
  StopRequest stop;
  const StopOnSignal on(stop);
  raise(SIGHUP);
  CHECK_FALSE(stop.asked());
  raise(SIGTERM);
  raise(SIGTERM);
  CHECK(stop.at_once());
  CHECK(Handled::is(SIGHUP, SIG_IGN));
}

TEST_SUITE("full") {
  TEST_CASE("signals: the first one is answered at once and saves after the step, with exit code 3") {
    for (const auto& [signal, name] :
         {std::pair{SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}, {SIGINT, "SIGINT"}}) {
      CAPTURE(name);
      LongRun run;
      const pid_t pid = start(run.command, run.tiny.folder / "log");
      REQUIRE(run.says("Iter 2:"));
      kill(pid, signal);
      CHECK(wait_for(pid) == 3);
      CHECK(contains(run.log(), fmt::format("sluice: {}: the run ends after this step and saves a checkpoint", name)));
      CHECK(contains(run.log(), fmt::format("({}); the last whole checkpoint is", name)));
      run.check_resumable();
    }
  }

  TEST_CASE("signals: a closed output saves as a signal does") {
    LongRun run;
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);  // the run must not hold the end that is read
    const pid_t pid = start(run.command, run.tiny.folder / "log", {.output = ends[1]});
    close(ends[1]);
    std::string seen;
    std::array<char, 512> buffer{};
    while (!contains(seen, "Iter 2:")) {
      const ssize_t count = read(ends[0], buffer.data(), buffer.size());
      REQUIRE(count > 0);
      seen.append(buffer.data(), static_cast<size_t>(count));
    }
    close(ends[0]);
    CHECK(wait_for(pid) == 3);
    CHECK(contains(run.log(), "progress cannot be written (Broken pipe)"));
    run.check_resumable();
  }

  TEST_CASE("signals: a run that nohup started is not ended by SIGHUP") {
    LongRun run;
    struct sigaction ignore {
    }, before{};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGHUP, &ignore, &before);
    const pid_t pid = start(run.command, run.tiny.folder / "log");
    sigaction(SIGHUP, &before, nullptr);
    REQUIRE(run.says("Iter 2:"));
    kill(pid, SIGHUP);
    REQUIRE(run.says("Iter 60:"));
    kill(pid, SIGTERM);
    CHECK(wait_for(pid) == 3);
    CHECK_FALSE(contains(run.log(), "SIGHUP"));
  }

  TEST_CASE(
      "FieldInput_two_runs: of two runs in one folder the second is refused at its start and the first ends well") {
    LongRun first;
    const pid_t pid = start(first.command, first.tiny.folder / "log");
    REQUIRE(first.says("Iter 2:"));
    const Ran second = run({"train", "-c", (first.tiny.folder / "c.yaml").string()});
    CHECK(second.code == 1);
    CHECK(contains(second.output, fmt::format("another run writes here: process {} on ", pid)));
    kill(pid, SIGTERM);
    CHECK(wait_for(pid) == 3);
    first.check_resumable();
  }
}

}  // namespace sluice::test
