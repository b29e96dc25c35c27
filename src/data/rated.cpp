#include "data/rated.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "data/rated_row.h"
#include "data/row_reader.h"

namespace sluice {

namespace {

// The prompt of `line`, as it was kept, with another answer.
DataRow with_answer(const RatedRow& line, const RatedRow& other) {
  DataRow data = line.data;
  if (!data.pieces.empty()) {
    const Json& last = other.data.messages.empty() ? Json() : other.data.messages.back().value("content", Json());
    data.pieces.back().text = last.is_string()            ? last.get<std::string>()
                              : other.data.pieces.empty() ? ""
                                                          : other.data.pieces.back().text;
    return data;
  }
  data.messages.erase(data.messages.begin() + static_cast<std::ptrdiff_t>(data.first_target), data.messages.end());
  data.weights.resize(data.first_target);
  const auto append = [&](const Json& message) {
    data.messages.push_back(message);
    data.weights.push_back(1);
  };
  if (!other.data.pieces.empty()) append({{"role", "assistant"}, {"content", other.data.pieces.back().text}});
  for (size_t i = other.data.first_target; i < other.data.messages.size(); ++i) append(other.data.messages[i]);
  data.plain = data.plain && other.data.plain;
  return data;
}

// What is called good and bad at once teaches nothing.
void drop_contradictions(RatedData& data, std::vector<RatedRow>& kept) {
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
  std::vector<RatedRow> kept, later;
  std::vector<RatedSample> later_samples;
  // The answer of the next row, which `mismatched` takes, has to be to another prompt: so those of one pair do not stand together.
  const auto take = [&](RatedRow& row, int64_t number, bool behind) {
    const std::string kind = row.kind + (row.desirable ? ", label true" : ", label false");
    auto samples = rows.samples({&row.data}, kind, number);
    if (!samples) return;
    (behind ? later_samples : data.rows)
        .push_back({.own = std::move(samples->front()), .mismatched = {}, .desirable = row.desirable, .row = number});
    (behind ? later : kept).push_back(std::move(row));
  };
  rows.for_each_row([&](const Json& object, int64_t number) {
    std::vector<RatedRow> answers = parse_rated(object);
    if (answers.empty()) {
      ++report.rows_read;
      ++report.rows_tied;
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      rows.check_kind(answers[i].kind);
      take(answers[i], number, i > 0);
    }
  });
  std::move(later.begin(), later.end(), std::back_inserter(kept));
  std::move(later_samples.begin(), later_samples.end(), std::back_inserter(data.rows));
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
