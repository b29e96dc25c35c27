// What a run goes on from, what it refuses, who may write into its folder, and how it ends early.
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <limits>

#include "io/atomic_file.h"
#include "support/child.h"
#include "train/checkpoint.h"
#include "train/planner.h"
#include "train/run_identity.h"
#include "train/run_lock.h"
#include "train/verify_adapter.h"

namespace sluice::test {

namespace {

fs::path out_of(const TrainConfig& config) { return config.adapter_path; }

// Every file and link below a folder, with its contents.
std::string listing(const fs::path& folder) {
  std::vector<std::string> lines;
  if (!fs::exists(folder)) return "nothing";
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    std::string line = entry.path().string();
    if (entry.is_symlink()) line += " -> " + fs::read_symlink(entry.path()).string();
    else if (entry.is_regular_file()) line += " " + read_whole_file(entry.path());
    lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return fmt::format("{}", fmt::join(lines, "\n"));
}

// Asks to stop when a step is reported, or inside one.
class Stops : public Heard {
 public:
  StopRequest request;
  int64_t step = 2;
  bool inside = false;
  void train(const TrainReport& report) override {
    Heard::train(report);
    if (!inside && report.step == step) request.ask("the test");
  }
  void tick(int64_t done, int64_t, int64_t part, int64_t) override {
    if (!inside || done + 1 != step || part != 0) return;
    request.ask("the test");
    request.ask("the test");
  }
};

std::string stopped(const TrainConfig& config, Stops& stops) {
  try {
    train(config, stops, {}, &stops.request);
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::cancelled);
    return e.what();
  }
  return "";
}

TrainConfig resumed(TrainConfig config) {
  config.resume = true;
  return config;
}

}  // namespace

TEST_CASE("resume: with nothing to go on from it says what it looked for, where, and what to do") {
  TinyRun run;
  const fs::path out = out_of(run.config);
  const auto message = [&] { return message_of(resumed(run.config)); };
  CHECK(contains(message(), "step-*/state.json"));
  CHECK(contains(message(), out.string()));
  CHECK(contains(message(), "no such folder"));
  CHECK(contains(message(), "without --resume"));
  CHECK_FALSE(fs::exists(out));
  fs::create_directories(out);
  CHECK(contains(message(), "there is none in it"));
  fs::create_directories(out / "step-0000004.tmp");
  fs::create_directories(out / "step-0000002");
  CHECK(contains(message(), "step-0000002 has no state.json, step-0000004.tmp is a save that did not end"));
  Heard heard;
  run.config.adapter_path = (run.folder / "other").string();
  train(run.config, heard);
  run.config.adapter_path += "/last";
  CHECK(contains(message(), "is a checkpoint itself"));
}

TEST_CASE("resume: the same contents under other paths go on to the same bytes") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  TrainConfig part = run.into("part");
  train(part, heard);
  fs::remove_all(out_of(part) / "step-0000006");
  fs::copy(run.folder / "model", run.folder / "copied");
  part.model = (run.folder / "copied/./").string();
  part.data = (run.folder / "out/../data").string();
  part.adapter_path = (run.folder / "out/../part/").string();
  train(resumed(part), heard);
  CHECK(adapter_bytes(part) == adapter_bytes(run.config));
}

TEST_CASE("resume: valid_fraction holds out the same rows after a kill" * doctest::test_suite("full")) {
  TinyRun run;
  fs::remove(run.folder / "data/valid.jsonl");
  run.config.valid_fraction = 0.25;
  run.config.max_steps = 40;
  run.config.steps_per_eval = 10;
  Heard whole, rest;
  train(run.config, whole);
  TrainConfig part = run.into("part");
  const pid_t pid = start(train_command(part, run.folder / "part.yaml"), run.folder / "log");
  while (!fs::exists(out_of(part) / "step-0000006") && kill(pid, 0) == 0) usleep(500);
  kill(pid, SIGKILL);
  REQUIRE(wait_for(pid) == -SIGKILL);
  train(resumed(part), rest);
  CHECK(rest.reports.front().step > 1);
  CHECK(adapter_bytes(part) == adapter_bytes(run.config));
  const auto held_out = [](const TrainConfig& c) {
    return Json::parse(read_whole_file(out_of(c) / "data_report.json"))["valid"];
  };
  CHECK(held_out(part)["rows_kept"] > 0);
  CHECK(held_out(part) == held_out(run.config));
  REQUIRE_FALSE(rest.evals.empty());
  for (const EvalReport& eval : rest.evals) {
    const auto same =
        std::find_if(whole.evals.begin(), whole.evals.end(), [&](const EvalReport& e) { return e.step == eval.step; });
    REQUIRE(same != whole.evals.end());
    CHECK(eval.loss == same->loss);
  }
}

