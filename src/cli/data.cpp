// sluice data: tools for training files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "data/pair_filter.h"
#include "io/weight_source.h"

namespace sluice {

namespace {

struct Options {
  std::string input, output, model;
  PairFilterOptions filter;
};

void run_pairs(const Options& o) {
  std::unique_ptr<WeightSource> source;
  std::unique_ptr<ModelText> text;
  if (!o.model.empty()) {
    source = open_model(o.model, {.allow_header_only = true});
    text = std::make_unique<ModelText>(load_model_text(*source));
  }
  fmt::print("{}\n", filter_pairs(o.input, o.output, o.filter, text.get()).summary());
}

void add_pairs(CLI::App& data) {
  auto o = std::make_shared<Options>();
  CLI::App* command = data.add_subcommand(
      "pairs", "Filter a preference set by score gap, length ratio and length, and hold out prompts for validation");
  PairFilterOptions& f = o->filter;
  command->add_option("input", o->input, "a data file of preference pairs")->required();
  command->add_option("--output", o->output, "folder for train.jsonl, valid.jsonl and pairs_report.json")->required();
  command->add_option("--model", o->model, "measure lengths in this model's tokens, as training renders them");
  command->add_option("--min-score-gap", f.min_score_gap, "drop rows whose scores differ by less, or that have none")
      ->check(number_from(0, 1e300));
  command->add_option("--score-chosen", f.score_chosen,
                      "key of chosen's score; default: score_chosen, chosen_score or chosen_rating");
  command->add_option("--score-rejected", f.score_rejected, "key of rejected's score, likewise");
  command->add_option("--max-length-ratio", f.max_length_ratio, "drop rows with a longer / shorter answer above this")
      ->check(number_from(0, 1e300));
  command->add_option("--max-length", f.max_length, "drop rows whose prompt with the longer answer is longer");
  command->add_option("--min-length", f.min_length, "drop rows whose shorter answer is shorter");
  command->add_option("--held-out", f.held_out, "part of the prompts that goes to valid.jsonl, e.g. 0.1")
      ->check(number_from(0, 0.999));
  command->add_option("--seed", f.seed, "of the choice of held-out prompts")->capture_default_str();
  command->footer("Lengths are in characters without --model. Rows with equal answers are always dropped.");
  command->callback([o] { run_pairs(*o); });
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* command = app.add_subcommand("data", "Tools for training files");
  command->require_subcommand(1);
  add_pairs(*command);
}

}  // namespace sluice
