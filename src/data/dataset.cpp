#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "data/row_reader.h"
#include "data/row_format.h"

namespace sluice {

namespace {

struct Rendered {
  std::string text;
  std::vector<ByteRange> supervised;
  bool rewritten = false;  // an answer is not in the text as the row has it
};

Rendered render(const DataRow& row, const ModelText& text) {
  Rendered result;
  if (!text.chat && text.template_problem.empty() && row.prompt) {
    const std::optional<int32_t> eos = text.tokenizer.eos_id();
    result.text = *row.prompt + *row.completion + (eos ? std::string(text.tokenizer.token_text(*eos)) : std::string());
    result.supervised = {{static_cast<int64_t>(row.prompt->size()), static_cast<int64_t>(result.text.size())}};
    return result;
  }
  RenderedChat chat = text.need_chat().render(row.messages);
  size_t answer = 0;
  for (size_t i = 0; i < row.messages.size(); ++i) {
    if (row.messages[i].role != "assistant") continue;
    SLUICE_ASSERT(answer < chat.supervised.size());
    const ByteRange range = chat.supervised[answer++];
    if (i < row.first_target) continue;
    result.supervised.push_back(range);
    const std::string_view rendered =
        std::string_view(chat.text).substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    result.rewritten = result.rewritten || !rendered.starts_with(row.messages[i].content);
  }
  result.text = std::move(chat.text);
  return result;
}

std::vector<uint8_t> mask(const Encoding& encoding, const std::vector<ByteRange>& ranges, bool mask_prompt) {
  std::vector<uint8_t> supervised(encoding.ids.size(), mask_prompt ? 0 : 1);
  size_t range = 0;  // ranges and tokens ascend together
  for (size_t t = 0; mask_prompt && t < encoding.ids.size(); ++t) {
    const ByteRange token = encoding.offsets[t];
    while (range < ranges.size() && ranges[range].end <= token.begin) ++range;
    if (range == ranges.size()) break;
    supervised[t] = token.size() > 0 && token.begin >= ranges[range].begin ? 1 : 0;
  }
  if (!supervised.empty()) supervised[0] = 0;
  return supervised;
}

Sample tokenise(const DataRow& row, const ModelText& text, bool mask_prompt, bool* rewritten) {
  const Rendered rendered = render(row, text);
  const Encoding encoding = text.tokenizer.encode(rendered.text, {.add_special = true});
  SLUICE_ASSERT(encoding.ids.size() == encoding.offsets.size());
  if (rewritten != nullptr) *rewritten = rendered.rewritten;
  return {.ids = encoding.ids, .supervised = mask(encoding, rendered.supervised, mask_prompt)};
}

// Collects samples under the policy for lengths.
class Reader {
 public:
  Reader(const std::string& path, const ModelText& text, const DatasetOptions& options)
      : text_(text), options_(options), rows_(path, options, data_.report) {
    data_.report.mask_prompt = options.mask_prompt;
  }

  Dataset read() {
    rows_.for_each_row([&](std::string_view text, int64_t number) { line(text, number); });
    return finish();
  }

 private:
  void line(std::string_view line, int64_t number) {
    DataReport& report = data_.report;
    const DataRow row = parse_row(line);
    rows_.count(row.kind);
    if (!options_.allow_mixed && report.kinds.size() > 1) {
      throw Error(ErrorCode::bad_file,
                  fmt::format("this is a {} row, the rows before it are {}; keep one format to a file", row.kind,
                              report.kinds.begin()->first == row.kind ? report.kinds.rbegin()->first
                                                                      : report.kinds.begin()->first));
    }
    bool rewritten = false;
    Sample sample = tokenise(row, text_, options_.mask_prompt, &rewritten);
    sample.row = number;
    rows_.measure(static_cast<int64_t>(sample.ids.size()), prompt_length(sample));
    if (rewritten) ++report.rows_rewritten;
    if (rows_.keep({&sample})) data_.samples.push_back(std::move(sample));
  }

  Dataset finish() {
    DataReport& report = data_.report;
    rows_.finish(data_.samples.size());
    if (report.rows_kept == 0) nothing_left();
    for (const Sample& sample : data_.samples) {
      report.tokens += static_cast<int64_t>(sample.ids.size());
      report.supervised += sample.num_targets();
    }
    return std::move(data_);
  }

  [[noreturn]] void nothing_left() const {
    const DataReport& report = data_.report;
    std::string message = fmt::format("{}: none of {} rows can be trained on:", report.path, report.rows_read);
    if (report.rows_too_long > 0)
      message += fmt::format(" {} are longer than max_seq_length {},", report.rows_too_long, report.max_seq_length);
    if (report.rows_without_targets > 0) {
      message += fmt::format(
          " {} have no supervised token{},", report.rows_without_targets,
          report.rows_cut > 0 ? fmt::format(" left when cut at max_seq_length {}", report.max_seq_length) : "");
    }
    message += fmt::format(" the median row has {} tokens, {} of them before the first answer;", report.lengths.median,
                           report.prompts.median);
    message += report.lengths.largest > report.max_seq_length
                   ? fmt::format(" set max_seq_length to {} to keep every row ({} for half of them)",
                                 report.lengths.largest, report.lengths.median)
                   : std::string(" give rows that have an assistant's answer");
    throw Error(ErrorCode::bad_config, message);
  }

  const ModelText& text_;
  const DatasetOptions options_;
  Dataset data_;
  RowReader rows_;
};

}  // namespace

int64_t Sample::num_targets() const { return std::accumulate(supervised.begin(), supervised.end(), int64_t{0}); }

Sample make_sample(std::string_view line, const ModelText& text, bool mask_prompt) {
  return tokenise(parse_row(line), text, mask_prompt, nullptr);
}

Dataset read_dataset(const std::string& path, const ModelText& text, const DatasetOptions& options) {
  return Reader(path, text, options).read();
}

Sample read_sample(const std::string& path, int64_t row, const ModelText& text, bool mask_prompt) {
  Sample sample;
  for_each_line(path, [&](std::string_view line, int64_t number) {
    if (number < row) return true;
    sample = make_sample(line, text, mask_prompt);
    sample.row = number;
    return false;
  });
  check(sample.row == row, ErrorCode::bad_config, fmt::format("{} has no row {}", path, row));
  return sample;
}

std::string preview(const Sample& sample, const Tokenizer& tokenizer) {
  std::string text;
  for (size_t begin = 0; begin < sample.ids.size();) {
    size_t end = begin + 1;
    while (end < sample.ids.size() && sample.supervised[end] == sample.supervised[begin]) ++end;
    const std::string part = tokenizer.decode(std::span(sample.ids).subspan(begin, end - begin));
    text += sample.supervised[begin] != 0 ? "⟦" + part + "⟧" : part;
    begin = end;
  }
  return text;
}

}  // namespace sluice
