// Numbers at the ends of their ranges, in settings and in model files: they train, or are refused by name, and never end as "a bug in sluice".
#include <sys/resource.h>

#include "io/json_file.h"
#include "model/config_reader.h"
#include "model/model.h"
#include "model/registry.h"
#include "support/child.h"

namespace sluice::test {

namespace {

// What a run says that ends in an Error, which is none of our own mistakes; empty when it ends well.
std::string outcome(const TrainConfig& config) {
  Heard heard;
  try {
    train(config, heard);
  } catch (const Error& e) {
    CAPTURE(e.what());
    CHECK(e.code() != ErrorCode::bug);
    CHECK_FALSE(contains(e.what(), "bug in sluice"));
    return e.what();
  }
  return "";
}

// Paths of all numbers of a config, "rope_scaling/factor".
void numbers_of(const Json& object, const std::string& above, std::vector<std::string>& paths) {
  for (const auto& [key, value] : object.items()) {
    const std::string path = above.empty() ? key : above + "/" + key;
    if (value.is_object()) numbers_of(value, path, paths);
    if (value.is_number()) paths.push_back(path);
  }
}

}  // namespace

TEST_CASE("settings: betas of 1 and an epsilon of 0, also after rounding to float32, are refused by name") {
  for (const auto& [name, value] : {std::pair{"adam_beta1", "1"},
                                    {"adam_beta2", "1"},
                                    {"adam_beta2", "0.99999999"},
                                    {"adam_epsilon", "0"},
                                    {"adam_epsilon", "1e-50"}}) {
    CAPTURE(name);
    const std::vector<std::string> problems = validate(read_config("", {{name, value}, {"model", "m"}, {"data", "d"}}));
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].starts_with(name));
  }
}

TEST_CASE("config.json: an epsilon of 0, below it or none, and layers that the file cannot hold, are refused by name") {
  TinyRun run;
  const fs::path config = run.folder / "model/config.json";
  const Json whole = Json::parse(read_whole_file(config));
  const auto message = [&](const char* key, const Json& value) {
    Json changed = whole;
    changed[key] = value;
    write_text(config, changed.dump());
    return outcome(run.config);
  };
  for (const Json& value : {Json(0), Json(-1e-6), Json(1e30), Json("1e-6"), Json(1e-50)})
    CHECK(contains(message("rms_norm_eps", value), "'rms_norm_eps' is"));
  CHECK(contains(message("num_hidden_layers", 20000000), "'num_hidden_layers' is 20000000 and the file holds"));
  CHECK_FALSE(fs::exists(run.config.adapter_path));
}

