#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "data/row_reader.h"

namespace sluice {

namespace {

class Reader {
 public:
  Reader(const std::string& path, const ModelText& text, const DatasetOptions& options)
      : options_(options), rows_(path, text, options, data_.report) {}

  Dataset read() {
    rows_.for_each_row([&](std::string_view text, int64_t number) { line(text, number); });
    rows_.finish(data_.samples.size());
    for (const Sample& sample : data_.samples) data_.report.count(sample);
    return std::move(data_);
  }

 private:
  void line(std::string_view line, int64_t number) {
    DataRow row = parse_row(line);
    if (kind_.empty()) kind_ = row.kind;
    if (!options_.allow_mixed && row.kind != kind_) {
      refuse_row(
          fmt::format("this is a {} row, the rows before it are {}; keep one format to a file", row.kind, kind_));
    }
    if (auto samples = rows_.samples({&row}, row.kind, number)) data_.samples.push_back(std::move(samples->front()));
  }

  const DatasetOptions options_;
  std::string kind_;  // of the first row
  Dataset data_;
  RowReader rows_;
};

}  // namespace

int64_t Sample::num_targets() const { return std::accumulate(supervised.begin(), supervised.end(), int64_t{0}); }

Truncate truncate_of(std::string_view name) {
  const auto found = std::find(truncate_names.begin(), truncate_names.end(), name);
  check(found != truncate_names.end(), ErrorCode::bad_config,
        fmt::format("truncate is '{}'; it may be {}", name, fmt::join(truncate_names, ", ")));
  return static_cast<Truncate>(found - truncate_names.begin());
}

Sample make_sample(std::string_view line, const ModelText& text, TrainOn train_on) {
  return tokenise(parse_row(line), text, train_on).sample;
}

Dataset read_dataset(const std::string& path, const ModelText& text, const DatasetOptions& options) {
  return Reader(path, text, options).read();
}

Sample read_sample(const std::string& path, int64_t row, const ModelText& text, TrainOn train_on) {
  Sample sample;
  for_each_line(path, [&](std::string_view line, int64_t number) {
    if (number < row) return true;
    sample = make_sample(line, text, train_on);
    sample.row = number;
    return false;
  });
  check(sample.row == row, ErrorCode::bad_config, fmt::format("{} has no row {}", path, row));
  return sample;
}

std::vector<Stretch> stretches(const Sample& sample, const Tokenizer& tokenizer) {
  const auto weight = [&](size_t t) { return sample.supervised[t] != 0 ? sample.weight(t) : 0; };
  std::vector<Stretch> parts;
  for (size_t begin = 0; begin < sample.ids.size();) {
    size_t end = begin + 1;
    while (end < sample.ids.size() && weight(end) == weight(begin)) ++end;
    parts.push_back({tokenizer.decode(std::span(sample.ids).subspan(begin, end - begin)), weight(begin)});
    begin = end;
  }
  return parts;
}

std::string preview(const Sample& sample, const Tokenizer& tokenizer) {
  std::string text;
  for (const Stretch& part : stretches(sample, tokenizer)) {
    text += part.weight > 0 ? "⟦" + part.text + "⟧" : part.text;
    if (part.weight > 0 && part.weight != 1) text += fmt::format("×{}", part.weight);
  }
  return text;
}

}  // namespace sluice
