#include "data/pair_filter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "data/preference.h"
#include "data/row_reader.h"
#include "data/row_source.h"
#include "io/atomic_file.h"
#include "io/hash.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::string content_of(const Json& message) {
  if (message.is_object() && message.contains("content") && message["content"].is_string())
    return message["content"].get<std::string>();
  return message.dump();
}

// One text for equal prompts: a string is the message of a user.
std::string prompt_key(const Json& prompt) {
  if (prompt.is_string()) return "user\n" + trimmed(prompt.get<std::string>());
  std::string key;
  for (const Json& message : prompt) {
    const Json role = message.is_object() ? message.value("role", Json("")) : Json("");
    key += fmt::format("{}{}\n{}", key.empty() ? "" : "\n", role.is_string() ? role.get<std::string>() : role.dump(),
                       trimmed(content_of(message)));
  }
  return key;
}

std::string digest_of(const std::string& text) { return sha256(std::as_bytes(std::span(text))); }

int64_t characters(const Json& part) {
  if (!part.is_string()) {
    int64_t sum = 0;
    for (const Json& message : part) sum += characters(Json(content_of(message)));
    return sum;
  }
  const auto& text = part.get_ref<const std::string&>();
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

struct Lengths {
  int64_t chosen = 0, rejected = 0, prompt = 0;
  int64_t longer() const { return std::max(chosen, rejected); }
  int64_t shorter() const { return std::min(chosen, rejected); }
};

Lengths lengths_of(const PreferenceRow& row, const ModelText* text) {
  if (text == nullptr)
    return {.chosen = characters(row.chosen), .rejected = characters(row.rejected), .prompt = characters(row.prompt)};
  const PairSample pair = make_pair_sample(row, *text);
  const int64_t chosen = pair.chosen.num_targets();
  return {.chosen = chosen,
          .rejected = pair.rejected.num_targets(),
          .prompt = static_cast<int64_t>(pair.chosen.ids.size()) - chosen};
}

std::optional<double> score(const Json& row, const std::string& name, const char* which) {
  const std::string w(which);
  const std::array<std::string, 3> known = {"score_" + w, w + "_score", w + "_rating"};
  for (const std::string& key : known) {
    const std::string& asked = name.empty() ? key : name;
    if (row.contains(asked) && row[asked].is_number()) return row[asked].get<double>();
  }
  return std::nullopt;
}

class Filter {
 public:
  Filter(const std::string& path, const PairFilterOptions& options, const ModelText* text)
      : options_(options), text_(text) {
    report_.path = path;
    report_.unit = text != nullptr ? "tokens" : "characters";
  }

  void read(std::string_view line, int64_t number) {
    if (is_blank(line)) return;
    ++report_.rows_read;
    const std::optional<PreferenceRow> row = parse_preference(parse_object(line));
    if (!row) {
      drop(report_.small_gap);
      return;
    }
    if (!keeps(*row)) return;
    const std::string digest = digest_of(prompt_key(row->prompt));
    kept_.emplace(number, digest);
    rows_of_[digest] += 1;
  }

  // The prompts whose seeded digests are the smallest.
  void split() {
    std::vector<std::pair<std::string, std::string>> order;  // seeded digest, digest
    for (const auto& [digest, count] : rows_of_) {
      order.emplace_back(digest_of(fmt::format("{}:{}", options_.seed, digest)), digest);
    }
    std::sort(order.begin(), order.end());
    const auto prompts = static_cast<double>(order.size());
    auto count = static_cast<size_t>(std::llround(options_.held_out * prompts));
    if (options_.held_out > 0 && order.size() > 1) count = std::clamp<size_t>(count, 1, order.size() - 1);
    check(options_.held_out == 0 || order.size() > 1, ErrorCode::bad_config,
          fmt::format("{}: {} prompt is left, so none can be held out; give held_out 0 or more rows", report_.path,
                      order.size()));
    for (size_t i = 0; i < order.size(); ++i) {
      const bool valid = i < count;
      if (valid) held_out_.insert(order[i].second);
      (valid ? report_.valid_rows : report_.train_rows) += rows_of_[order[i].second];
      ++(valid ? report_.valid_prompts : report_.train_prompts);
    }
  }

  // Nothing for a row that was dropped.
  std::optional<bool> is_held_out(int64_t number) const {
    const auto found = kept_.find(number);
    if (found == kept_.end()) return std::nullopt;
    return held_out_.count(found->second) != 0;
  }

  const PairFilterReport& report() const { return report_; }

 private:
  bool keeps(const PreferenceRow& row) {
    if (row.chosen == row.rejected) return drop(report_.same_answers);
    if (options_.min_score_gap > 0) {
      const std::optional<double> chosen = score(row.row, options_.score_chosen, "chosen"),
                                  rejected = score(row.row, options_.score_rejected, "rejected");
      if (!chosen || !rejected) return drop(report_.no_score);
      if (*chosen - *rejected < options_.min_score_gap) return drop(report_.small_gap);
    }
    if (options_.min_length == 0 && options_.max_length == 0 && options_.max_length_ratio == 0) return true;
    const Lengths n = lengths_of(row, text_);
    if (n.shorter() < options_.min_length) return drop(report_.too_short);
    if (options_.max_length > 0 && n.prompt + n.longer() > options_.max_length) return drop(report_.too_long);
    const auto longer = static_cast<double>(n.longer()), shorter = static_cast<double>(n.shorter());
    if (options_.max_length_ratio > 0 && longer > options_.max_length_ratio * shorter)
      return drop(report_.length_ratio);
    return true;
  }

  static bool drop(int64_t& count) {
    ++count;
    return false;
  }

  const PairFilterOptions options_;
  const ModelText* text_;
  PairFilterReport report_;
  std::map<int64_t, std::string> kept_;  // line -> digest of its prompt
  std::map<std::string, int64_t> rows_of_;
  std::set<std::string> held_out_;
};

void check_options(const std::string& path, const fs::path& out, const PairFilterOptions& o) {
  check(o.held_out >= 0 && o.held_out < 1, ErrorCode::bad_config,
        fmt::format("held-out is {}, needed a part of the prompts from 0 to below 1", o.held_out));
  check(o.max_length_ratio == 0 || o.max_length_ratio >= 1, ErrorCode::bad_config,
        fmt::format("max-length-ratio is {}, needed 1 or more; 0 keeps any", o.max_length_ratio));
  check(o.min_score_gap >= 0 && o.max_length >= 0 && o.min_length >= 0, ErrorCode::bad_config,
        "min-score-gap, max-length and min-length may not be negative");
  for (const char* name : {"train.jsonl", "valid.jsonl"}) {
    std::error_code absent;
    check(!fs::equivalent(out / name, path, absent), ErrorCode::bad_config,
          fmt::format("{} is the input; give another folder for the output", (out / name).string()));
  }
}

}  // namespace

