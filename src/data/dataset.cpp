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
    rows_.for_each_row([&](const Json& object, int64_t number) { take(object, number); });
    rows_.finish(data_.samples.size());
    for (const Sample& sample : data_.samples) data_.report.count(sample);
    return std::move(data_);
  }

 private:
  void take(const Json& object, int64_t number) {
    DataRow row = parse_row(object);
    rows_.check_kind(row.kind);
    if (options_.needs_answers && row.kind == "text")
      refuse_row(
          "this is a text row, in which mask_prompt has no prompt to mask; leave mask_prompt out, and all of the text "
          "is "
          "learned");
    if (auto samples = rows_.samples({&row}, row.kind, number)) data_.samples.push_back(std::move(samples->front()));
  }

  const DatasetOptions options_;
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
  return tokenise(parse_row(parse_object(line)), text, train_on).sample;
}

Dataset read_dataset(const std::string& path, const ModelText& text, const DatasetOptions& options) {
  return Reader(path, text, options).read();
}

Sample read_sample(const std::string& path, int64_t row, const ModelText& text, const DatasetOptions& options) {
  Sample sample;
  for_each_row(path, [&](std::string_view line, int64_t number) {
    if (number < row) return true;
    Json object = parse_object(line);
    options.columns.apply(object);
    sample = tokenise(parse_row(object), text, options.train_on).sample;
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
