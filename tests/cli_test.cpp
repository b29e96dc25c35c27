// The program as a user runs it: exit codes, one clear line, kills and resumes.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <random>
#include <thread>

#include "model/adapter_file.h"
#include "model/model.h"
#include "support/tiny_run.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "support/source_dir.h"

namespace sluice::test {

namespace {

pid_t start(const std::vector<std::string>& arguments, const fs::path& log) {
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(fd, 1);
  dup2(fd, 2);
  execv(argv[0], argv.data());
  _exit(127);
}

int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct Ran {
  int code = 0;
  std::string output;
};

Ran run(std::vector<std::string> arguments) {
  TemporaryFolder folder;
  arguments.insert(arguments.begin(), program_path().string());
  const int code = wait_for(start(arguments, folder / "log"));
  return {code, read_whole_file(folder / "log")};
}

std::vector<std::string> train_command(const TrainConfig& config, const fs::path& yaml) {
  write_text(yaml, to_yaml(config));
  return {program_path().string(), "train", "-c", yaml.string()};
}

}  // namespace

TEST_CASE("cli: every command has a help text and an unknown one exits with 2") {
  for (const char* command : {"train", "plan", "generate", "eval", "inspect", "doctor"}) {
    CAPTURE(command);
    const Ran help = run({command, "--help"});
    CHECK(help.code == 0);
    CHECK(help.output.size() > 200);
  }
  CHECK(run({"trian"}).code == 2);
  CHECK(run({"--version"}).output == "sluice 0.1.0\n");
}

TEST_CASE("FieldU2_typo: an unknown setting names the nearest one and exits with 2 before the model is opened") {
  const Ran typo = run({"train", "--model", "/does/not/exist.gguf", "--learnin_rate", "1"});
  CHECK(typo.code == 2);
  CHECK(typo.output.find("'learning_rate'") != std::string::npos);
  TemporaryFolder folder;
  write_text(folder / "c.yaml", "model: nowhere\nlora_parameters:\n  rnak: 8\n");
  const Ran yaml = run({"train", "-c", (folder / "c.yaml").string()});
  CHECK(yaml.code == 2);
  CHECK(yaml.output.find("c.yaml:3") != std::string::npos);
  CHECK(yaml.output.find("'lora_parameters.rank'") != std::string::npos);
}

TEST_CASE("cli: docs/settings.md is what the program prints") {
  CHECK(run({"train", "--settings"}).output == read_whole_file(source_dir() / "docs/settings.md"));
}

TEST_CASE(
    "FieldU1_settings: every setting changed from its default changes the resolved config, and the resolved config "
    "reads back") {
  const TrainConfig defaults;
  for (const Setting& s : train_settings()) {
    CAPTURE(s.name);
    std::string value = "7";
    if (!s.choices.empty()) value = s.choices.back();
    if (const auto* field = std::get_if<bool TrainConfig::*>(&s.field)) value = defaults.**field ? "false" : "true";
    const TrainConfig changed = read_config("", {{s.name, value}});
    if (s.choices.size() != 1) CHECK(to_yaml(changed) != to_yaml(defaults));
    TemporaryFolder folder;
    write_text(folder / "c.yaml", to_yaml(changed));
    CHECK(to_yaml(read_config((folder / "c.yaml").string(), {})) == to_yaml(changed));
    for (const std::string& alias : s.aliases) CHECK(to_yaml(read_config("", {{alias, value}})) == to_yaml(changed));
  }
}

TEST_CASE("cli: preview shows both answers of a pair, what is supervised in them, and how much is computed once") {
  TemporaryFolder folder;
  write_tiny_model(folder / "model");
  write_text(folder / "pairs.jsonl", R"({"prompt": "say ab", "chosen": "abc", "rejected": "abd"})"
                                     "\n"
                                     R"({"prompt": "say x", "chosen": "x", "rejected": "y"})"
                                     "\n");
  const std::vector<std::string> common = {
      "preview", "--model", (folder / "model").string(), "--data", (folder / "pairs.jsonl").string(), "--pairs"};
  const auto preview = [&](const char* row) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), {"--row", row});
    return run(arguments);
  };
  const Ran second = preview("2");
  CHECK(second.code == 0);
  CHECK(second.output.find("\u27e6x<|im_end|>") != std::string::npos);
  CHECK(second.output.find("\u27e6y<|im_end|>") != std::string::npos);
  // <|im_start|> user\n say x <|im_end|> \n <|im_start|> assistant\n
  static_assert(1 + 5 + 5 + 1 + 1 + 1 + 10 == 24);
  CHECK(second.output.find("the first 24 tokens are shared") != std::string::npos);
  const Ran missing = preview("3");
  CHECK(missing.code == 2);
  CHECK(missing.output.find("row 3") != std::string::npos);
}

