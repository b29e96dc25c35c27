// What the readers of this folder share: the report of a file, and the policy for rows that are too long.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset.h"
#include "data/jsonl.h"
#include "data/row_format.h"

namespace sluice {

// Tokens before the first supervised one.
int64_t prompt_length(const Sample& sample);

void cut(Sample& sample, int64_t limit);

class RowReader {
 public:
  // Throws Error(bad_config) when max_seq_length is too small to train on.
  RowReader(const std::string& path, const DatasetOptions& options, DataReport& report);

  // use(line, number) for every line that is not blank.
  template <class Use>
  void for_each_row(const Use& use) {
    for_each_line(report_.path, [&](std::string_view line, int64_t number) {
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) ++report_.blank_lines;
      else use(line, number);
      return true;
    });
  }

  void count(const std::string& kind);
  // Tokens of the row as read, and those before its first target.
  void measure(int64_t tokens, int64_t prompt_tokens);
  // Counts what becomes of a row, cuts its sequences where the options say so, and says whether it is kept.
  bool keep(std::initializer_list<Sample*> sequences);
  // Throws Error(bad_file) when there was no row at all.
  void finish(size_t rows_kept);

 private:
  DataReport& report_;
  std::vector<int64_t> lengths_, prompts_;
};

}  // namespace sluice
