// sluice preview: what a run would be trained on.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "data/preference.h"
#include "io/weight_source.h"

namespace sluice {

namespace {

struct Options {
  std::string model, data;
  int64_t row = 1;
  DatasetOptions rules;
  bool full = false, pairs = false;
};

void preview_pair(const Options& o, const ModelText& text) {
  const PreferenceData data = read_preferences(o.data, text, o.rules);
  const auto pair =
      std::find_if(data.pairs.begin(), data.pairs.end(), [&](const PairSample& p) { return p.row == o.row; });
  check(pair != data.pairs.end(), ErrorCode::bad_config,
        fmt::format("row {} of {} is not trained on: it is not there, or was dropped\n{}", o.row, o.data,
                    data.report.summary()));
  for (const auto& [name, sample] : {std::pair{"chosen", &pair->chosen}, std::pair{"rejected", &pair->rejected}}) {
    fmt::print("{}, {} tokens, {} of them supervised, shown in ⟦ ⟧\n{}\n\n", name, sample->ids.size(),
               sample->num_targets(), preview(*sample, text.tokenizer));
  }
  fmt::print("row {}: the first {} tokens are shared and computed once\n{}\n", o.row, pair->shared,
             data.report.summary());
}

void preview_row(Options o) {
  o.rules.mask_prompt = !o.full;
  const std::unique_ptr<WeightSource> source = open_model(o.model, {.allow_header_only = true});
  const ModelText text = load_model_text(*source);
  if (o.pairs) return preview_pair(o, text);
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
  command->add_flag("--pairs", o->pairs, "rows of prompt, chosen and rejected");
  command->add_flag("--full", o->full, "every token is supervised (mask_prompt: false)");
  command->callback([o] { preview_row(*o); });
}

}  // namespace sluice
