#include "data/rated.h"

#include <fmt/format.h>

#include <array>
#include <map>

#include "data/row_reader.h"

namespace sluice {

namespace {

constexpr const char* needed = "{\"prompt\", \"completion\", \"label\"}, label true or false";

struct Line {
  DataRow data;
  bool desirable = true;
};

Line parse_line(std::string_view text) {
  const Json row = parse_object(text, needed);
  for (const char* key : {"prompt", "completion", "label"}) {
    if (!row.contains(key)) refuse_row(fmt::format("there is no \"{}\", needed {}", key, needed));
  }
  if (!row["label"].is_boolean())
    refuse_row(fmt::format("label is {}, needed true or false", row["label"].dump(-1, ' ', false).substr(0, 40)));
  Line line{.data = answer_row({.row = row, .prompt = row["prompt"], .answer = row["completion"]},
                               {"prompt", "completion", "label"}),
            .desirable = row["label"].get<bool>()};
  refuse_graded_weights(line.data);
  return line;
}

// The prompt of `line`, as it was kept, with another answer.
DataRow with_answer(const Line& line, const Line& other) {
  DataRow data = line.data;
  data.messages.erase(data.messages.begin() + static_cast<std::ptrdiff_t>(data.first_target), data.messages.end());
  data.weights.resize(data.first_target);
  for (size_t i = other.data.first_target; i < other.data.messages.size(); ++i) {
    data.messages.push_back(other.data.messages[i]);
    data.weights.push_back(1);
  }
  data.plain = data.plain && other.data.plain;
  return data;
}

// What is called good and bad at once teaches nothing.
void drop_contradictions(RatedData& data, std::vector<Line>& kept) {
  std::map<std::vector<int32_t>, std::array<bool, 2>> labels;
  for (const RatedSample& row : data.rows) labels[row.own.ids][row.desirable ? 1 : 0] = true;
  size_t to = 0;
  for (size_t from = 0; from < data.rows.size(); ++from) {
    const std::array<bool, 2>& seen = labels[data.rows[from].own.ids];
    if (seen[0] && seen[1]) continue;
    if (to != from) data.rows[to] = std::move(data.rows[from]), kept[to] = std::move(kept[from]);
    ++to;
  }
  data.report.rows_contradicted = static_cast<int64_t>(data.rows.size() - to);
  data.rows.resize(to);
  kept.resize(to);
}

}  // namespace

RatedData read_rated(const std::string& path, const ModelText& text, const DatasetOptions& options) {
  RatedData data;
  DataReport& report = data.report;
  RowReader rows(path, text, answers_alone(options), report);
  std::vector<Line> kept;
  rows.for_each_row([&](std::string_view text_line, int64_t number) {
    Line line = parse_line(text_line);
    auto samples = rows.samples(
        {&line.data}, line.desirable ? "unpaired preference, label true" : "unpaired preference, label false", number);
    if (!samples) return;
    data.rows.push_back(
        {.own = std::move(samples->front()), .mismatched = {}, .desirable = line.desirable, .row = number});
    kept.push_back(std::move(line));
  });
  drop_contradictions(data, kept);
  rows.finish(data.rows.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    RatedSample& row = data.rows[i];
    row.mismatched = tokenise(with_answer(kept[i], kept[(i + 1) % kept.size()]), text, TrainOn::all_answers).sample;
    row.mismatched.row = row.row;
    cut(row.mismatched, options.max_seq_length);
    report.count(row.own);
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
