#include "data/row_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "data/prompt_cut.h"
#include "io/hash.h"

namespace sluice {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

int64_t prompt_length(const Sample& sample) {
  return std::find(sample.supervised.begin(), sample.supervised.end(), 1) - sample.supervised.begin();
}

void cut(Sample& sample, int64_t limit) {
  if (static_cast<int64_t>(sample.ids.size()) <= limit) return;
  sample.ids.resize(static_cast<size_t>(limit));
  sample.supervised.resize(static_cast<size_t>(limit));
  if (!sample.weights.empty()) sample.weights.resize(static_cast<size_t>(limit));
}

DatasetOptions answers_alone(DatasetOptions options) {
  options.train_on = TrainOn::all_answers;
  return options;
}

RowReader::RowReader(const std::string& path, const ModelText& text, const DatasetOptions& options, DataReport& report)
    : text_(text), options_(options), report_(report) {
  check(options.max_seq_length >= 2, ErrorCode::bad_config,
        fmt::format("max_seq_length is {}; training needs at least 2 tokens a row", options.max_seq_length));
  report.path = path;
  report.max_seq_length = options.max_seq_length;
  report.truncate = options.truncate;
  report.train_on = options.train_on;
}

Json RowReader::object_of(std::string_view text) {
  Json row = parse_object(text);
  for (const auto& [name, own] : options_.columns.names) {
    if (row.contains(own)) seen_columns_.insert(name);
  }
  options_.columns.apply(row);
  return row;
}

// A key that may be missing from a row is misspelled when it is missing from all.
void RowReader::check_columns() const {
  for (const auto& [name, own] : options_.columns.names) {
    const bool of_messages = name == "role" || name == "content";
    check(of_messages || own == name || seen_columns_.contains(name), ErrorCode::bad_config,
          fmt::format("{}: no row has \"{}\", which columns.{} names", report_.path, own, name));
  }
}

void RowReader::check_kind(const std::string& kind) {
  if (kind_.empty()) kind_ = kind;
  if (options_.allow_mixed || kind == kind_) return;
  refuse_row(fmt::format(
      "this is a row of kind {}, the rows before it are {}; keep one kind to a file, or set allow_mixed", kind, kind_));
}

std::vector<Sample> RowReader::tokenise_all(const std::vector<DataRow*>& rows, bool count) {
  std::vector<Sample> samples;
  bool rewritten = false;
  std::set<std::string> left_out;
  for (const DataRow* row : rows) {
    TokenisedRow tokenised = tokenise(*row, text_, options_.train_on);
    rewritten = rewritten || tokenised.rewritten;
    left_out.insert(tokenised.left_out.begin(), tokenised.left_out.end());
    if (count) report_.answers_without_token += tokenised.answers_without_token;
    samples.push_back(std::move(tokenised.sample));
  }
  if (!count) return samples;
  if (rewritten) ++report_.rows_rewritten;
  for (const std::string& key : left_out) ++report_.left_out[key];
  return samples;
}

int64_t RowReader::excess(const std::vector<Sample>& samples) const {
  int64_t most = INT64_MIN;
  for (const Sample& s : samples) most = std::max(most, static_cast<int64_t>(s.ids.size()) - options_.max_seq_length);
  return most;
}

// The part of a file that is held out depends on the seed and on the row's prompt alone, so that one prompt is never on both sides.
bool RowReader::is_of_this_part(const DataRow& row) const {
  const Split& split = options_.split;
  if (split.held_out_fraction == 0) return true;
  std::string key = fmt::format("{}:", split.seed);
  for (size_t i = 0; i < row.messages.size(); ++i) {
    if (i >= row.first_target && row.messages[i]["role"] == "assistant") break;
    key += row.messages[i]["role"].dump() + row.messages[i].value("content", Json()).dump() + "\n";
  }
  // Of text that is ready what is given before the first stretch that is learned; all of it where that is nothing.
  const auto learned = std::find_if(row.pieces.begin(), row.pieces.end(), [](const TextPiece& p) { return p.learned; });
  const auto given = learned == row.pieces.begin() ? row.pieces.end() : learned;
  for (auto piece = row.pieces.begin(); piece != given; ++piece) key += piece->text;
  const std::string digest = sha256(std::as_bytes(std::span(key)));
  uint64_t number = 0;  // 52 bits: exact as a double
  std::from_chars(digest.data(), digest.data() + 13, number, 16);
  const bool held_out = static_cast<double>(number) / static_cast<double>(uint64_t{1} << 52) < split.held_out_fraction;
  return held_out == split.held_out;
}

bool RowReader::shorten(const std::vector<DataRow*>& rows, std::vector<Sample>& samples) {
  std::vector<Sample> shorter;
  const int64_t before = prompt_length(samples.front());
  const bool fits = shorten_prompt(rows,
                                   {.side = options_.truncate,
                                    .tokenizer = text_.tokenizer,
                                    .end = first_learned(*rows.front(), options_.train_on),
                                    .excess = excess(samples)},
                                   [&] {
                                     shorter = tokenise_all(rows, /*count=*/false);
                                     return excess(shorter);
                                   });
  if (!fits) return false;
  ++report_.prompts_cut;
  report_.tokens_cut += before - prompt_length(shorter.front());
  const int64_t kept = prompt_length(shorter.front());
  report_.shortest_cut_prompt = report_.prompts_cut == 1 ? kept : std::min(report_.shortest_cut_prompt, kept);
  samples = std::move(shorter);
  return true;
}

std::optional<std::vector<Sample>> RowReader::samples(const std::vector<DataRow*>& rows, const std::string& kind,
                                                      int64_t number) {
  if (!is_of_this_part(*rows.front())) {
    ++report_.rows_elsewhere;
    return std::nullopt;
  }
  ++report_.rows_read;
  ++report_.kinds[kind];
  for (const std::string& key : rows.front()->unread) ++report_.unread_keys[key];
  std::vector<Sample> samples = tokenise_all(rows, /*count=*/true);
  const int64_t limit = options_.max_seq_length, too_long = excess(samples);
  lengths_.push_back(too_long + limit);
  prompts_.push_back(prompt_length(samples.front()));
  if (too_long > 0 && options_.truncate == Truncate::end) {
    ++report_.rows_cut;
    for (Sample& s : samples) {
      report_.tokens_cut += std::max<int64_t>(static_cast<int64_t>(s.ids.size()) - limit, 0);
      cut(s, limit);
    }
  } else if (too_long > 0 && (options_.truncate == Truncate::no || !shorten(rows, samples))) {
    ++report_.rows_too_long;
    return std::nullopt;
  }
  for (Sample& s : samples) s.row = number;
  if (std::all_of(samples.begin(), samples.end(), [](const Sample& s) { return s.num_targets() > 0; })) return samples;
  ++report_.rows_without_targets;
  return std::nullopt;
}

void RowReader::finish(size_t rows_kept) {
  report_.lengths = Quantiles::of(lengths_);
  report_.prompts = Quantiles::of(prompts_);
  report_.rows_kept = static_cast<int64_t>(rows_kept);
  check(report_.rows_read + report_.rows_elsewhere > 0, ErrorCode::bad_file,
        report_.path + ": there is no row in it; needed one JSON object a row");
  check_columns();
  check(report_.rows_read > 0, ErrorCode::bad_config,
        fmt::format("{}: valid_fraction {} puts all of {} rows on one side, which goes by their prompts; give another "
                    "fraction or seed, or a file valid.jsonl",
                    report_.path, options_.split.held_out_fraction, report_.rows_elsewhere));
  if (rows_kept == 0) nothing_left();
}

void RowReader::nothing_left() const {
  const DataReport& report = report_;
  std::string message = fmt::format("{}: none of {} rows can be trained on:", report.path, report.rows_read);
  if (report.rows_too_long > 0)
    message += fmt::format(" {} are longer than max_seq_length {},", report.rows_too_long, report.max_seq_length);
  if (report.rows_without_targets > 0) {
    message += fmt::format(
        " {} have no supervised token{},", report.rows_without_targets,
        report.rows_cut > 0 ? fmt::format(" left when cut at max_seq_length {}", report.max_seq_length) : "");
  }
  if (report.pairs_equal > 0) message += fmt::format(" {} have two equal answers,", report.pairs_equal);
  if (report.rows_contradicted > 0)
    message += fmt::format(" {} have the same answer with both labels,", report.rows_contradicted);
  if (report.rows_tied > 0)
    message += fmt::format(" {} have no two completions with different ratings,", report.rows_tied);
  message += fmt::format(" the median row has {} tokens, {} of them before the first answer;", report.lengths.median,
                         report.prompts.median);
  message += report.lengths.largest > report.max_seq_length
                 ? fmt::format(" set max_seq_length to {} to keep every row ({} for half of them)",
                               report.lengths.largest, report.lengths.median)
             : report.pairs_equal + report.rows_contradicted > 0
                 ? std::string(" give rows whose answers differ")
                 : std::string(" give rows that have an assistant's answer");
  throw Error(ErrorCode::bad_config, message);
}

}  // namespace sluice
