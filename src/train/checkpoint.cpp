#include "train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "data/chat_files.h"
#include "io/atomic_file.h"
#include "io/json_file.h"
#include "io/safetensors.h"
#include "model/adapter_file.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

// 2: what a resumed run must share is kept readable.
constexpr int64_t state_format = 2;

std::string step_name(int64_t step) { return fmt::format("step-{:07d}", step); }

// Not step-0000100-good or step-0000100.tmp: what somebody copied or renamed is theirs.
bool is_step_name(const std::string& name) {
  return name.starts_with("step-") && name.size() > 5 && name.find_first_not_of("0123456789", 5) == std::string::npos;
}

std::span<const std::byte> bytes_of(const float* values, int64_t count) {
  return {reinterpret_cast<const std::byte*>(values), static_cast<size_t>(count) * sizeof(float)};
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

// A symbolic link that is replaced in one step. Relative, so that the folder can be moved.
void point(const fs::path& out, const std::string& name, const std::string& target) {
  const fs::path temporary = out / (name + ".tmp");
  std::error_code ignored;
  fs::remove(temporary, ignored);
  fs::create_directory_symlink(target, temporary);
  fs::rename(temporary, out / name);
  sync_folder(out);
}

Json to_json(const std::optional<double>& value) { return value ? Json(*value) : Json(); }
std::optional<double> optional_from(const Json& j) {
  return j.is_null() ? std::nullopt : std::optional(j.get<double>());
}

Json state_json(const TrainState& s) {
  return {{"format", state_format},
          {"step", s.step},
          {"microbatches", s.microbatches},
          {"trained_tokens", s.trained_tokens},
          {"skipped_steps", s.skipped_steps},
          {"first_train_loss", to_json(s.first_train_loss)},
          {"first_eval_loss", to_json(s.first_eval_loss)},
          {"last_eval_loss", to_json(s.last_eval_loss)},
          {"window_loss", s.window_loss},
          {"window_count", s.window_count},
          {"best_metric", s.best_metric},
          {"best_step", s.best_step},
          {"best_eval", to_json(s.best_eval)},
          {"evals_since_best", s.evals_since_best},
          {"chosen_at_start", to_json(s.chosen_at_start)},
          {"lambda", s.lambda},
          {"total_steps", s.total_steps},
          {"run", s.run}};
}

TrainState state_from(const Json& j, const std::string& path) {
  TrainState s;
  try {
    const auto format = j.at("format").get<int64_t>();
    check(format == state_format, ErrorCode::bad_file,
          fmt::format("{}: format {}, needed {}; it was written by {} sluice: finish the run with that one, or start a "
                      "new run from its adapter with resume_adapter_file",
                      path, format, state_format, format < state_format ? "an older" : "a newer"));
    s.step = j.at("step").get<int64_t>();
    s.microbatches = j.at("microbatches").get<int64_t>();
    s.trained_tokens = j.at("trained_tokens").get<int64_t>();
    s.skipped_steps = j.at("skipped_steps").get<int64_t>();
    s.first_train_loss = optional_from(j.at("first_train_loss"));
    s.first_eval_loss = optional_from(j.at("first_eval_loss"));
    s.last_eval_loss = optional_from(j.at("last_eval_loss"));
    s.window_loss = j.at("window_loss").get<double>();
    s.window_count = j.at("window_count").get<double>();
    s.best_metric = j.at("best_metric").get<double>();
    s.best_step = j.at("best_step").get<int64_t>();
    s.best_eval = optional_from(j.at("best_eval"));
    s.evals_since_best = j.at("evals_since_best").get<int64_t>();
    s.chosen_at_start = optional_from(j.at("chosen_at_start"));
    s.lambda = j.at("lambda");
    s.total_steps = j.at("total_steps").get<int64_t>();
    s.run = j.at("run");
    check(s.run.at("settings").is_object() && s.run.at("contents").is_object(), ErrorCode::bad_file,
          path + ": 'run' holds no settings and contents; the checkpoint is damaged, remove its folder");
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::bad_file,
                fmt::format("{}: {}; the checkpoint is damaged, remove its folder", path, e.what()));
  }
  return s;
}

std::vector<fs::path> checkpoint_folders(const fs::path& out) {
  std::vector<fs::path> folders;
  if (!fs::is_directory(out)) return folders;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory() || entry.is_symlink() || !is_step_name(name)) continue;
    if (fs::exists(entry.path() / "state.json")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end(), [](const fs::path& a, const fs::path& b) {  // step-10000000 is the last
    const auto key = [](const fs::path& p) { return std::pair(p.native().size(), p.native()); };
    return key(a) < key(b);
  });
  return folders;
}

// First out of the way: a kill in between leaves a name that counts for nothing and is cleaned up at the next start.
void remove_folder(const fs::path& folder) {
  if (!fs::exists(folder)) return;
  const fs::path away = folder.string() + ".old.tmp";
  fs::remove_all(away);
  fs::rename(folder, away);
  fs::remove_all(away);
}

}  // namespace

int64_t checkpoint_bytes(const AdapterLayout& layout) { return 3 * layout.size() * 4 + (1 << 16); }

