#include "data/rated.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/row_reader.h"

namespace sluice {

namespace {

constexpr const char* needed = "{\"prompt\", \"completion\", \"label\"}, label true or false";

struct Line {
  Json prompt, completion;
  bool desirable = true;
  int64_t number = 0;
};

Line parse_line(std::string_view text, int64_t number) {
  const Json row = parse_object(text, needed);
  for (const char* key : {"prompt", "completion", "label"}) {
    if (!row.contains(key)) refuse_row(fmt::format("there is no \"{}\", needed {}", key, needed));
  }
  if (!row["label"].is_boolean())
    refuse_row(fmt::format("label is {}, needed true or false", row["label"].dump(-1, ' ', false).substr(0, 40)));
  return {row["prompt"], row["completion"], row["label"].get<bool>(), number};
}

Sample sample_of(const Json& prompt, const Json& completion, int64_t row, const ModelText& text) {
  Sample sample = make_sample(Json({{"prompt", prompt}, {"completion", completion}}).dump(), text, true);
  sample.row = row;
  return sample;
}

void check_kept(const DataReport& report) {
  check(report.rows_kept > 0, ErrorCode::bad_config,
        fmt::format("{}: none of {} rows can be trained on: {} are longer than max_seq_length {}, {} have an answer "
                    "without a token{}; set max_seq_length to {} to keep every row ({} for half of them)",
                    report.path, report.rows_read, report.rows_too_long, report.max_seq_length,
                    report.rows_without_targets, report.rows_cut > 0 ? " left when cut" : "", report.lengths.largest,
                    report.lengths.median));
}

}  // namespace

RatedData read_rated(const std::string& path, const ModelText& text, const DatasetOptions& options) {
  RatedData data;
  DataReport& report = data.report;
  RowReader rows(path, options, report);
  std::vector<Line> kept;
  rows.for_each_row([&](std::string_view text_line, int64_t number) {
    Line line = parse_line(text_line, number);
    Sample own = sample_of(line.prompt, line.completion, number, text);
    rows.count(line.desirable ? "unpaired preference, label true" : "unpaired preference, label false");
    rows.measure(static_cast<int64_t>(own.ids.size()), prompt_length(own));
    if (rows.keep({&own})) {
      data.rows.push_back({.own = std::move(own), .mismatched = {}, .desirable = line.desirable, .row = number});
      kept.push_back(std::move(line));
    }
  });
  rows.finish(data.rows.size());
  check_kept(report);
  for (size_t i = 0; i < kept.size(); ++i) {
    RatedSample& row = data.rows[i];
    row.mismatched = sample_of(kept[i].prompt, kept[(i + 1) % kept.size()].completion, row.row, text);
    cut(row.mismatched, options.max_seq_length);
    report.tokens += static_cast<int64_t>(row.own.ids.size());
    report.supervised += row.own.num_targets();
  }
  return data;
}

PreferenceBatch pack_rated(const std::vector<const RatedSample*>& rows, RatedAnswer answer) {
  std::vector<const Sample*> samples;
  samples.reserve(rows.size());
  for (const RatedSample* row : rows) samples.push_back(answer == RatedAnswer::own ? &row->own : &row->mismatched);
  PreferenceBatch batch{.tokens = pack(samples), .labels = {}, .num_pairs = static_cast<int64_t>(rows.size())};
  for (int32_t group : batch.tokens.groups) {
    const bool desirable = rows[static_cast<size_t>(group)]->desirable;
    batch.labels.push_back({group, desirable ? Part::chosen : Part::rejected});
  }
  return batch;
}

}  // namespace sluice
