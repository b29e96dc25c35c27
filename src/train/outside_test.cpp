// What meets a run from outside and is not as it should be: files of settings, folders beside its own, an output that is closed.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "support/golden.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/progress.h"
#include "train/run_identity.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

TrainConfig config_of(const std::string& yaml) {
  const TemporaryFolder folder;
  write_whole_file(folder / "c.yaml", yaml);
  return read_config(folder / "c.yaml", {});
}

TEST_CASE("settings: an anchor that stands inside itself, or multiplies, is refused") {
  const auto much = doctest::Contains("c.yaml: nests deeper than 32 levels or has over 100,000 values");
  CHECK_THROWS_WITH_AS(config_of("lora_parameters: &a {rank: *a}\n"), much, Error);
  CHECK_THROWS_WITH_AS(config_of("chat_template_args: &a {x: [*a]}\n"), much, Error);
  std::string doubles = "chat_template_args:\n  a0: &a0 [1, 1]\n";
  for (int i = 1; i < 25; ++i) doubles += fmt::format("  a{}: &a{} [*a{}, *a{}]\n", i, i, i - 1, i - 1);
  CHECK_THROWS_WITH_AS(config_of(doubles), much, Error);
  CHECK(config_of("iters: &r 4\nseed: *r\n").seed == 4);
}

TEST_CASE("settings: in chat_template_args a number stays a number, also 0 and 1") {
  const Json given =
      Json::parse(config_of("chat_template_args: {n: 1, z: 0, f: 0.5, t: true, s: \"1\"}\n").chat_template_args);
  CHECK(given == Json({{"n", 1}, {"z", 0}, {"f", 0.5}, {"t", true}, {"s", "1"}}));
}

TEST_CASE("run identity: chat_template_args are compared by what they say") {
  const auto identity = [](const std::string& arguments) {
    TrainConfig config;
    config.chat_template_args = arguments;
    return run_identity(config, Json::object());
  };
  CHECK(identity_differences(identity(R"({"n":1})"), identity(R"({ "n": 1 })")).empty());
  CHECK(identity_differences(identity(R"({"n":1})"), identity(R"({"n":2})")).size() == 1);
  CHECK(identity_differences(identity(""), identity(R"({"n":2})")).size() == 1);
}

TEST_CASE("checkpoints: a folder that somebody copied or renamed is neither gone on from nor removed") {
  const TemporaryFolder out;
  for (const char* name : {"step-0000001", "step-0000002", "step-0000001-good", "step-0000003 (copy)"}) {
    fs::create_directories(out / name);
    write_whole_file(fs::path(out / name) / "state.json", "{}");
  }
  prune_checkpoints(out.path().string(), 1);
  CHECK_FALSE(fs::exists(out / "step-0000001"));
  for (const char* name : {"step-0000002", "step-0000001-good", "step-0000003 (copy)"}) CHECK(fs::exists(out / name));
  CHECK_THROWS_WITH_AS(find_checkpoint(out.path().string()), doctest::Contains("step-0000002/state.json"), Error);
}

TEST_CASE("a closed output beside a signal does not keep the run from saving, whichever comes first") {
  for (bool signal_first : {true, false}) {
    CAPTURE(signal_first);
    StopRequest stop;
    std::FILE* full = std::fopen("/dev/full", "w");
    REQUIRE(full != nullptr);
    {
      ConsoleProgress progress(full, &stop);
      if (signal_first) stop.ask("SIGINT");
      progress.note("a line");
      if (!signal_first) stop.ask("SIGINT");
    }
    std::fclose(full);
    CHECK(stop.asked());
    CHECK(std::string(stop.why()) == (signal_first ? "SIGINT" : "its output was closed"));
    CHECK_FALSE(stop.at_once());
    stop.ask("SIGINT");
    CHECK(stop.at_once());
  }
}

}  // namespace
}  // namespace sluice::test