PairFilterReport filter_pairs(const std::string& path, const std::string& out, const PairFilterOptions& options,
                              const ModelText* text) {
  const fs::path folder(out);
  check_options(path, folder, options);
  Filter filter(path, options, text);
  for_each_row(path, [&](std::string_view line, int64_t number) {
    filter.read(line, number);
    return true;
  });
  filter.split();
  const PairFilterReport& report = filter.report();
  check(report.train_rows > 0, ErrorCode::bad_config, report.summary() + "; no row is left, so nothing was written");
  fs::create_directories(folder);
  AtomicFile train((folder / "train.jsonl").string());
  std::optional<AtomicFile> valid;
  if (options.held_out > 0) valid.emplace((folder / "valid.jsonl").string());
  for_each_row(path, [&](std::string_view line, int64_t number) {
    if (const std::optional<bool> held_out = filter.is_held_out(number)) {
      AtomicFile& file = *held_out ? *valid : train;
      // The elements of a list may stand in several lines.
      file.write(line.find('\n') == std::string_view::npos ? std::string(line) : parse_object(line).dump());
      file.write("\n");
    }
    return true;
  });
  train.commit();
  if (valid) valid->commit();
  atomic_write_file((folder / "pairs_report.json").string(), report.json().dump(2) + "\n");
  return report;
}

std::string PairFilterReport::summary() const {
  std::string text = fmt::format("{}: {} rows", path, rows_read);
  const std::pair<int64_t, const char*> reasons[] = {{same_answers, "have equal answers"},
                                                     {no_score, "have no score"},
                                                     {small_gap, "have too small a score gap"},
                                                     {too_short, "are too short"},
                                                     {too_long, "are too long"},
                                                     {length_ratio, "have answers of too unequal length"}};
  for (const auto& [count, reason] : reasons) {
    if (count > 0) text += fmt::format(", {} dropped that {}", count, reason);
  }
  text += fmt::format("; kept {} with {} prompts for training", train_rows, train_prompts);
  if (valid_rows > 0) text += fmt::format(" and {} with {} prompts held out", valid_rows, valid_prompts);
  return text + fmt::format("; lengths in {}", unit);
}

Json PairFilterReport::json() const {
  return {{"path", path},
          {"rows_read", rows_read},
          {"dropped",
           {{"same_answers", same_answers},
            {"no_score", no_score},
            {"small_gap", small_gap},
            {"too_short", too_short},
            {"too_long", too_long},
            {"length_ratio", length_ratio}}},
          {"train", {{"rows", train_rows}, {"prompts", train_prompts}}},
          {"valid", {{"rows", valid_rows}, {"prompts", valid_prompts}}},
          {"length_unit", unit}};
}

}  // namespace sluice