TEST_CASE("resume: a refusal names each setting and file that differs, with both values") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  TrainConfig other = resumed(run.config);
  other.learning_rate = 5e-3;
  other.rank = 8;
  const std::string before = listing(out_of(run.config));
  const std::string settings = message_of(other);
  CHECK(contains(settings, "learning_rate is 0.005, was 0.001"));
  CHECK(contains(settings, "lora_parameters.rank is 8, was 4"));
  CHECK_FALSE(contains(settings, "other contents"));
  // The same shapes, one number of the weights changed.
  other = resumed(run.config);
  other.model = (run.folder / "changed").string();
  fs::copy(run.config.model, other.model);
  std::string weights = read_whole_file(fs::path(other.model) / "model.safetensors");
  weights[weights.size() - 2] = static_cast<char>(weights[weights.size() - 2] ^ 1);
  write_text(fs::path(other.model) / "model.safetensors", weights);
  const std::string base = message_of(other);
  CHECK(contains(base, "model has other contents"));
  CHECK_FALSE(contains(base, "data has"));
  other = resumed(run.config);
  other.data = (run.folder / "other-data").string();
  write_text(fs::path(other.data) / "train.jsonl", tiny_rows(24, 60, 6));
  CHECK(contains(message_of(other), "data has other contents"));
  CHECK(listing(out_of(run.config)) == before);
}

TEST_CASE("resume: a checkpoint of another format is refused by its number") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  const fs::path state = out_of(run.config) / "step-0000006/state.json";
  Json json = Json::parse(read_whole_file(state));
  CHECK(json["run"]["settings"]["learning_rate"] == 1e-3);
  CHECK(json["run"]["contents"]["model"].get<std::string>().size() == 64);
  CHECK_FALSE(contains(json.dump(), run.config.model));
  json["format"] = 1;
  write_text(state, json.dump());
  CHECK(contains(message_of(resumed(run.config)), "format 1, needed 2; it was written by an older sluice"));
}

TEST_CASE("resume: a run is made longer, and ends as the longer one where the rate does not depend on the length") {
  TinyRun run(5);
  run.config.lr_schedule = "constant";
  run.config.max_steps = 0;
  run.config.grad_accumulation_steps = 2;
  run.config.iters = 10;
  Heard heard;
  train(run.config, heard);
  TrainConfig longer = run.into("longer");
  longer.iters = 6;
  train(longer, heard);
  longer.iters = 10;
  Heard told;
  train(resumed(longer), told);
  CHECK(told.reports.front().step == 4);
  CHECK(adapter_bytes(longer) == adapter_bytes(run.config));
  CHECK(
      contains(told.notes[told.notes.size() - 3] + told.notes[2] + told.notes[1], "the run had 3 steps and has 5 now"));
  longer.iters = 4;
  CHECK(contains(message_of(resumed(longer)), "10 forward/backward passes and the run's length is 4"));
}

TEST_CASE("resume: made longer, a run whose last step was cut short passes over no row") {
  TinyRun run(8);
  run.config.max_steps = 0;
  run.config.grad_accumulation_steps = 4;
  run.config.iters = 6;  // steps of 4 and 2
  run.config.save_every = 1;
  Heard heard;
  train(run.config, heard);
  run.config.iters = 12;
  Heard told;
  train(resumed(run.config), told);
  CHECK(told.reports.back().step == 4);  // passes 6 to 9, 10 and 11
  const auto found = find_checkpoint(run.config.adapter_path);
  REQUIRE(found);
  CHECK(found->state.microbatches == 12);
  int64_t tokens = 0;  // every row once in the first 8 passes, then 4 rows of the second epoch
  for (const TrainReport& r : told.reports) tokens = r.trained_tokens;
  TinyRun whole(8);
  whole.config.max_steps = 0;
  whole.config.iters = 12;
  Heard all;
  train(whole.config, all);
  CHECK(tokens == all.reports.back().trained_tokens);
}

