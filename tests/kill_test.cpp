// Nothing is lost: runs that are killed, stopped or out of disk at random moments, gone on with, end with the bytes of one that never was.
//
// SLUICE_TEST_KILLS="200 50 20" build/cpu/end_to_end_test -tc="kills*" takes other counts: kill -9, SIGTERM, full disks.
#include <sys/mount.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <sstream>
#include <thread>

#include "model/adapter_file.h"
#include "model/model.h"
#include "support/child.h"
#include "support/small_disk.h"
#include "train/checkpoint.h"

namespace sluice::test {

namespace {

struct Counts {
  int kills = 10, terms = 4, disks = 4;
};

Counts wanted_counts() {
  Counts c;
  if (const char* text = std::getenv("SLUICE_TEST_KILLS")) std::istringstream(text) >> c.kills >> c.terms >> c.disks;
  return c;
}

enum class By { kill, term, disk };

// One folder, in which runs are interrupted and gone on with until one ends well.
class Interrupted {
 public:
  explicit Interrupted(uint32_t seed) : engine_(seed), tiny_(12) {
    TrainConfig& c = tiny_.config;
    c.max_steps = 30;
    c.save_every = 3;
    c.save_total_limit = 2;
    c.dropout = 0.1;
    c.rank = 16;
    c.steps_per_eval = 10;
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE(wait_for(start(train_command(tiny_.into("whole"), tiny_.folder / "whole.yaml"), tiny_.folder / "log")) ==
            0);
    whole_ms_ = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
    model_ = load_model(c.model);
  }

  // Interrupts `count` runs, starting over in a new folder whenever one has ended.
  void go(By by, int count) {
    interruptions_ = 0;
    for (int round = 0; interruptions_ < count; ++round) {
      CAPTURE(round);
      const SmallDisk disk(tiny_.folder / fmt::format("disk-{}-{}", static_cast<int>(by), round),
                           by == By::disk ? "8m" : "");
      config_ = tiny_.config;
      config_.adapter_path = (disk.path() / "out").string();
      newest_ = -1;
      while (!interrupted(by, disk, count)) {
      }
      compare();
      fs::remove_all(config_.adapter_path);
    }
  }

 private:
  // true: the run has ended well.
  bool interrupted(By by, const SmallDisk& disk, int count) {
    TrainConfig c = config_;
    c.resume = newest_ >= 0;
    const auto command = train_command(c, tiny_.folder / "c.yaml");
    ChildOptions options;
    const bool more = interruptions_ < count;
    if (more && by == By::disk) make_small(disk, options);
    const pid_t pid = start(command, tiny_.folder / "log", options);
    if (more && by != By::disk) {
      std::this_thread::sleep_for(std::chrono::milliseconds(engine_() % static_cast<uint32_t>(whole_ms_ + 1)));
      kill(pid, by == By::kill ? SIGKILL : SIGTERM);
    }
    const int code = wait_for(pid);
    std::error_code ignored;
    fs::remove(disk.path() / "ballast", ignored);
    CAPTURE(read_whole_file(tiny_.folder / "log"));
    check_folder();
    if (code == 0) return true;
    REQUIRE(more);
    ++interruptions_;
    if (by == By::kill) REQUIRE(code == -SIGKILL);
    else if (by == By::term) REQUIRE((code == 3 || code == -SIGTERM));  // the second: before main()
    else REQUIRE((code == 1 || code == 3));                             // 3: its output could not be written either
    return false;
  }

  // A disk with little room where one may be mounted, every second time a limit on the size of files.
  void make_small(const SmallDisk& disk, ChildOptions& options) {
    if (disk.mounted() && engine_() % 2 == 0) {
      const auto free = static_cast<int64_t>(fs::space(disk.path()).available);
      const int64_t left = 4096 + static_cast<int64_t>(engine_() % (1 << 20));
      std::ofstream file(disk.path() / "ballast", std::ios::binary);
      file << std::string(static_cast<size_t>(std::max<int64_t>(free - left, 0)), 'x');
      return;
    }
    options.file_bytes = 512 + engine_() % 80000;
  }

  // Every folder that looks like a checkpoint is one, and the newest is not older than before.
  void check_folder() {
    const auto found = find_checkpoint(config_.adapter_path);
    if (!found) REQUIRE(newest_ < 0);
    if (!found) return;
    REQUIRE(found->state.step >= newest_);
    newest_ = found->state.step;
    for (const auto& entry : fs::directory_iterator(config_.adapter_path)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("step-") || name.ends_with(".tmp")) continue;
      CAPTURE(name);
      const LoadedAdapter adapter = load_adapter(entry.path().string(), model_->config);
      std::vector<float> p(adapter.flat.size()), m(p.size()), v(p.size());
      REQUIRE_NOTHROW(
          load_checkpoint({entry.path().string(), {}}, adapter.layout, model_->config, p.data(), m.data(), v.data()));
    }
  }

  void compare() const {
    for (const char* file : {"last/adapter_model.safetensors", "last/optimizer.safetensors"}) {
      CAPTURE(file);
      REQUIRE(read_whole_file(fs::path(config_.adapter_path) / file) == read_whole_file(tiny_.folder / "whole" / file));
    }
    for (const auto& entry : fs::directory_iterator(config_.adapter_path))
      REQUIRE_FALSE(entry.path().string().ends_with(".tmp"));
    REQUIRE_FALSE(fs::exists(fs::path(config_.adapter_path) / "run.lock"));
  }

  std::mt19937 engine_;
  TinyRun tiny_;
  TrainConfig config_;
  std::unique_ptr<Model> model_;
  int64_t whole_ms_ = 0, newest_ = -1;
  int interruptions_ = 0;
};

}  // namespace

TEST_SUITE("full") {
  TEST_CASE(
      "kills: FieldC1_kill FieldC3_atomic: after kill -9 at random moments a run ends with the bytes of an "
      "uninterrupted one") {
    Interrupted(1).go(By::kill, wanted_counts().kills);
  }
  TEST_CASE("kills: after SIGTERM at random moments a run ends with the bytes of an uninterrupted one") {
    Interrupted(2).go(By::term, wanted_counts().terms);
  }
  TEST_CASE(
      "kills: FieldC4_disk: after full disks at random moments a run ends with the bytes of an uninterrupted one") {
    Interrupted(3).go(By::disk, wanted_counts().disks);
  }
}

}  // namespace sluice::test
