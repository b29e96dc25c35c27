#include "data/row_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

int64_t prompt_length(const Sample& sample) {
  return std::find(sample.supervised.begin(), sample.supervised.end(), 1) - sample.supervised.begin();
}

void cut(Sample& sample, int64_t limit) {
  if (static_cast<int64_t>(sample.ids.size()) <= limit) return;
  sample.ids.resize(static_cast<size_t>(limit));
  sample.supervised.resize(static_cast<size_t>(limit));
}

RowReader::RowReader(const std::string& path, const DatasetOptions& options, DataReport& report) : report_(report) {
  check(options.max_seq_length >= 2, ErrorCode::bad_config,
        fmt::format("max_seq_length is {}; training needs at least 2 tokens a row", options.max_seq_length));
  report.path = path;
  report.max_seq_length = options.max_seq_length;
  report.truncate = options.truncate;
}

void RowReader::count(const std::string& kind) {
  ++report_.rows_read;
  ++report_.kinds[kind];
}

void RowReader::measure(int64_t tokens, int64_t prompt_tokens) {
  lengths_.push_back(tokens);
  prompts_.push_back(prompt_tokens);
}

bool RowReader::keep(std::initializer_list<Sample*> sequences) {
  const int64_t limit = report_.max_seq_length;
  int64_t excess = 0;
  for (const Sample* s : sequences) excess += std::max<int64_t>(static_cast<int64_t>(s->ids.size()) - limit, 0);
  if (excess > 0 && !report_.truncate) {
    ++report_.rows_too_long;
    return false;
  }
  if (excess > 0) {
    ++report_.rows_cut;
    report_.tokens_cut += excess;
    for (Sample* s : sequences) cut(*s, limit);
  }
  if (std::all_of(sequences.begin(), sequences.end(), [](const Sample* s) { return s->num_targets() > 0; }))
    return true;
  ++report_.rows_without_targets;
  return false;
}

void RowReader::finish(size_t rows_kept) {
  report_.lengths = Quantiles::of(lengths_);
  report_.prompts = Quantiles::of(prompts_);
  report_.rows_kept = static_cast<int64_t>(rows_kept);
  check(report_.rows_read > 0, ErrorCode::bad_file,
        report_.path + ": there is no row in it; needed one JSON object a line");
}

}  // namespace sluice
