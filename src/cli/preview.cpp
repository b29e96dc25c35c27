// sluice preview: what a run would be trained on.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/preview_html.h"
#include "data/preference.h"
#include "data/rated.h"
#include "io/weight_source.h"
#include "train/config.h"

namespace sluice {

namespace {

struct Options {
  std::string model, data, truncate = "false", train_on = "all", color = "auto", html, chat_template,
                           chat_template_args;
  int64_t row = 1;
  DatasetOptions rules;
  bool full = false, pairs = false, rated = false;
  std::vector<std::string> columns;
};

// Learned text in green, the more of it the brighter; else in ⟦ ⟧.
std::string shown(const Options& o, const Sample& sample, const ModelText& text) {
  const bool color = o.color == "always" || (o.color == "auto" && ::isatty(STDOUT_FILENO) == 1);
  if (!color) return preview(sample, text.tokenizer);
  std::string result;
  for (const Stretch& part : stretches(sample, text.tokenizer)) {
    if (part.weight == 0) result += part.text;
    else result += fmt::format("\x1b[{}m{}\x1b[0m", part.weight < 1 ? "32" : "1;32", part.text);
    if (part.weight > 0 && part.weight != 1) result += fmt::format("\x1b[2m×{}\x1b[0m", part.weight);
  }
  return result;
}

void preview_pair(const Options& o, const ModelText& text) {
  const PreferenceData data = read_preferences(o.data, text, o.rules);
  const auto pair =
      std::find_if(data.pairs.begin(), data.pairs.end(), [&](const PairSample& p) { return p.row == o.row; });
  check(pair != data.pairs.end(), ErrorCode::bad_config,
        fmt::format("row {} of {} is not trained on: it is not there, or was dropped\n{}", o.row, o.data,
                    data.report.summary()));
  for (const auto& [name, sample] : {std::pair{"chosen", &pair->chosen}, std::pair{"rejected", &pair->rejected}}) {
    fmt::print("{}, {} tokens, {} of them supervised\n{}\n\n", name, sample->ids.size(), sample->num_targets(),
               shown(o, *sample, text));
  }
  fmt::print("row {}: the first {} tokens are shared and computed once\n{}\n", o.row, pair->shared,
             data.report.summary());
}

void preview_rated(const Options& o, const ModelText& text) {
  const RatedData data = read_rated(o.data, text, o.rules);
  int64_t shown_rows = 0;
  for (const RatedSample& row : data.rows) {
    if (row.row != o.row) continue;
    ++shown_rows;
    fmt::print("label {}, {} tokens, {} of them supervised\n{}\n\n", row.desirable, row.own.ids.size(),
               row.own.num_targets(), shown(o, row.own, text));
  }
  check(shown_rows > 0, ErrorCode::bad_config,
        fmt::format("row {} of {} is not trained on: it is not there, or was dropped\n{}", o.row, o.data,
                    data.report.summary()));
  fmt::print("{}\n", data.report.summary());
}

void preview_row(const Options& o, const ModelText& text) {
  const Sample sample = read_sample(o.data, o.row, text, o.rules);
  const auto length = static_cast<int64_t>(sample.ids.size());
  fmt::print("{}\n", shown(o, sample, text));
  fmt::print("\nrow {}: {} tokens, {} of them supervised", o.row, length, sample.num_targets());
  if (length > o.rules.max_seq_length)
    fmt::print("; longer than max_seq_length {}, and truncate is {}", o.rules.max_seq_length, o.truncate);
  fmt::print("\n{}\n", read_dataset(o.data, text, o.rules).report.summary());
}

// All rows as they are trained on, in one file.
void write_html(const Options& o, const ModelText& text) {
  PreviewPage page(o.html, o.model, text.tokenizer);
  if (o.pairs) {
    const PreferenceData data = read_preferences(o.data, text, o.rules);
    for (const PairSample& pair : data.pairs) {
      page.add(pair.chosen, fmt::format("row {}, chosen", pair.row));
      page.add(pair.rejected, fmt::format("row {}, rejected; {} tokens shared", pair.row, pair.shared));
    }
    page.finish(data.report);
  } else if (o.rated) {
    const RatedData data = read_rated(o.data, text, o.rules);
    for (const RatedSample& row : data.rows) page.add(row.own, fmt::format("row {}, label {}", row.row, row.desirable));
    page.finish(data.report);
  } else {
    const Dataset data = read_dataset(o.data, text, o.rules);
    for (const Sample& sample : data.samples) page.add(sample, fmt::format("row {}", sample.row));
    page.finish(data.report);
  }
  fmt::print("{} shows {}\n", o.html, o.data);
}

void run_preview(Options o) {
  check(!o.full || o.train_on == "all", ErrorCode::bad_config,
        "--full trains on every token, --train-on last on the last answer; give one");
  o.rules.train_on = o.full ? TrainOn::everything : o.train_on == "last" ? TrainOn::last_answer : TrainOn::all_answers;
  o.rules.truncate = truncate_of(o.truncate);
  check(!o.pairs || !o.rated, ErrorCode::bad_config, "--pairs and --rated read the rows differently; give one");
  for (const std::string& column : o.columns) {
    const size_t equals = column.find('=');
    const std::string name = column.substr(0, equals);
    check(equals != std::string::npos && find_setting("columns." + name) != nullptr, ErrorCode::bad_config,
          fmt::format("--columns {}: needed NAME=KEY, NAME as in the settings columns.NAME, e.g. prompt=question",
                      column));
    o.rules.columns.names.emplace_back(name, column.substr(equals + 1));
  }
  const std::unique_ptr<WeightSource> source = open_model(o.model, {.allow_header_only = true});
  ModelText text = load_model_text(*source);
  for (const std::string& note : text.notes) fmt::print(stderr, "note: {}\n", note);
  if (!o.chat_template.empty()) text.use_template(o.chat_template);
  text.use_arguments(o.chat_template_args);
  if (!o.html.empty()) write_html(o, text);
  else if (o.pairs) preview_pair(o, text);
  else if (o.rated) preview_rated(o, text);
  else preview_row(o, text);
}

}  // namespace

void add_preview(CLI::App& app) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("preview", "Show a row of a data set as it is trained on, and what becomes of the rest");
  command->add_option("--model", o->model, "a model folder or .gguf file, for its tokenizer and chat template")
      ->required();
  command->add_option("--data", o->data, "a file of JSON lines, a JSON list or CSV, packed or not")->required();
  command->add_option("--row", o->row, "line, element or record of the file, from 1")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--max-seq-length", o->rules.max_seq_length, "as in training")->capture_default_str();
  command->add_option("--truncate", o->truncate, "as in training: false, true, left or right")
      ->expected(0, 1)
      ->default_str("true")
      ->option_text("[false,true,left,right]=false");
  command->add_option("--train-on", o->train_on, "as in training")->check(CLI::IsMember({"all", "last"}));
  command->add_option("--chat-template", o->chat_template, "as in training: a file in place of the model's template");
  command->add_option("--chat-template-args", o->chat_template_args, "as in training: a JSON object for the template");
  command->add_flag("--pairs", o->pairs, "rows of preference pairs, as dpo reads them");
  command->add_flag("--rated", o->rated, "rows of rated answers, as kto reads them");
  command->add_flag("--allow-mixed", o->rules.allow_mixed, "rows of different kinds in one file");
  command
      ->add_option("--columns", o->columns, "NAME=KEY …: the rows' other names for keys, as the settings columns.NAME")
      ->expected(1, -1);
  command->add_flag("--full", o->full, "every token is supervised (mask_prompt: false)");
  command->add_option("--color", o->color, "learned text in colour; auto: on a terminal, else in ⟦ ⟧")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  command->add_option("--html", o->html, "write all rows to this file, a page for a browser");
  command->callback([o] { run_preview(*o); });
}

}  // namespace sluice
