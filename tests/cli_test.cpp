// The program as a user runs it: exit codes and one clear line.
#include "support/child.h"
#include "support/source_dir.h"
#include "support/tiny_run.h"
#include "train/config.h"

namespace sluice::test {

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

}  // namespace sluice::test