TEST_CASE("cli: eval loss says how many supervised tokens were the likeliest") {
  const TinyRun tiny;
  const Ran eval =
      run({"eval", "loss", "--model", tiny.config.model, "--data", (tiny.folder / "data/valid.jsonl").string(),
           "--precision", "fp32", "--out", (tiny.folder / "loss.json").string()});
  CHECK(eval.code == 0);
  CHECK(eval.output.find("token accuracy 0.") != std::string::npos);
  const Json result = Json::parse(read_whole_file(tiny.folder / "loss.json"));
  Heard heard;
  TrainConfig config = tiny.config;
  config.max_steps = 1;
  train(config, heard);
  if (!on_cuda()) CHECK(result["mean_token_accuracy"].get<double>() == heard.evals.front().accuracy.mean());
}

TEST_CASE("cli: a default by objective is in the help") {
  const Ran help = run({"train", "--help"});
  CHECK(help.output.find("peak learning rate; default by objective: 5e-6 dpo") != std::string::npos);
}

TEST_CASE("cli: all problems of a config are shown at once") {
  const Ran bad = run({"train", "--batch_size", "0", "--precision", "fp8", "--tile", "100"});
  CHECK(bad.code == 2);
  for (const char* name : {"batch_size", "precision", "tile", "model", "data"}) {
    CAPTURE(name);
    CHECK(bad.output.find(name) != std::string::npos);
  }
}

TEST_CASE("cli: a missing model gives one line and exits with 1") {
  const Ran missing = run({"generate", "--model", "/does/not/exist.gguf", "--prompt", "x"});
  CHECK(missing.code == 1);
  CHECK(std::count(missing.output.begin(), missing.output.end(), '\n') == 1);
}

TEST_CASE("cli: plan works from shapes alone and fails with what is missing when nothing fits") {
  TinyRun tiny;
  const Ran plan = run({"plan", "--model", tiny.config.model, "--tokens", "4096", "--json"});
  CHECK(plan.code == 0);
  CHECK(Json::parse(plan.output)["num_tokens"] == 4096);
  const Ran small = run({"plan", "--model", tiny.config.model, "--tokens", "4096", "--memory", "1MiB"});
  CHECK(small.code == 1);
  CHECK(small.output.find("no schedule fits") != std::string::npos);
}

TEST_SUITE("full") {
  TEST_CASE(
      "FieldC1_kill: killed at 20 random moments and resumed, the run ends with the bytes of an uninterrupted one") {
    TinyRun tiny(12);
    tiny.config.max_steps = 60;
    tiny.config.save_every = 3;
    tiny.config.dropout = 0.1;
    const TrainConfig whole = tiny.into("whole");
    REQUIRE(wait_for(start(train_command(whole, tiny.folder / "whole.yaml"), tiny.folder / "log")) == 0);
    TrainConfig killed = tiny.into("killed");
    killed.resume = true;
    const auto command = train_command(killed, tiny.folder / "killed.yaml");
    std::mt19937 engine(1);
    int code = -SIGKILL, kills = 0;
    while (kills < 20 && code != 0) {
      const pid_t pid = start(command, tiny.folder / "log");
      std::this_thread::sleep_for(std::chrono::milliseconds(60 + engine() % 240));
      kill(pid, SIGKILL);
      code = wait_for(pid);
      ++kills;
    }
    MESSAGE(kills, " kills");
    if (code != 0) code = wait_for(start(command, tiny.folder / "log"));
    CAPTURE(read_whole_file(tiny.folder / "log"));
    REQUIRE(code == 0);
    CHECK(read_whole_file(fs::path(killed.adapter_path) / "last/adapter_model.safetensors") ==
          read_whole_file(fs::path(whole.adapter_path) / "last/adapter_model.safetensors"));
    CHECK(read_whole_file(fs::path(killed.adapter_path) / "last/optimizer.safetensors") ==
          read_whole_file(fs::path(whole.adapter_path) / "last/optimizer.safetensors"));
  }

  TEST_CASE("FieldC3_atomic: killed while it saves every step, the newest complete checkpoint always loads") {
    TinyRun tiny(12);
    tiny.config.max_steps = 2000;
    tiny.config.save_every = 1;
    tiny.config.rank = 64;
    tiny.config.save_total_limit = 3;
    tiny.config.steps_per_eval = 0;
    tiny.config.resume = true;
    const auto command = train_command(tiny.config, tiny.folder / "c.yaml");
    const auto model = load_model(tiny.config.model);
    std::mt19937 engine(2);
    int64_t last = -1;
    for (int i = 0; i < 20; ++i) {
      const pid_t pid = start(command, tiny.folder / "log");
      std::this_thread::sleep_for(std::chrono::milliseconds(400 + engine() % 400));
      kill(pid, SIGKILL);
      REQUIRE(wait_for(pid) == -SIGKILL);
      const auto found = find_checkpoint(tiny.config.adapter_path);
      if (!found) continue;
      const LoadedAdapter adapter = load_adapter(found->folder, model->config);
      std::vector<float> p(adapter.flat.size()), m(p.size()), v(p.size());
      CHECK_NOTHROW(load_checkpoint(*found, adapter.layout, model->config, p.data(), m.data(), v.data()));
      CHECK(found->state.step >= last);
      last = found->state.step;
    }
    CHECK(last > 20);
  }
}

}  // namespace sluice::test
