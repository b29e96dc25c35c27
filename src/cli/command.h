// One file a subcommand. Each adds itself to the program and runs when chosen.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "train/validation_task.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace sluice {

// The process' exit codes: 0 done, 1 the operation failed, 2 it was asked for wrongly, 3 a run was stopped early and can be resumed.
constexpr int exit_ok = 0, exit_failed = 1, exit_usage = 2, exit_stopped = 3;

void add_train(CLI::App& app);
void add_plan(CLI::App& app);
void add_generate(CLI::App& app);
void add_eval(CLI::App& app);
void add_inspect(CLI::App& app);
void add_doctor(CLI::App& app);
void add_preview(CLI::App& app);
void add_data(CLI::App& app);
void add_convert(CLI::App& app);

// The tasks that eval_task of a training run may name.
ValidationTask make_task(const TrainConfig& config, const Model& model, const ModelText& text, ThreadPool& pool);

// Settings from a YAML file and what the parser left over; prints notes on aliases.
TrainConfig config_from_command(const std::string& yaml, const std::vector<std::string>& rest);

// --device for a command that runs a model: cpu, cuda, cuda:1.
void add_device_option(CLI::App& command, std::string& device);

// For an option that is a finite number in a range, its ends included.
CLI::Validator number_from(double low, double high);

// A note on stderr; nothing when it is empty.
void tell(const std::string& note);

// The whole program: parses, runs, turns an Error into one line on stderr and a code.
int run_cli(int argc, char** argv);

// "--key value", "--key=value" and, of settings that are true or false, "--flag", left over by the parser, as pairs; dashes inside a name
// count as underscores. Throws Error(bad_config) for what is no flag or lacks its value.
std::vector<std::pair<std::string, std::string>> as_settings(const std::vector<std::string>& rest);

}  // namespace sluice
