// What a run tells while it runs. ConsoleProgress: a bar on a terminal, plain greppable lines otherwise, in mlx-lm's order of fields.
// MetricsFile: one JSON object a line, always. Names of the numbers are those of Hugging Face and TRL.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "train/stop_request.h"

namespace sluice {

// Supervised tokens that were the likeliest in their place (a tie counts). Of pairs and rated answers: those of the chosen answers.
struct TokenAccuracy {
  int64_t hits = 0, tokens = 0;
  double mean() const { return static_cast<double>(hits) / static_cast<double>(tokens); }
};

struct TrainReport {
  int64_t step = 0, total_steps = 0;  // optimizer steps
  double epoch = 0;
  double loss = 0;  // per supervised token, or per pair, since the last report
  double learning_rate = 0, grad_norm = 0;
  double steps_per_second = 0, tokens_per_second = 0;  // all tokens that were run
  int64_t trained_tokens = 0;                          // supervised, since the start of the run
  int64_t peak_bytes = 0;                              // of the process, without mapped files
  int64_t skipped_steps = 0;                           // without a gradient, since the start of the run
  TokenAccuracy accuracy = {};                         // since the last report
  Json objective = Json::object();                     // of pairs, under TRL's names; empty for sft
};

struct EvalReport {
  int64_t step = 0;
  double loss = 0, seconds = 0;
  int64_t tokens = 0;  // 0: there is no loss, a task was scored alone
  TokenAccuracy accuracy = {};
  Json objective = Json::object();  // the same with "eval_" in front, and the score of a task
};

class Progress {
 public:
  virtual ~Progress() = default;
  virtual void phase(const std::string& name) = 0;  // loading, reading data, planning … with the time it took
  virtual void note(const std::string& text) = 0;   // one or more lines for the user
  virtual void tick(int64_t step, int64_t total_steps, int64_t part, int64_t parts) = 0;  // within a step
  virtual void train(const TrainReport& report) = 0;
  virtual void eval(const EvalReport& report) = 0;
  virtual void saved(int64_t step, const std::string& folder) = 0;
};

// A line that cannot be written (a closed pipe, a full disk) asks the run to stop, so that nobody takes a run that tells nothing for one
// that hangs.
class ConsoleProgress : public Progress {
 public:
  explicit ConsoleProgress(std::FILE* out = stdout, StopRequest* stop = nullptr);
  ~ConsoleProgress() override;
  void phase(const std::string& name) override;
  void note(const std::string& text) override;
  void tick(int64_t step, int64_t total_steps, int64_t part, int64_t parts) override;
  void train(const TrainReport& report) override;
  void eval(const EvalReport& report) override;
  void saved(int64_t step, const std::string& folder) override;

 private:
  void line(const std::string& text);
  void clear_bar();
  void put(const std::string& text);
  std::FILE* out_;
  StopRequest* stop_;
  bool lost_ = false;  // a write failed
  bool terminal_;
  bool bar_shown_ = false;
  std::string last_report_;
  std::chrono::steady_clock::time_point start_, last_tick_;
};

// Appends to out/metrics.jsonl. Each line is in the file when write() returns, and on the disk after sync(), which a run calls before it
// saves a checkpoint. A resumed run first drops the lines of steps after its checkpoint; the file is replaced whole. Throws Error(bad_file)
// when a line cannot be written, naming the file and the reason.
class MetricsFile {
 public:
  MetricsFile(const std::string& path, int64_t resume_step);  // resume_step < 0: a new file
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  void write(const Json& line);
  void sync();

 private:
  [[noreturn]] void fail(int reason) const;
  std::string path_;
  int file_ = -1;
};

Json to_json(const TrainReport& report);
Json to_json(const EvalReport& report);

// training.svg from metrics.jsonl: loss (train and validation), learning rate, gradient norm, memory; of pairs
// margin, accuracy and log-probabilities of both answers.
void write_plot(const std::string& metrics_path, const std::string& svg_path);

}  // namespace sluice
