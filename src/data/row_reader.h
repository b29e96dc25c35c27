// What the readers of this folder share: from a row to its sequences, with the policy for lengths, the split of a file and the report.
//
//   RowReader rows(path, text, options, report);
//   rows.for_each_row([&](std::string_view line, int64_t number) {
//     DataRow row = parse_row(line);
//     if (auto samples = rows.samples({&row}, row.kind, number)) use(std::move(samples->front()));
//   });
//   rows.finish(kept);
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/jsonl.h"
#include "data/row_text.h"

namespace sluice {

// Tokens before the first supervised one.
int64_t prompt_length(const Sample& sample);

void cut(Sample& sample, int64_t limit);

// For objectives that compare answers: of every row its answers are learned.
DatasetOptions answers_alone(DatasetOptions options);

class RowReader {
 public:
  // Throws Error(bad_config) when max_seq_length is too small to train on.
  RowReader(const std::string& path, const ModelText& text, const DatasetOptions& options, DataReport& report);

  // use(line, number) for every line that is not blank.
  template <class Use>
  void for_each_row(const Use& use) {
    for_each_line(report_.path, [&](std::string_view line, int64_t number) {
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) ++report_.blank_lines;
      else use(line, number);
      return true;
    });
  }

  // The sequences of one row, which share their prompt: tokenised, counted, and cut or with a shorter prompt where the options say so (then the
  // rows have it too). Nothing for a row that is left out, or belongs to the other part of the file.
  std::optional<std::vector<Sample>> samples(const std::vector<DataRow*>& rows, const std::string& kind,
                                             int64_t number);

  // Throws Error(bad_file) when there was no row at all, Error(bad_config) when none is kept: why, with a max_seq_length that works.
  void finish(size_t rows_kept);

 private:
  std::vector<Sample> tokenise_all(const std::vector<DataRow*>& rows, bool count);
  int64_t excess(const std::vector<Sample>& samples) const;
  bool shorten(const std::vector<DataRow*>& rows, std::vector<Sample>& samples);
  bool is_of_this_part(const DataRow& row) const;
  [[noreturn]] void nothing_left() const;

  const ModelText& text_;
  const DatasetOptions options_;
  DataReport& report_;
  std::vector<int64_t> lengths_, prompts_;
};

}  // namespace sluice
