#include "train/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "io/atomic_file.h"

namespace sluice {

namespace {

std::string duration(double seconds) {
  if (!(seconds >= 0) || seconds > 8.64e6) return "?";
  const auto s = static_cast<int64_t>(seconds);
  if (s >= 3600) return fmt::format("{}:{:02d}:{:02d}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02d}", s / 60, s % 60);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string accuracy_field(const TokenAccuracy& a) {
  return a.tokens > 0 ? fmt::format(", Token accuracy {:.3f}", a.mean()) : "";
}

// ", Margin …" of a run on pairs, and the score of a task.
std::string pair_fields(const Json& metrics, const std::string& prefix) {
  std::string text;
  for (const auto& [name, value] : metrics.items()) {
    if (name.ends_with("_score")) text += fmt::format(", {} {:.2f}", name.substr(prefix.size()), value.get<double>());
  }
  for (const auto& [name, key] : {std::pair{"Margin", "rewards/margins"},
                                  {"Accuracy", "rewards/accuracies"},
                                  {"Logp chosen", "logps/chosen"},
                                  {"Logp rejected", "logps/rejected"}}) {
    const auto found = metrics.find(prefix + key);
    if (found != metrics.end()) text += fmt::format(", {} {:.3f}", name, found->get<double>());
  }
  if (metrics.contains("orpo_lambda")) text += fmt::format(", Lambda {:.4g}", metrics["orpo_lambda"].get<double>());
  return text;
}

}  // namespace

ConsoleProgress::ConsoleProgress(std::FILE* out, StopRequest* stop)
    : out_(out),
      stop_(stop),
      terminal_(isatty(fileno(out)) != 0),
      start_(std::chrono::steady_clock::now()),
      last_tick_(start_) {}

ConsoleProgress::~ConsoleProgress() { clear_bar(); }

void ConsoleProgress::put(const std::string& text) {
  if (lost_) return;
  errno = 0;
  lost_ = std::fputs(text.c_str(), out_) < 0 || std::fflush(out_) != 0;
  if (!lost_) return;
  std::fprintf(stderr, "sluice: progress cannot be written (%s): the run ends after this step and saves a checkpoint\n",
               std::strerror(errno));
  if (stop_ != nullptr) stop_->ask_to_save("its output was closed");
}

void ConsoleProgress::clear_bar() {
  if (bar_shown_) put("\r\033[K");
  bar_shown_ = false;
}

void ConsoleProgress::line(const std::string& text) {
  clear_bar();
  put(text + "\n");
}

void ConsoleProgress::phase(const std::string& name) {
  line(fmt::format("[{:7.2f} s] {}", seconds_since(start_), name));
}

void ConsoleProgress::note(const std::string& text) { line(text); }

void ConsoleProgress::tick(int64_t step, int64_t total_steps, int64_t part, int64_t parts) {
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (bar_shown_ && now - last_tick_ < std::chrono::milliseconds(100)) return;
  last_tick_ = now;
  constexpr int width = 24;
  const double done = (static_cast<double>(step) + static_cast<double>(part) / static_cast<double>(parts)) /
                      static_cast<double>(total_steps);
  const int filled = static_cast<int>(done * width);
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < filled ? "█" : "░";
  const double spent = seconds_since(start_);
  put(fmt::format("\r\033[K{} {:3.0f} %  step {}/{}  {} spent, {} left  {}", bar, 100 * done, step, total_steps,
                  duration(spent), done > 0 ? duration(spent / done - spent) : "?", last_report_));
  bar_shown_ = true;
}

void ConsoleProgress::train(const TrainReport& r) {
  last_report_ = fmt::format("loss {:.3f}", r.loss);
  line(fmt::format("Iter {}: Train loss {:.3f}, Learning Rate {:.3e}, It/sec {:.3f}, Tokens/sec {:.3f}, Trained Tokens "
                   "{}, Peak mem {:.3f} GB",
                   r.step, r.loss, r.learning_rate, r.steps_per_second, r.tokens_per_second, r.trained_tokens,
                   static_cast<double>(r.peak_bytes) / 1e9) +
       accuracy_field(r.accuracy) + (r.skipped_steps > 0 ? fmt::format(", Skipped steps {}", r.skipped_steps) : "") +
       pair_fields(r.objective, ""));
}

void ConsoleProgress::eval(const EvalReport& r) {
  line(fmt::format("Iter {}: {}Val took {:.3f}s", r.step, r.tokens > 0 ? fmt::format("Val loss {:.3f}, ", r.loss) : "",
                   r.seconds) +
       accuracy_field(r.accuracy) + pair_fields(r.objective, "eval_"));
}

void ConsoleProgress::saved(int64_t step, const std::string& folder) {
  line(fmt::format("Iter {}: Saved adapter weights to {}.", step, folder));
}

MetricsFile::MetricsFile(const std::string& path, int64_t resume_step) : path_(path) {
  std::string kept;
  if (resume_step >= 0) {
    std::ifstream old(path);
    for (std::string line; std::getline(old, line);) {
      const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (json.is_object() && json.contains("step") && json["step"].is_number() && json["step"] <= resume_step)
        kept += line + "\n";
    }
    if (old.bad()) fail(EIO);
  }
  atomic_write_file(path, kept);
  file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) fail(errno);
}

MetricsFile::~MetricsFile() { ::close(file_); }

void MetricsFile::fail(int reason) const {
  throw Error(ErrorCode::bad_file,
              fmt::format("{}: cannot be written ({}); the checkpoints are whole: free some space, then go on with "
                          "--resume",
                          path_, std::strerror(reason)));
}

void MetricsFile::write(const Json& line) {
  const std::string text = line.dump() + "\n";
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t count = ::write(file_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(count == 0 ? ENOSPC : errno);
    rest.remove_prefix(static_cast<size_t>(count));
  }
}

void MetricsFile::sync() {
  if (::fsync(file_) != 0 && errno != EINVAL) fail(errno);  // EINVAL: not a file of a disk
}

Json to_json(const TrainReport& r) {
  Json line = {{"type", "train"},
               {"step", r.step},
               {"epoch", r.epoch},
               {"loss", r.loss},
               {"grad_norm", r.grad_norm},
               {"learning_rate", r.learning_rate},
               {"iterations_per_second", r.steps_per_second},
               {"tokens_per_second", r.tokens_per_second},
               {"num_tokens", r.trained_tokens},
               {"skipped_steps", r.skipped_steps},
               {"peak_memory", static_cast<double>(r.peak_bytes) / 1e9}};
  if (r.accuracy.tokens > 0) line["mean_token_accuracy"] = r.accuracy.mean();
  line.update(r.objective);
  return line;
}

Json to_json(const EvalReport& r) {
  Json line = {{"type", "eval"}, {"step", r.step}, {"eval_runtime", r.seconds}, {"eval_num_tokens", r.tokens}};
  if (r.tokens > 0) line["eval_loss"] = r.loss;
  if (r.accuracy.tokens > 0) line["eval_mean_token_accuracy"] = r.accuracy.mean();
  line.update(r.objective);
  return line;
}

}  // namespace sluice