std::string save_checkpoint(const std::string& out, const CheckpointView& view) {
  const fs::path root(out), temporary = root / (step_name(view.state.step) + ".tmp"),
                            final_name = root / step_name(view.state.step);
  try {
    fs::create_directories(root);
    fs::remove_all(temporary);
    fs::create_directories(temporary);
    save_peft_adapter(temporary.string(), view.layout, view.parameters, view.base, view.prefix);
    const int64_t n = view.layout.size();
    write_safetensors((temporary / "optimizer.safetensors").string(),
                      {{"exp_avg", "F32", {n}, bytes_of(view.m, n)}, {"exp_avg_sq", "F32", {n}, bytes_of(view.v, n)}},
                      {{"step", std::to_string(view.state.step)}});
    if (view.text != nullptr) {
      if (view.text->chat) save_chat_files(*view.text->chat, temporary.string());
      const Json generation = {{"eos_token_id", view.text->stop_ids}};
      atomic_write_file((temporary / "generation_config.json").string(), generation.dump(2) + "\n");
    }
    atomic_write_file((temporary / "state.json").string(), state_json(view.state).dump(2) + "\n");
    sync_folder(temporary);
    remove_folder(final_name);  // the same step, saved again
    fs::rename(temporary, final_name);
    sync_folder(root);
    point(root, "last", step_name(view.state.step));
  } catch (Error& e) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw e.while_doing("saving a checkpoint");
  } catch (const fs::filesystem_error& e) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw Error(ErrorCode::bad_file,
                fmt::format("saving a checkpoint in {}: {}; the checkpoints before it are whole", out, e.what()));
  }
  return final_name.string();
}

void point_best(const std::string& out, int64_t step) {
  if (step >= 0 && fs::exists(fs::path(out) / step_name(step) / "state.json")) point(out, "best", step_name(step));
}

std::optional<LoadedCheckpoint> find_checkpoint(const std::string& out) {
  const std::vector<fs::path> folders = checkpoint_folders(out);
  if (folders.empty()) return std::nullopt;
  const std::string state = (folders.back() / "state.json").string();
  return LoadedCheckpoint{folders.back().string(), state_from(read_json_file(state), state)};
}

void load_checkpoint(const LoadedCheckpoint& checkpoint, const AdapterLayout& layout, const ModelConfig& config,
                     float* parameters, float* m, float* v) {
  load_adapter_into(checkpoint.folder, config, layout, parameters);
  const SafetensorsFile file((fs::path(checkpoint.folder) / "optimizer.safetensors").string());
  for (const auto& [name, into] : {std::pair{"exp_avg", m}, std::pair{"exp_avg_sq", v}}) {
    const StoredTensor* tensor = file.find(name);
    check(tensor != nullptr && tensor->dtype == "F32" && tensor->numel() == layout.size(), ErrorCode::bad_file,
          fmt::format("{}: {} is missing or of another size", file.path(), name));
    std::memcpy(into, tensor->data.data(), tensor->data.size());
  }
}

void check_links(const std::string& out) {
  for (const char* name : {"last", "best"}) {
    const fs::path link = fs::path(out) / name;
    check(!fs::exists(link) || fs::is_symlink(link), ErrorCode::bad_config,
          fmt::format(
              "{} is there and no link; a run keeps a link to a checkpoint under this name: rename what is there, "
              "or give another adapter_path",
              link.string()));
  }
}

std::string instead_of_checkpoints(const std::string& out) {
  if (!fs::is_directory(out)) return "there is no such folder";
  if (fs::exists(fs::path(out) / "state.json")) return "the folder is a checkpoint itself; give the one above it";
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-")) continue;
    found.push_back(name + (name.ends_with(".tmp") ? " is a save that did not end" : " has no state.json"));
  }
  std::sort(found.begin(), found.end());
  return found.empty() ? "there is none in it" : fmt::format("{}", fmt::join(found, ", "));
}

void prune_checkpoints(const std::string& out, int64_t keep) {
  std::vector<fs::path> folders = checkpoint_folders(out);
  if (keep <= 0 || static_cast<int64_t>(folders.size()) <= keep) return;
  folders.resize(folders.size() - static_cast<size_t>(keep));
  for (const fs::path& folder : folders) {
    bool pointed_at = false;
    std::error_code ignored;
    for (const char* name : {"best", "last"}) {
      pointed_at = pointed_at || fs::equivalent(fs::path(out) / name, folder, ignored);
    }
    try {
      if (!pointed_at) remove_folder(folder);
    } catch (const fs::filesystem_error& e) {
      throw Error(ErrorCode::bad_file, fmt::format("{}: an old checkpoint cannot be removed: {}", out, e.what()));
    }
  }
}

void clean_after_kill(const std::string& out) {
  if (!fs::is_directory(out)) return;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if ((name.starts_with("step-") && name.ends_with(".tmp")) || name == "last.tmp" || name == "best.tmp")
      fs::remove_all(entry.path(), ignored);
  }
  const std::optional<LoadedCheckpoint> newest = find_checkpoint(out);
  if (!newest) return;
  point(out, "last", step_name(newest->state.step));
  point_best(out, newest->state.best_step);
}

}  // namespace sluice
