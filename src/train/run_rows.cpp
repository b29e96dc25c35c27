#include "train/run_rows.h"

#include <fmt/format.h>

namespace sluice {

namespace {

using Samples = std::vector<Sample>;
using Pairs = std::vector<PairSample>;
using Rated = std::vector<RatedSample>;

template <class Row>
std::vector<const Row*> pick(const std::vector<Row>& all, const std::vector<int64_t>& rows) {
  std::vector<const Row*> picked;
  picked.reserve(rows.size());
  for (int64_t row : rows) picked.push_back(&all[static_cast<size_t>(row)]);
  return picked;
}

}  // namespace

StepBatch step_batch(const Batch& b) { return {.ids = b.ids, .spans = b.spans, .rows = b.rows, .targets = b.targets}; }

RunRows RunRows::read(const std::string& path, const ModelText& text, const DatasetOptions& options,
                      const Objective& objective, DataReport* report) {
  RunRows rows;
  rows.prompt_targets_ = objective.trains_prompt();
  const auto take = [&](auto data, auto member) {
    *report = std::move(data.report);
    rows.rows_ = std::move(data.*member);
  };
  if (objective.kind == ObjectiveKind::sft) take(read_dataset(path, text, options), &Dataset::samples);
  else if (objective.kind == ObjectiveKind::kto) take(read_rated(path, text, options), &RatedData::rows);
  else take(read_preferences(path, text, options), &PreferenceData::pairs);
  return rows;
}

int64_t RunRows::size() const {
  return std::visit([](const auto& rows) { return static_cast<int64_t>(rows.size()); }, rows_);
}

PreferenceBatch RunRows::pack(const std::vector<int64_t>& rows) const {
  if (const auto* pairs = std::get_if<Pairs>(&rows_))
    return pack_pairs(pick(*pairs, rows), {.prompt_targets = prompt_targets_});
  if (const auto* rated = std::get_if<Rated>(&rows_)) return pack_rated(pick(*rated, rows), RatedAnswer::own);
  return {.tokens = sluice::pack(pick(std::get<Samples>(rows_), rows)),
          .labels = {},
          .num_pairs = static_cast<int64_t>(rows.size())};
}

PreferenceBatch RunRows::pack_mismatched(const std::vector<int64_t>& rows) const {
  return pack_rated(pick(std::get<Rated>(rows_), rows), RatedAnswer::mismatched);
}

std::vector<PreferenceBatch> RunRows::reference_batches(int64_t row) const {
  if (std::holds_alternative<Rated>(rows_)) return {pack({row}), pack_mismatched({row})};
  return {pack({row})};
}

std::vector<const Sample*> RunRows::sequences(int64_t row) const {
  const auto i = static_cast<size_t>(row);
  if (const auto* pairs = std::get_if<Pairs>(&rows_)) return {&(*pairs)[i].chosen, &(*pairs)[i].rejected};
  if (const auto* rated = std::get_if<Rated>(&rows_)) return {&(*rated)[i].own, &(*rated)[i].mismatched};
  return {&std::get<Samples>(rows_)[i]};
}

const Sample& RunRows::sequence(int64_t row) const { return *sequences(row).front(); }

std::vector<int64_t> RunRows::lengths() const {
  std::vector<int64_t> all;
  for (int64_t row = 0; row < size(); ++row) {
    int64_t longest = 0;
    for (const Sample* sample : sequences(row)) longest = std::max(longest, static_cast<int64_t>(sample->ids.size()));
    all.push_back(longest);
  }
  return all;
}

std::vector<int64_t> RunRows::token_counts() const {
  if (!std::holds_alternative<Pairs>(rows_)) return lengths();
  std::vector<int64_t> all;
  for (const PairSample& pair : std::get<Pairs>(rows_)) all.push_back(pair.num_tokens());
  return all;
}

void RunRows::check_vocabulary(int64_t vocab_size) const {
  for (int64_t row = 0; row < size(); ++row) {
    for (const Sample* sample : sequences(row)) {
      for (int32_t id : sample->ids) {
        check(id >= 0 && id < vocab_size, ErrorCode::bad_file,
              fmt::format("row {}: token {} is outside the model's vocabulary of {}; tokenizer and weights do not "
                          "belong together",
                          sample->row, id, vocab_size));
      }
    }
  }
}

void RunRows::append_to(std::string& bytes) const {
  for (int64_t row = 0; row < size(); ++row) {
    for (const Sample* sample : sequences(row)) {
      bytes.append(reinterpret_cast<const char*>(sample->ids.data()), sample->ids.size() * sizeof(int32_t));
      bytes.append(reinterpret_cast<const char*>(sample->supervised.data()), sample->supervised.size());
      bytes.append(reinterpret_cast<const char*>(sample->weights.data()), sample->weights.size() * sizeof(float));
    }
  }
  if (const auto* rated = std::get_if<Rated>(&rows_)) {
    for (const RatedSample& row : *rated) bytes += row.desirable ? '+' : '-';
  }
}

}  // namespace sluice
