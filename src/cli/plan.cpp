// sluice plan: the memory of a run before it runs.
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/command.h"
#include "core/bytes.h"
#include "train/planner.h"

namespace sluice {

void add_plan(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan",
      "Show what memory a run will take and which schedules there are: sluice plan -c config.yaml [--name value …]");
  struct Options {
    std::string yaml;
    int64_t tokens = 0, targets = 0;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  command->add_option("-c,--config", o->yaml, "YAML file of settings, as for sluice train");
  command->add_option("--tokens", o->tokens,
                      "plan for one sequence of this length instead of the data's longest batch");
  command->add_option("--targets", o->targets, "supervised tokens in it; default: all");
  command->add_flag("--json", o->json, "the chosen plan as JSON");
  command->allow_extras();
  command->footer(
      "Without data, give --model and --tokens: a folder whose safetensors end after their headers is enough.\n"
      "With --device cuda and --memory no GPU need be here, only libsluice_cuda.so beside the program (a build with\n"
      "-DSLUICE_CUDA=ON), whose kernels know their scratch memory: the plan is an H100's or H200's.");
  command->callback([command, o] {
    const TrainConfig config = config_from_command(o->yaml, command->remaining());
    const PlannedRun planned = plan_run(config, o->tokens, o->targets, make_task);
    if (o->json) {
      fmt::print("{}\n", plan_json(planned.plan).dump(2));
      return;
    }
    fmt::print("{}\nranks of the adapter:\n{}", plan_table(planned.plan), planned.ranks);
    fmt::print("\ncandidates, leanest first:\n  {:>12} {:>12} {:>9}   schedule\n", "total", "step arena", "time");
    for (const Plan& p : planned.candidates) {
      fmt::print("  {:>12} {:>12} {:>8.2f}x   {}\n", format_bytes(p.total_bytes()), format_bytes(p.step_bytes),
                 p.relative_time, p.schedule.describe());
    }
    check(planned.plan.fits(), ErrorCode::out_of_memory,
          fmt::format("no schedule fits {}: the leanest needs {}, {} more", format_bytes(planned.plan.budget_bytes),
                      format_bytes(planned.plan.total_bytes()), format_bytes(planned.plan.missing_bytes())));
  });
}

}  // namespace sluice
