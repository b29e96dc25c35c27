#include "data/data_report.h"

#include <fmt/format.h>

#include <algorithm>

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

}  // namespace

Json DataReport::json() const {
  return {{"path", path},
          {"max_seq_length", max_seq_length},
          {"truncate", truncate},
          {"mask_prompt", mask_prompt},
          {"rows_read", rows_read},
          {"blank_lines", blank_lines},
          {"kinds", kinds},
          {"row_tokens", to_json(lengths)},
          {"prompt_tokens", to_json(prompts)},
          {"rows_kept", rows_kept},
          {"rows_too_long", rows_too_long},
          {"rows_cut", rows_cut},
          {"tokens_cut", tokens_cut},
          {"rows_without_targets", rows_without_targets},
          {"rows_rewritten", rows_rewritten},
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
  if (rows_too_long > 0) {
    text += fmt::format(
        "\n  warning: {} rows dropped, longer than max_seq_length {}; raise it to {} to keep all, or set truncate: "
        "true",
        rows_too_long, max_seq_length, lengths.largest);
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
  if (rows_rewritten > 0) {
    text += fmt::format(
        "\n  warning: in {} rows the chat template changed an answer (white space or reasoning taken out): that text "
        "is trained",
        rows_rewritten);
  }
  return text;
}

}  // namespace sluice