TEST_CASE("stop: asked once, a run ends after its step with a checkpoint, and goes on to the same bytes") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  const TrainConfig part = run.into("part");
  Stops stops;
  stops.step = 3;
  const std::string message = stopped(part, stops);
  CHECK(contains(message, "stopped after step 3 of 6 (the test)"));
  CHECK(contains(message, "--resume"));
  CHECK(find_checkpoint(part.adapter_path)->state.step == 3);
  train(resumed(part), heard);
  CHECK(adapter_bytes(part) == adapter_bytes(run.config));
}

TEST_CASE("stop: asked twice, a run ends after its microbatch and the last whole checkpoint stays") {
  TinyRun run;
  run.config.grad_accumulation_steps = 3;
  Stops stops;
  stops.step = 4;
  stops.inside = true;
  const std::string message = stopped(run.config, stops);
  CHECK(contains(message, "stopped inside step 4"));
  CHECK(contains(message, "step-0000002"));
  CHECK(find_checkpoint(run.config.adapter_path)->state.step == 2);
}

TEST_CASE("stop: asked before the first step, a run leaves nothing") {
  TinyRun run;
  Stops stops;
  stops.request.ask("the test");
  CHECK(contains(stopped(run.config, stops), "stopped before a step was done (the test); nothing was saved"));
  CHECK_FALSE(fs::exists(run.config.adapter_path));
}

TEST_CASE("max_hours: the run ends after the step in which they are over, with a checkpoint") {
  TinyRun run;
  run.config.max_hours = 1e-9;
  const std::string message = message_of(run.config);
  CHECK(contains(message, "stopped after step 1 of 6 (max_hours"));
  run.config.max_hours = 1000;
  Heard heard;
  train(resumed(run.config), heard);
  CHECK(heard.reports.back().step == 6);
}

TEST_CASE("stop: the library installs no signal handler and leaves none") {
  class Looks : public Heard {
   public:
    bool clean = true;
    void train(const TrainReport& report) override {
      Heard::train(report);
      for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ}) {
        struct sigaction action {};
        sigaction(signal, nullptr, &action);
        clean = clean && action.sa_handler == SIG_DFL;
      }
    }
  };
  TinyRun run;
  Looks looks;
  struct sigaction ours {};  // doctest has its own for some
  std::vector<struct sigaction> before;
  for (int signal : {SIGINT, SIGTERM}) {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, &ours);
    before.push_back(ours);
  }
  train(run.config, looks);
  CHECK(looks.clean);
  sigaction(SIGINT, &before[0], nullptr);
  sigaction(SIGTERM, &before[1], nullptr);
}

TEST_CASE("run_lock: a second run in a folder is refused with its holder, and a dead one holds nothing") {
  TinyRun run;
  fs::create_directories(run.config.adapter_path);
  {
    const RunLock lock(run.config.adapter_path);
    CHECK(lock.works());
    const std::string before = listing(run.config.adapter_path);
    const std::string message = message_of(run.config);
    CHECK(contains(message, "another run writes here: process " + std::to_string(getpid()) + " on "));
    CHECK_THROWS_AS(RunLock(run.config.adapter_path), Error);
    CHECK(listing(run.config.adapter_path) == before);
  }
  CHECK_FALSE(fs::exists(out_of(run.config) / "run.lock"));
  write_text(out_of(run.config) / "run.lock", "process 1 on a machine that lost its power");
  Heard heard;
  CHECK_NOTHROW(train(run.config, heard));
  CHECK_FALSE(fs::exists(out_of(run.config) / "run.lock"));
}

TEST_CASE("run_lock: a run whose lock somebody removed leaves the lock of the next one alone") {
  TinyRun run;
  fs::create_directories(run.config.adapter_path);
  auto first = std::make_unique<RunLock>(run.config.adapter_path);
  fs::remove(out_of(run.config) / "run.lock");
  const RunLock second(run.config.adapter_path);
  first.reset();
  CHECK(fs::exists(out_of(run.config) / "run.lock"));
  CHECK_THROWS_AS(RunLock(run.config.adapter_path), Error);
}

