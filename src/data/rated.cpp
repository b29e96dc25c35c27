#include "data/rated.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/jsonl.h"

namespace sluice {

namespace {

constexpr const char* needed = "{\"prompt\", \"completion\", \"label\"}, label true or false";

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::bad_file, message); }

struct Line {
  Json prompt, completion;
  bool desirable = true;
  int64_t number = 0;
};

Line parse_line(std::string_view text, int64_t number) {
  Json row;
  try {
    row = Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& e) {
    refuse(fmt::format("column {}: no JSON, needed one object a line: {}", e.byte, needed));
  }
  if (!row.is_object()) refuse(fmt::format("no JSON object, needed one a line: {}", needed));
  for (const char* key : {"prompt", "completion", "label"}) {
    if (!row.contains(key)) refuse(fmt::format("there is no \"{}\", needed {}", key, needed));
  }
  if (!row["label"].is_boolean())
    refuse(fmt::format("label is {}, needed true or false", row["label"].dump(-1, ' ', false).substr(0, 40)));
  return {row["prompt"], row["completion"], row["label"].get<bool>(), number};
}

Sample sample_of(const Json& prompt, const Json& completion, int64_t row, const ModelText& text) {
  Sample sample = make_sample(Json({{"prompt", prompt}, {"completion", completion}}).dump(), text, true);
  sample.row = row;
  return sample;
}

void cut(Sample& sample, int64_t limit) {
  if (static_cast<int64_t>(sample.ids.size()) <= limit) return;
  sample.ids.resize(static_cast<size_t>(limit));
  sample.supervised.resize(static_cast<size_t>(limit));
}

// Length policy of one row; true when it is kept.
bool keep(Sample& sample, DataReport& report) {
  const int64_t excess = static_cast<int64_t>(sample.ids.size()) - report.max_seq_length;
  if (excess > 0 && !report.truncate) {
    ++report.rows_too_long;
    return false;
  }
  if (excess > 0) {
    ++report.rows_cut;
    report.tokens_cut += excess;
    cut(sample, report.max_seq_length);
  }
  if (sample.num_targets() > 0) return true;
  ++report.rows_without_targets;
  return false;
}

void check_kept(const DataReport& report) {
  check(report.rows_read > 0, ErrorCode::bad_file,
        report.path + ": there is no row in it; needed one JSON object a line");
  check(report.rows_kept > 0, ErrorCode::bad_config,
        fmt::format("{}: none of {} rows can be trained on: {} are longer than max_seq_length {}, {} have an answer "
                    "without a token{}; set max_seq_length to {} to keep every row ({} for half of them)",
                    report.path, report.rows_read, report.rows_too_long, report.max_seq_length,
                    report.rows_without_targets, report.rows_cut > 0 ? " left when cut" : "", report.lengths.largest,
                    report.lengths.median));
}

}  // namespace

RatedData read_rated(const std::string& path, const ModelText& text, const DatasetOptions& options) {
  check(options.max_seq_length >= 2, ErrorCode::bad_config,
        fmt::format("max_seq_length is {}; training needs at least 2 tokens a row", options.max_seq_length));
  RatedData data;
  DataReport& report = data.report;
  report.path = path;
  report.max_seq_length = options.max_seq_length;
  report.truncate = options.truncate;
  std::vector<Line> kept;
  std::vector<int64_t> lengths, prompts;
  for_each_line(path, [&](std::string_view text_line, int64_t number) {
    if (text_line.find_first_not_of(" \t\r") == std::string_view::npos) {
      ++report.blank_lines;
      return true;
    }
    Line line = parse_line(text_line, number);
    Sample own = sample_of(line.prompt, line.completion, number, text);
    ++report.rows_read;
    ++report.kinds[line.desirable ? "unpaired preference, label true" : "unpaired preference, label false"];
    lengths.push_back(static_cast<int64_t>(own.ids.size()));
    prompts.push_back(std::find(own.supervised.begin(), own.supervised.end(), 1) - own.supervised.begin());
    if (keep(own, report)) {
      data.rows.push_back({.own = std::move(own), .mismatched = {}, .desirable = line.desirable, .row = number});
      kept.push_back(std::move(line));
    }
    return true;
  });
  report.lengths = Quantiles::of(lengths);
  report.prompts = Quantiles::of(prompts);
  report.rows_kept = static_cast<int64_t>(data.rows.size());
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
