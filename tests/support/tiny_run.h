// A whole run in a temporary folder: the oracle's llama-gqa weights, a byte-level tokenizer, a ChatML template, a few rows.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "support/contexts.h"
#include "support/letters.h"
#include "support/oracle.h"
#include "train/config.h"
#include "train/progress.h"
#include "train/trainer.h"

namespace sluice::test {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "sluice-test-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

inline void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// Ids 0 to 255 are bytes; <|endoftext|> 256, <|im_start|> 257, <|im_end|> 258.
inline void write_tiny_model(const fs::path& folder, const char* oracle = "llama-gqa") {
  fs::create_directories(folder);
  fs::copy_file(oracle_dir() / oracle / "model.safetensors", folder / "model.safetensors");
  Json config = Json::parse(read_whole_file(oracle_dir() / oracle / "config.json"));
  config["eos_token_id"] = 258;
  config["bos_token_id"] = 256;
  write_text(folder / "config.json", config.dump());
  Json vocabulary = Json::object(), added = Json::array();
  const std::vector<std::string> letters = byte_letters();
  for (int b = 0; b < 256; ++b) vocabulary[letters[static_cast<size_t>(b)]] = b;
  int id = 256;
  for (const char* name : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    vocabulary[name] = id;
    added.push_back({{"id", id++},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", added},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model",
                           {{"type", "BPE"},
                            {"dropout", nullptr},
                            {"unk_token", nullptr},
                            {"continuing_subword_prefix", nullptr},
                            {"end_of_word_suffix", nullptr},
                            {"fuse_unk", false},
                            {"byte_fallback", false},
                            {"vocab", vocabulary},
                            {"merges", Json::array()}}}};
  write_text(folder / "tokenizer.json", tokenizer.dump());
  write_text(folder / "tokenizer_config.json", Json({{"bos_token", "<|endoftext|>"},
                                                     {"eos_token", "<|im_end|>"},
                                                     {"pad_token", "<|im_end|>"},
                                                     {"chat_template", chatml}})
                                                   .dump());
}

// Rows whose answers repeat a word of the prompt; lengths vary.
inline std::string tiny_rows(int count, int longest = 60, uint32_t seed = 5) {
  std::mt19937 engine(seed);
  std::string rows;
  for (int i = 0; i < count; ++i) {
    std::string word;
    const int length = 3 + static_cast<int>(engine() % static_cast<uint32_t>(longest));
    for (int c = 0; c < length; ++c) word += static_cast<char>('a' + engine() % 26);
    rows +=
        Json({{"prompt", "say " + word}, {"completion", word.substr(0, 3 + static_cast<size_t>(length) / 3)}}).dump() +
        "\n";
  }
  return rows;
}

struct TinyRun {
  TemporaryFolder folder;
  TrainConfig config;

  explicit TinyRun(int rows = 24, int longest = 60) {
    write_tiny_model(folder / "model");
    write_text(folder / "data/train.jsonl", tiny_rows(rows, longest));
    write_text(folder / "data/valid.jsonl", tiny_rows(4, longest, 99));
    config.model = (folder / "model").string();
    config.data = (folder / "data").string();
    config.adapter_path = (folder / "out").string();
    config.max_steps = 6;
    config.rank = 4;
    config.learning_rate = 1e-3;
    config.save_every = 2;
    config.steps_per_eval = 3;
    config.steps_per_report = 1;
    config.precision = "fp32";
    config.threads = 2;
    config.device = on_cuda() ? "cuda" : "cpu";
  }

  // A second folder for the same model and data.
  TrainConfig into(const std::string& out) const {
    TrainConfig other = config;
    other.adapter_path = (folder / out).string();
    return other;
  }
};

// Remembers what a run told.
class Heard : public Progress {
 public:
  std::vector<std::string> phases, notes;
  std::vector<TrainReport> reports;
  std::vector<EvalReport> evals;
  std::vector<int64_t> saves;
  void phase(const std::string& name) override { phases.push_back(name); }
  void note(const std::string& text) override { notes.push_back(text); }
  void tick(int64_t, int64_t, int64_t, int64_t) override {}
  void train(const TrainReport& report) override { reports.push_back(report); }
  void eval(const EvalReport& report) override { evals.push_back(report); }
  void saved(int64_t step, const std::string&) override { saves.push_back(step); }
};

inline std::string adapter_bytes(const TrainConfig& config, const std::string& name = "last") {
  return read_whole_file(fs::path(config.adapter_path) / name / "adapter_model.safetensors");
}

// The lines of metrics.jsonl.
inline std::vector<Json> metrics(const TrainConfig& config) {
  std::vector<Json> lines;
  std::ifstream file(fs::path(config.adapter_path) / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

// What a run that must fail says; empty when it does not.
inline std::string message_of(const TrainConfig& config) {
  Heard heard;
  try {
    train(config, heard);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace sluice::test