TEST_CASE("folder: a folder called last or best is refused before the first step, by its name") {
  TinyRun run;
  fs::create_directories(out_of(run.config) / "best");
  Heard heard;
  std::string message;
  try {
    train(run.config, heard);
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK(contains(message, "best is there and no link"));
  CHECK(heard.reports.empty());
}

TEST_CASE("checkpoint: of steps with other numbers of digits the larger one is the newest, and is kept") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  const fs::path out = out_of(run.config);
  fs::copy(out / "step-0000006", out / "step-10000000", fs::copy_options::recursive);
  Json state = Json::parse(read_whole_file(out / "step-10000000/state.json"));
  state["step"] = 10000000;
  write_text(out / "step-10000000/state.json", state.dump());
  CHECK(find_checkpoint(out.string())->state.step == 10000000);
  fs::copy(out / "step-0000006", out / "step-9999998", fs::copy_options::recursive);
  prune_checkpoints(out.string(), 1);
  CHECK(fs::exists(out / "step-10000000"));
  CHECK_FALSE(fs::exists(out / "step-9999998"));
}

TEST_CASE("run_identity: which of several CUDA devices is no difference, the CPU is") {
  TrainConfig one, two, cpu;
  one.device = "cuda";
  two.device = "cuda:1";
  const Json contents = Json::object();
  CHECK(identity_differences(run_identity(one, contents), run_identity(two, contents)).empty());
  CHECK(identity_differences(run_identity(one, contents), run_identity(cpu, contents)).size() == 1);
}

TEST_CASE("folder: a plan and a run that is refused write nothing") {
  TinyRun run;
  plan_run(run.config, 0, 0);
  CHECK_FALSE(fs::exists(run.config.adapter_path));
  TrainConfig bad = run.config;
  bad.data = (run.folder / "damaged").string();
  write_text(run.folder / "damaged/train.jsonl", "{\"prompt\": \n");
  CHECK(contains(message_of(bad), "row 1"));
  bad = run.config;
  bad.memory = "1MiB";
  CHECK(contains(message_of(bad), "the leanest plan"));
  CHECK_FALSE(fs::exists(run.config.adapter_path));
  Heard heard;
  train(run.config, heard);
  const std::string before = listing(run.config.adapter_path);
  write_text(run.folder / "data/train.jsonl", tiny_rows(5));
  plan_run(run.config, 0, 0);
  CHECK(contains(message_of(run.config), "holds a checkpoint already"));
  CHECK(contains(message_of(resumed(run.config)), "data has other contents"));
  CHECK(listing(run.config.adapter_path) == before);
}

TEST_CASE("save: a moment that is not finite is not saved, and the message names it") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  TrainConfig part = run.into("part");
  train(part, heard);
  fs::remove_all(out_of(part) / "step-0000006");
  const fs::path moments = out_of(part) / "step-0000004/optimizer.safetensors";
  std::string bytes = read_whole_file(moments);
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + bytes.size() - 4, &infinity, 4);  // of exp_avg_sq: the update is then 0
  write_text(moments, bytes);
  const std::string message = message_of(resumed(part));
  CHECK(contains(message, "Adam's second moment of a number of"));
  CHECK(contains(message, "is not finite (inf)"));
  CHECK(contains(message, "step-0000004"));
  CHECK(find_checkpoint(part.adapter_path)->state.step == 4);
  CHECK(fs::read_symlink(out_of(part) / "last") == "step-0000004");
}

TEST_CASE("clean_after_kill: folders that were being written or removed go, best and last follow the newest state") {
  TinyRun run;
  Heard heard;
  train(run.config, heard);
  const fs::path out = out_of(run.config);
  const int64_t best = find_checkpoint(out.string())->state.best_step;
  fs::copy(out / "step-0000002", out / "step-0000009.old.tmp");  // whole, but on its way out
  fs::create_directories(out / "step-0000010.tmp");
  for (const char* name : {"best", "last"}) {
    fs::remove(out / name);
    fs::create_directory_symlink("step-0000002", out / name);
  }
  CHECK(find_checkpoint(out.string())->state.step == 6);
  clean_after_kill(out.string());
  CHECK_FALSE(fs::exists(out / "step-0000009.old.tmp"));
  CHECK_FALSE(fs::exists(out / "step-0000010.tmp"));
  CHECK(fs::read_symlink(out / "last") == "step-0000006");
  CHECK(fs::read_symlink(out / "best") == fmt::format("step-{:07d}", best));
}

TEST_CASE("free_disk_bytes: of folders that do not exist yet it is that of the disk they will be on") {
  const TemporaryFolder folder;
  fs::create_directories(folder / "there");
  const uint64_t free = free_disk_bytes((folder / "there").string());
  CHECK(free < UINT64_MAX);
  CHECK(free_disk_bytes((folder / "not/yet/there").string()) < UINT64_MAX);
}

}  // namespace sluice::test
