// sluice train: a run from its YAML file and flags.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/command.h"
#include "cli/stop_on_signal.h"
#include "eval/chunk_task.h"
#include "train/objective_config.h"
#include "train/adapter_setup.h"
#include "train/trainer.h"

namespace sluice {

namespace {

std::string settings_help() {
  std::string text =
      "Settings, in the YAML file or as --name value (flags win); docs/settings.md has them with other tools' names:\n";
  for (const Setting& s : train_settings()) {
    const std::string by = defaults_by_objective(s.name);
    text += fmt::format("  --{:<26} {}{}{}\n", s.name, s.help,
                        s.choices.empty() ? "" : fmt::format(" ({})", fmt::join(s.choices, ", ")),
                        by.empty() ? "" : "; default " + by);
  }
  text +=
      "\nSIGINT, SIGTERM, SIGHUP, SIGUSR1, a closed output and max_hours end the run after its step, with a "
      "checkpoint; a second signal\n"
      "after its microbatch, without. Exit codes: 0 done, 1 failed, 2 asked for wrongly, 3 stopped early (--resume "
      "goes on).\n";
  return text;
}

}  // namespace

TrainConfig config_from_command(const std::string& yaml, const std::vector<std::string>& rest) {
  std::vector<std::string> notes;
  TrainConfig config = read_config(yaml, as_settings(rest), &notes);
  for (const std::string& note : notes) fmt::print("note: {}\n", note);
  return config;
}

ValidationTask make_task(const TrainConfig& config, const Model& model, const ModelText& text, ThreadPool& pool) {
  SLUICE_ASSERT(config.eval_task == "chunk");  // the only choice of the setting
  const auto task = std::make_shared<const ChunkTask>(
      model, text, pool,
      ChunkTaskOptions{.data = config.eval_task_data,
                       .max_new_tokens = config.eval_task_max_tokens,
                       .dtype = config.precision == "fp32" ? DType::f32 : DType::bf16});
  return {config.eval_task, task->bytes(adapter_layout(config, model)),
          [task](const Adapter& adapter) { return task->run(adapter).score().total(); }};
}

void add_train(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Fine-tune an adapter: sluice train -c config.yaml [--name value …]");
  auto yaml = std::make_shared<std::string>();
  command->add_option("-c,--config", *yaml, "YAML file of settings");
  auto markdown = std::make_shared<bool>(false);
  command->add_flag("--settings", *markdown,
                    "print every setting with its default as Markdown (docs/settings.md) and end");
  command->allow_extras();
  command->footer(settings_help());
  command->callback([command, yaml, markdown] {
    if (*markdown) {
      fmt::print("{}", settings_markdown());
      return;
    }
    const TrainConfig config = config_from_command(*yaml, command->remaining());
    StopRequest stop;
    const StopOnSignal signals(stop);
    ConsoleProgress progress(stdout, &stop);
    train(config, progress, make_task, &stop);
  });
}

}  // namespace sluice