TEST_CASE("ConfigReader: numbers that are not finite, as GGUF metadata can hold, are refused by key") {
  Json config = {{"llama.attention.layer_norm_rms_epsilon", std::numeric_limits<double>::quiet_NaN()},
                 {"llama.rope.freq_base", std::numeric_limits<double>::infinity()}};
  const ConfigReader reader(config, "m.gguf", "llama.");
  for (const char* key : {"attention.layer_norm_rms_epsilon", "rope.freq_base"}) {
    std::string message;
    try {
      reader.number_or(key, 1);
    } catch (const Error& e) {
      message = e.what();
    }
    CHECK(contains(message, fmt::format("m.gguf: 'llama.{}'", key)));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose shadow memory is no address space of ours

TEST_CASE("limits: 20,000,000 layers in a config cost no memory") {
  TemporaryFolder folder;
  write_tiny_model(folder / "model");
  Json config = Json::parse(read_whole_file(folder / "model/config.json"));
  config["num_hidden_layers"] = 20000000;
  write_text(folder / "model/config.json", config.dump());
  const Ran ran = run({"inspect", (folder / "model").string()}, {.space_bytes = 400 << 20});
  CHECK(ran.code == 2);
  CHECK(contains(ran.output, "'num_hidden_layers' is 20000000"));
}

TEST_CASE("limits: a process that runs out of address space ends in one line") {
  TinyRun tiny;
  tiny.config.rank = 64;
  tiny.config.max_steps = 2;
  const auto command = train_command(tiny.config, tiny.folder / "c.yaml");
  int refused = 0;
  for (rlim_t mib : {60, 100, 140, 180, 220, 260, 300, 400}) {
    CAPTURE(mib);
    const int code = wait_for(start(command, tiny.folder / "log", {.space_bytes = mib << 20}));
    const std::string log = read_whole_file(tiny.folder / "log");
    CAPTURE(log);
    fs::remove_all(tiny.config.adapter_path);
    if (code == 0) continue;
    ++refused;
    CHECK(code > 0);
    const bool loader = contains(log, "error while loading shared libraries");  // before the program begins
    CHECK((loader || contains(log, "sluice: ")));
    CHECK_FALSE(contains(log, "terminate called"));
  }
  CHECK(refused > 0);
}

#endif

TEST_SUITE("full") {
  TEST_CASE("limits: every numeric setting at the ends of its range trains or is refused") {
    TinyRun run(6, 20);
    for (const Setting& s : train_settings()) {
      if (s.name == "threads") continue;  // as many as the machine may start
      const bool is_length = s.name == "iters" || s.name == "max_steps" || s.name == "num_epochs";
      for (double value : {s.low, s.high}) {
        if (is_length && value == s.high) continue;  // a run of 1e9 steps is what was asked for
        TrainConfig config = run.into("out-" + s.name);
        config.max_steps = 0;
        config.iters = 2;
        if (const auto* field = std::get_if<int64_t TrainConfig::*>(&s.field))
          config.** field = static_cast<int64_t>(value);
        else if (const auto* real = std::get_if<double TrainConfig::*>(&s.field)) config.** real = value;
        else continue;
        CAPTURE(s.name);
        CAPTURE(value);
        outcome(config);
        fs::remove_all(config.adapter_path);
      }
    }
  }

  TEST_CASE("limits: every number of a config.json at 0, -1 and far too large trains or is refused") {
    TinyRun run(6, 20);
    run.config.max_steps = 1;
    run.config.steps_per_eval = 0;
    const fs::path place = run.folder / "model/config.json";
    const Json whole = Json::parse(read_whole_file(place));
    std::vector<std::string> paths;
    numbers_of(whole, "", paths);
    for (const std::string& path : paths) {
      for (const Json& value : {Json(0), Json(-1), Json(0.5), Json(1e30), Json(-1e30), Json(20000000),
                                Json(int64_t{1} << 62), Json(-(int64_t{1} << 62))}) {
        CAPTURE(path);
        CAPTURE(value.dump());
        Json changed = whole;
        changed[Json::json_pointer("/" + path)] = value;
        write_text(place, changed.dump());
        outcome(run.config);
        fs::remove_all(run.config.adapter_path);
      }
    }
  }

  TEST_CASE("limits: every number of every family's config.json is read or refused") {
    for (const auto& entry : fs::directory_iterator(oracle_dir())) {
      if (!fs::exists(entry.path() / "config.json") || !fs::exists(entry.path() / "model.safetensors")) continue;
      TemporaryFolder folder;
      fs::create_directory(folder / "model");
      fs::create_symlink(fs::absolute(entry.path() / "model.safetensors"), folder / "model/model.safetensors");
      const Json whole = Json::parse(read_whole_file(entry.path() / "config.json"));
      std::vector<std::string> paths;
      numbers_of(whole, "", paths);
      for (const std::string& path : paths) {
        for (const Json& value : {Json(0), Json(-1), Json(0.5), Json(1e30), Json(20000000), Json(int64_t{1} << 62),
                                  Json(-(int64_t{1} << 62))}) {
          CAPTURE(entry.path().filename().string());
          CAPTURE(path);
          CAPTURE(value.dump());
          Json changed = whole;
          changed[Json::json_pointer("/" + path)] = value;
          write_text(folder / "model/config.json", changed.dump());
          try {
            load_model((folder / "model").string());
          } catch (const Error& e) {
            CAPTURE(e.what());
            CHECK(e.code() != ErrorCode::bug);
          }
        }
      }
    }
  }
}

TEST_CASE("duplicates: a key that stands twice in YAML, in flags or in JSON is refused, under any of its names") {
  TemporaryFolder folder;
  const auto yaml = [&](const std::string& text) {
    write_text(folder / "c.yaml", text);
    try {
      read_config((folder / "c.yaml").string(), {});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  CHECK(contains(yaml("seed: 1\nlearning_rate: 1e-4\nlearning_rate: 1e-5\n"),
                 "c.yaml:3: 'learning_rate' is given twice"));
  CHECK(contains(yaml("lr: 1e-4\nlearning_rate: 1e-5\n"), "c.yaml:1 has 'lr' already"));
  CHECK(contains(yaml("rank: 4\nlora_parameters:\n  rank: 8\n"), "'lora_parameters.rank' is given twice"));
  CHECK(contains(yaml("lora_parameters:\n  rank: 8\nlora_parameters:\n  scale: 8\n"), "given twice"));
  CHECK(contains(yaml("rank_pattern:\n  q_proj: 8\n  q_proj: 4\n"), "given twice"));
  CHECK(yaml("learning_rate: 1e-5\nlr_schedule:\n  name: cosine_decay\n  arguments: [1e-5, 100, 0]\n").empty());
  CHECK_THROWS_AS(read_config("", {{"iters", "1"}, {"seed", "2"}, {"iters", "3"}}), Error);
  write_text(folder / "once.yaml", "seed: 1\n");
  CHECK(read_config((folder / "once.yaml").string(), {{"seed", "2"}}).seed == 2);
  std::string message;
  try {
    parse_json(R"({"r": 8, "inner": {"r": 1}, "r": 16})", "adapter_config.json");
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK(contains(message, "adapter_config.json: the key \"r\" stands twice"));
  CHECK(parse_json(R"([{"a": 1, "b": {"a": 2}}, {"a": 3}])", "x").size() == 2);
}

TEST_CASE("cli: a flag without its value is refused, a switch needs none, dashes in names are underscores") {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--adapter_path"}, {"--learning_rate", "--seed", "1"}, {"--max-hours"}}) {
    std::vector<std::string> arguments = {"train", "--model", "m", "--data", "d"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Ran ran = run(arguments);
    CHECK(ran.code == 2);
    CHECK(contains(ran.output, "has no value"));
  }
  const Ran given = run({"train", "--model", "/nowhere", "--data", "d", "--shuffle", "--max-hours", "2"});
  CHECK(given.code == 1);
  CHECK(contains(given.output, "/nowhere"));
}

TEST_CASE("cli: sampler settings that are no number or out of range are refused by name") {
  for (const char* flag : {"--temp", "--top-p", "--repetition-penalty"}) {
    for (const char* value : {"nan", "-nan", "inf", "-1"}) {
      CAPTURE(flag);
      CAPTURE(value);
      const Ran ran = run({"generate", "--model", "/nowhere", "--prompt", "x", flag, value});
      CHECK(ran.code == 2);
      CHECK(contains(ran.output, flag));
    }
  }
}

TEST_CASE("cli: every command that cannot write its output says so and fails") {
  TinyRun tiny;
  const int full = open("/dev/full", O_WRONLY);
  REQUIRE(full >= 0);
  const std::string model = tiny.config.model, rows = tiny.config.data + "/valid.jsonl";
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--version"},
                                                    {"--help"},
                                                    {"doctor"},
                                                    {"inspect", model},
                                                    {"plan", "--model", model, "--tokens", "100"},
                                                    {"plan", "--model", model, "--tokens", "100", "--json"},
                                                    {"preview", "--model", model, "--data", rows},
                                                    {"generate", "--model", model, "--prompt", "ab", "-n", "4"},
                                                    {"generate", "--model", model, "--prompt", "ab", "-n", "4", "-q"},
                                                    {"eval", "loss", "--model", model, "--data", rows},
                                                    {"train", "--settings"}}) {
    CAPTURE(arguments[0]);
    const Ran ran = run(arguments, {.output = full});
    CHECK(ran.code == 1);
    CHECK(contains(ran.output, "sluice: "));
    CHECK(contains(ran.output, "cannot be written"));
  }
  close(full);
}

}  // namespace sluice::test
