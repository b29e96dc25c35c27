// What the readers of this folder share: from a row to its sequences, with the policy for lengths, the split of a file and the report.
//
//   RowReader rows(path, text, options, report);
//   rows.for_each_row([&](const Json& object, int64_t number) {
//     DataRow row = parse_row(object);
//     if (auto samples = rows.samples({&row}, row.kind, number)) use(std::move(samples->front()));
//   });
//   rows.finish(kept);
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/row_source.h"
#include "data/row_text.h"

namespace sluice {

// Of white space alone.
bool is_blank(std::string_view text);

// Tokens before the first supervised one.
int64_t prompt_length(const Sample& sample);

void cut(Sample& sample, int64_t limit);

// For objectives that compare answers: of every row its answers are learned.
DatasetOptions answers_alone(DatasetOptions options);

class RowReader {
 public:
  // Throws Error(bad_config) when max_seq_length is too small to train on.
  RowReader(const std::string& path, const ModelText& text, const DatasetOptions& options, DataReport& report);

  // use(object, number) for every row that is not blank, its keys as options.columns says.
  template <class Use>
  void for_each_row(const Use& use) {
    sluice::for_each_row(report_.path, [&](std::string_view text, int64_t number) {
      if (is_blank(text)) ++report_.blank_lines;
      else use(object_of(text), number);
      return true;
    });
  }

  // Throws Error(bad_file) for a row of another kind than the first, unless options.allow_mixed.
  void check_kind(const std::string& kind);

  // The sequences of one row, which share their prompt: tokenised, counted, and cut or with a shorter prompt where the options say so (then the
  // rows have it too). Nothing for a row that is left out, or belongs to the other part of the file.
  std::optional<std::vector<Sample>> samples(const std::vector<DataRow*>& rows, const std::string& kind,
                                             int64_t number);

  // Throws Error(bad_file) when there was no row at all, Error(bad_config) when none is kept (why, with a max_seq_length that works) or none has a
  // key that options.columns names.
  void finish(size_t rows_kept);

 private:
  std::vector<Sample> tokenise_all(const std::vector<DataRow*>& rows, bool count);
  int64_t excess(const std::vector<Sample>& samples) const;
  bool shorten(const std::vector<DataRow*>& rows, std::vector<Sample>& samples);
  bool is_of_this_part(const DataRow& row) const;
  Json object_of(std::string_view text);
  void check_columns() const;
  [[noreturn]] void nothing_left() const;

  const ModelText& text_;
  const DatasetOptions options_;
  DataReport& report_;
  std::string kind_;                    // of the first row
  std::set<std::string> seen_columns_;  // names of options_.columns that a row has
  std::vector<int64_t> lengths_, prompts_;
};

}  // namespace sluice
