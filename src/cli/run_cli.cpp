#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>

#include "cli/command.h"
#include "core/error.h"
#include "core/version.h"

namespace sluice {

std::vector<std::pair<std::string, std::string>> as_settings(const std::vector<std::string>& rest) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (size_t i = 0; i < rest.size(); ++i) {
    check(rest[i].size() > 2 && rest[i].starts_with("--"), ErrorCode::bad_config,
          "'" + rest[i] + "' is no setting; settings are given as --name value");
    std::string name = rest[i].substr(2), value;
    const size_t equals = name.find('=');
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    std::replace(name.begin(), name.end(), '-', '_');
    if (equals == std::string::npos) {
      const Setting* setting = find_setting(name);
      const bool is_switch = setting != nullptr && std::holds_alternative<bool TrainConfig::*>(setting->field);
      const bool has_value = i + 1 < rest.size() && !rest[i + 1].starts_with("--");
      check(has_value || is_switch || setting == nullptr, ErrorCode::bad_config,
            fmt::format("--{} has no value; give --{} VALUE", name, name));
      value = has_value ? rest[++i] : "true";
    }
    settings.emplace_back(name, value);
  }
  return settings;
}

// CLI::Range lets NaN pass.
CLI::Validator number_from(double low, double high) {
  return {[low, high](std::string& text) -> std::string {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return "";
            return fmt::format("it is {} and may be {} to {}", text, low, high);
          },
          fmt::format("FLOAT in [{} - {}]", low, high)};
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "where to run: cpu, cuda or cuda:1")->capture_default_str();
}

void tell(const std::string& note) {
  if (!note.empty()) std::fprintf(stderr, "note: %s\n", note.c_str());
}

namespace {

int code_of(ErrorCode code) {
  return code == ErrorCode::bad_config ? exit_usage : code == ErrorCode::cancelled ? exit_stopped : exit_failed;
}

// What was printed may still lie in a buffer: a full disk shows here.
int flush_output(int code) {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || !std::cout.flush() || std::ferror(stdout) != 0;
  if (!lost) return code;
  std::fprintf(stderr, "sluice: standard output cannot be written: %s; what was printed is not whole\n",
               errno != 0 ? std::strerror(errno) : "an earlier write failed");
  return code == exit_ok ? exit_failed : code;
}

// A program that is started with a standard file closed would open others under its number, and print into them. What is printed to the
// stand-in fails, and is told.
void open_standard_files() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF && ::open("/dev/null", O_RDONLY) != fd) std::abort();
  }
}

int run(int argc, char** argv) {
  CLI::App app{
      "Sluice fine-tunes language models with LoRA on long sequences, in memory that is known before the run starts.",
      "sluice"};
  app.set_version_flag("--version", std::string("sluice ") + version);
  app.require_subcommand(1);
  app.footer("`sluice <command> --help` explains a command. Settings of a run: docs/settings.md.");
  add_train(app);
  add_plan(app);
  add_generate(app);
  add_eval(app);
  add_inspect(app);
  add_doctor(app);
  add_preview(app);
  add_data(app);
  add_convert(app);
  try {
    app.parse(argc, argv);
    return exit_ok;
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? exit_ok : exit_usage;
  } catch (const Error& e) {
    std::fprintf(stderr, "sluice: %s\n", e.what());
    return code_of(e.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sluice: out of memory outside the planned arenas; give a smaller --memory\n");
    return exit_failed;
  } catch (const std::exception& e) {
    if (std::ferror(stdout) == 0) std::fprintf(stderr, "sluice: %s\n", e.what());  // else flush_output tells
    return exit_failed;
  }
}

}  // namespace

int run_cli(int argc, char** argv) {
  open_standard_files();
  return flush_output(run(argc, argv));
}

}  // namespace sluice
