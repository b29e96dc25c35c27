#include "data/data_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace sluice {

Quantiles Quantiles::of(std::vector<int64_t> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](int64_t percent) {
    const int64_t n = static_cast<int64_t>(values.size());
    return values[static_cast<size_t>(std::max<int64_t>((percent * n + 99) / 100, 1) - 1)];
  };
  return {values.front(), at(10), at(50), at(90), at(99), values.back()};
}

namespace {

Json to_json(const Quantiles& q) {
  return {{"min", q.smallest}, {"p10", q.p10}, {"median", q.median},
          {"p90", q.p90},      {"p99", q.p99}, {"max", q.largest}};
}

constexpr std::array<const char*, 3> names_of_train_on = {"all", "last", "everything"};

std::string keys_line(const char* what, const std::map<std::string, int64_t>& keys) {
  std::string line;
  for (const auto& [key, rows] : keys) line += fmt::format("{} {} ({} rows)", line.empty() ? "" : ",", key, rows);
  return line.empty() ? "" : fmt::format("\n  {}{}", what, line);
}

}  // namespace

void DataReport::count(const Sample& sample) {
  tokens += static_cast<int64_t>(sample.ids.size());
  supervised += sample.num_targets();
}

Json DataReport::json() const {
  return {{"path", path},
          {"max_seq_length", max_seq_length},
          {"truncate", truncate_names[static_cast<size_t>(truncate)]},
          {"train_on", names_of_train_on[static_cast<size_t>(train_on)]},
          {"rows_read", rows_read},
          {"rows_of_other_part", rows_elsewhere},
          {"blank_lines", blank_lines},
          {"kinds", kinds},
          {"row_tokens", to_json(lengths)},
          {"prompt_tokens", to_json(prompts)},
          {"rows_kept", rows_kept},
          {"rows_too_long", rows_too_long},
          {"rows_cut", rows_cut},
          {"prompts_cut", prompts_cut},
          {"tokens_cut", tokens_cut},
          {"rows_without_targets", rows_without_targets},
          {"pairs_equal", pairs_equal},
          {"pairs_without_shared_prompt", pairs_apart},
          {"rows_tied", rows_tied},
          {"rows_contradicted", rows_contradicted},
          {"rows_rewritten", rows_rewritten},
          {"answers_without_token", answers_without_token},
          {"left_out_by_template", left_out},
          {"unread_keys", unread_keys},
          {"tokens", tokens},
          {"supervised_tokens", supervised},
          {"ignored_tokens", ignored()},
          {"padding_tokens", 0}};
}

std::string DataReport::summary() const {
  std::string text = fmt::format(
      "{}: {} of {} rows kept, {} tokens, {} of them supervised ({:.1f} %)", path, rows_kept, rows_read, tokens,
      supervised, tokens > 0 ? 100.0 * static_cast<double>(supervised) / static_cast<double>(tokens) : 0.0);
  text += fmt::format("\n  tokens a row: min {}, 10 % {}, median {}, 90 % {}, 99 % {}, max {}; max_seq_length {}",
                      lengths.smallest, lengths.p10, lengths.median, lengths.p90, lengths.p99, lengths.largest,
                      max_seq_length);
  if (kinds.size() > 1) {
    std::string list;
    for (const auto& [kind, rows] : kinds) list += fmt::format("{}{} {}", list.empty() ? "" : ", ", rows, kind);
    text += "\n  rows by kind: " + list;
  }
  if (rows_elsewhere > 0) text += fmt::format("\n  {} rows are of the other part of the file", rows_elsewhere);
  if (rows_too_long > 0) {
    text +=
        fmt::format("\n  warning: {} rows dropped, longer than max_seq_length {}{}; raise it to {} to keep all{}",
                    rows_too_long, max_seq_length,
                    truncate == Truncate::left || truncate == Truncate::right ? " even with a prompt of one token" : "",
                    lengths.largest, truncate == Truncate::no ? ", or set truncate: left, right or true" : "");
  }
  if (prompts_cut > 0) {
    text += fmt::format(
        "\n  warning: {} rows have a shorter prompt, to fit max_seq_length {}: {} tokens lost, {} before the answer "
        "are "
        "left in the shortest; raise it to {} to lose none",
        prompts_cut, max_seq_length, tokens_cut, shortest_cut_prompt, lengths.largest);
  }
  if (rows_cut > 0) {
    text += fmt::format("\n  warning: {} rows cut at max_seq_length {}, {} tokens lost; raise it to {} to lose none",
                        rows_cut, max_seq_length, tokens_cut, lengths.largest);
  }
  if (rows_without_targets > 0) {
    text += fmt::format(
        "\n  warning: {} rows dropped, no supervised token in them; max_seq_length is {}, the median prompt has {} "
        "tokens",
        rows_without_targets, max_seq_length, prompts.median);
  }
  if (pairs_equal > 0)
    text += fmt::format("\n  warning: {} pairs dropped, chosen and rejected are the same tokens", pairs_equal);
  if (pairs_apart > 0) {
    text += fmt::format("\n  warning: {} pairs share no prompt; both answers are computed from their first token",
                        pairs_apart);
  }
  if (rows_tied > 0)
    text += fmt::format("\n  warning: {} rows dropped, no two of their completions have different ratings", rows_tied);
  if (rows_contradicted > 0)
    text += fmt::format("\n  warning: {} rows dropped, the same answer has both labels", rows_contradicted);
  if (rows_rewritten > 0) {
    text += fmt::format(
        "\n  warning: in {} rows the chat template changed an answer (white space or reasoning taken out): that text "
        "is trained",
        rows_rewritten);
  }
  if (answers_without_token > 0) {
    text += fmt::format(
        "\n  warning: of {} answers nothing is learned: the template writes nothing of them, or the row's first token, "
        "which nothing predicts",
        answers_without_token);
  }
  text += keys_line("warning: the chat template does not write, in whole or in part:", left_out);
  text += keys_line("keys that are not read:", unread_keys);
  return text;
}

std::string beyond_positions(const std::vector<int64_t>& lengths, int64_t positions) {
  std::vector<int64_t> beyond;
  for (int64_t length : lengths) {
    if (positions > 0 && length > positions) beyond.push_back(length);
  }
  if (beyond.empty()) return "";
  const auto [shortest, longest] = std::minmax_element(beyond.begin(), beyond.end());
  return fmt::format(
      "warning: {} of {} rows are longer than the {} positions that the base is made for ({} to {} tokens); it has not "
      "seen such positions",
      beyond.size(), lengths.size(), positions, *shortest, *longest);
}

}  // namespace sluice
