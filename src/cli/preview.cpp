// sluice preview: what a run would be trained on.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "data/dataset.h"
#include "io/weight_source.h"

namespace sluice {

namespace {

struct Options {
  std::string model, data;
  int64_t row = 1;
  DatasetOptions rules;
  bool full = false;
};

void preview_row(Options o) {
  o.rules.mask_prompt = !o.full;
  const std::unique_ptr<WeightSource> source = open_model(o.model, {.allow_header_only = true});
  const ModelText text = load_model_text(*source);
  const Sample sample = read_sample(o.data, o.row, text, o.rules.mask_prompt);
  const auto length = static_cast<int64_t>(sample.ids.size());
  fmt::print("{}\n", preview(sample, text.tokenizer));
  fmt::print("\nrow {}: {} tokens, {} of them supervised, shown in ⟦ ⟧", o.row, length, sample.num_targets());
  if (length > o.rules.max_seq_length) {
    fmt::print("; longer than max_seq_length {}: {}", o.rules.max_seq_length,
               o.rules.truncate ? "cut at the end" : "dropped");
  }
  fmt::print("\n{}\n", read_dataset(o.data, text, o.rules).report.summary());
}

}  // namespace

void add_preview(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("preview", "Show a row of a data set as it is trained on, and what becomes of the rest");
  command->add_option("--model", o->model, "a model folder or .gguf file, for its tokenizer and chat template")
      ->required();
  command->add_option("--data", o->data, "a .jsonl file")->required();
  command->add_option("--row", o->row, "line of the file, from 1")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--max-seq-length", o->rules.max_seq_length, "as in training")->capture_default_str();
  command->add_flag("--truncate", o->rules.truncate, "as in training");
  command->add_flag("--full", o->full, "every token is supervised (mask_prompt: false)");
  command->callback([o] { preview_row(*o); });
}

}  // namespace sluice
