#include <CLI/CLI.hpp>
#include <cstdio>
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
    std::string name = rest[i].substr(2), value = "true";
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    } else if (i + 1 < rest.size() && !rest[i + 1].starts_with("--")) {
      value = rest[++i];
    }
    settings.emplace_back(name, value);
  }
  return settings;
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "where to run: cpu, cuda or cuda:1")->capture_default_str();
}

int run_cli(int argc, char** argv) {
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
    return e.code() == ErrorCode::bad_config ? exit_usage : exit_failed;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sluice: out of memory outside the planned arenas; give a smaller --memory\n");
    return exit_failed;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sluice: %s\n", e.what());
    return exit_failed;
  }
}

}  // namespace sluice
