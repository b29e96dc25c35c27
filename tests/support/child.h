// The program in a process of its own, as a user starts it.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include "support/tiny_run.h"

namespace sluice::test {

struct ChildOptions {
  int output = -1;         // a file descriptor for standard output; -1: the log
  rlim_t file_bytes = 0;   // RLIMIT_FSIZE; 0: as it is
  rlim_t space_bytes = 0;  // RLIMIT_AS
};

// Standard error, and standard output unless it goes elsewhere, are written to `log`.
inline pid_t start(const std::vector<std::string>& arguments, const fs::path& log, const ChildOptions& options = {}) {
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  dup2(options.output < 0 ? fd : options.output, 1);
  dup2(fd, 2);
  for (const auto& [which, bytes] :
       {std::pair(RLIMIT_FSIZE, options.file_bytes), std::pair(RLIMIT_AS, options.space_bytes)}) {
    const rlimit limit{bytes, bytes};
    if (bytes > 0) setrlimit(which, &limit);
  }
  execv(argv[0], argv.data());
  _exit(127);
}

// The exit code, or minus the signal that ended it.
inline int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

struct Ran {
  int code = 0;
  std::string output;
};

// sluice with these arguments, from start to end.
inline Ran run(std::vector<std::string> arguments, const ChildOptions& options = {}) {
  TemporaryFolder folder;
  arguments.insert(arguments.begin(), program_path().string());
  const int code = wait_for(start(arguments, folder / "log", options));
  return {code, read_whole_file(folder / "log")};
}

inline std::vector<std::string> train_command(const TrainConfig& config, const fs::path& yaml) {
  write_text(yaml, to_yaml(config));
  return {program_path().string(), "train", "-c", yaml.string()};
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace sluice::test
