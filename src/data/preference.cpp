#include "data/preference.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/row_keys.h"
#include "data/row_reader.h"

namespace sluice {

namespace {

constexpr const char* needed = "{\"prompt\", \"chosen\", \"rejected\"}, each a string or a list of messages";

Json parse_pair(std::string_view line) {
  Json row = parse_object(line, needed);
  for (const char* key : {"chosen", "rejected"}) {
    if (!row.contains(key))
      refuse_row(fmt::format("there is no \"{}\", needed {}; objective sft reads other rows", key, needed));
    const Json& answer = row[key];
    const bool empty = answer.is_string() ? answer.get_ref<const std::string&>().empty() : answer.empty();
    if ((!answer.is_string() && !answer.is_array()) || empty)
      refuse_row(fmt::format("{} is empty or no text, needed a string or a list of messages", key));
  }
  if (row["chosen"].type() != row["rejected"].type())
    refuse_row("chosen and rejected are of different kinds, needed two strings or two lists of messages");
  return row;
}

bool begins_with_answer(const Json& messages) {
  return messages[0].is_object() && messages[0].value("role", Json()) == "assistant";
}

Json part_of(const Json& list, size_t begin, size_t end) {
  Json part = Json::array();
  for (size_t i = begin; i < end; ++i) part.push_back(list[i]);
  return part;
}

// A prompt beside whole conversations repeats what they begin with.
void check_prompt(const Json& row, const Json& common) {
  if (!row.contains("prompt") || is_empty_value(row["prompt"])) return;
  const Json& prompt = row["prompt"];
  const bool said = std::any_of(common.begin(), common.end(), [&](const Json& message) {
    return message.is_object() && message.value("content", Json()) == prompt;
  });
  const bool begins =
      prompt.is_array() && prompt.size() <= common.size() && part_of(common, 0, prompt.size()) == prompt;
  if (!said && !begins)
    refuse_row(
        "prompt is not what the conversations of chosen and rejected begin with; drop the key, or give only the "
        "answers as chosen and rejected");
}

PreferenceRow split(const Json& row) {
  const Json &chosen = row["chosen"], &rejected = row["rejected"];
  if (chosen.is_array() && !(begins_with_answer(chosen) && begins_with_answer(rejected))) {
    size_t common = 0;
    while (common < std::min(chosen.size(), rejected.size()) && chosen[common] == rejected[common]) ++common;
    // Equal conversations are told by their tokens, like all pairs whose answers are equal.
    if (common > 1 && chosen == rejected) --common;
    if (common == chosen.size() || common == rejected.size())
      refuse_row("chosen and rejected do not differ in an answer; drop the row");
    if (common == 0)
      refuse_row(
          "chosen and rejected share no message that could be the prompt; needed conversations that begin alike");
    const Json prompt = part_of(chosen, 0, common);
    check_prompt(row, prompt);
    return {.row = row,
            .prompt = prompt,
            .chosen = part_of(chosen, common, chosen.size()),
            .rejected = part_of(rejected, common, rejected.size())};
  }
  if (!row.contains("prompt")) refuse_row(fmt::format("there is no \"prompt\", needed {}", needed));
  return {.row = row, .prompt = row["prompt"], .chosen = chosen, .rejected = rejected};
}

int64_t shared_tokens(const Sample& a, const Sample& b) {
  const int64_t limit = std::min(prompt_length(a), prompt_length(b));
  int64_t shared = 0;
  while (shared < limit && a.ids[static_cast<size_t>(shared)] == b.ids[static_cast<size_t>(shared)]) ++shared;
  return shared;
}

PairSample pair_of(std::vector<Sample> samples) {
  PairSample pair{.chosen = std::move(samples[0]), .rejected = std::move(samples[1])};
  pair.shared = shared_tokens(pair.chosen, pair.rejected);
  return pair;
}

std::pair<DataRow, DataRow> conversations(const PreferenceRow& row) {
  const auto conversation = [&](const Json& answer, const char* name) {
    DataRow data = answer_row({.row = row.row, .prompt = row.prompt, .answer = answer, .answer_name = name},
                              {"prompt", "chosen", "rejected"});
    refuse_graded_weights(data);
    return data;
  };
  return {conversation(row.chosen, "chosen"), conversation(row.rejected, "rejected")};
}

class Reader {
 public:
  Reader(const std::string& path, const ModelText& text, const DatasetOptions& options)
      : rows_(path, text, answers_alone(options), data_.report) {}

  PreferenceData read() {
    rows_.for_each_row([&](std::string_view text, int64_t number) { line(text, number); });
    rows_.finish(data_.pairs.size());
    for (const PairSample& pair : data_.pairs) {
      data_.report.tokens += pair.num_tokens();
      data_.report.supervised += pair.chosen.num_targets() + pair.rejected.num_targets();
    }
    return std::move(data_);
  }

 private:
  void line(std::string_view line, int64_t number) {
    auto [chosen, rejected] = conversations(parse_preference(line));
    std::optional<std::vector<Sample>> samples = rows_.samples({&chosen, &rejected}, "preference", number);
    if (!samples) return;
    PairSample pair = pair_of(std::move(*samples));
    pair.row = number;
    if (pair.chosen.ids == pair.rejected.ids) {
      ++data_.report.pairs_equal;
      return;
    }
    if (pair.shared == 0) ++data_.report.pairs_apart;
    data_.pairs.push_back(std::move(pair));
  }

  PreferenceData data_;
  RowReader rows_;
};

// Fills a batch pair by pair.
class Packer {
 public:
  explicit Packer(const PackOptions& options) : options_(options) {}

  void add(const PairSample& pair) {
    const auto index = static_cast<int32_t>(batch_.num_pairs++);
    const auto shared = static_cast<size_t>(options_.share_prompt ? pair.shared : 0);
    const Branch chosen{pair.chosen, Part::chosen, index}, rejected{pair.rejected, Part::rejected, index};
    int64_t parent = -1;
    if (shared > 0) {
      parent = append(pair.chosen, 0, shared, -1);
      for (size_t t = 1; t < shared; ++t) target(chosen, t, start_ + t - 1);
      // The prompt's last token predicts the first of both branches.
      target(chosen, shared, start_ + shared - 1);
      target(rejected, shared, start_ + shared - 1);
    }
    for (const Branch& branch : {chosen, rejected}) {
      append(branch.sample, shared, branch.sample.ids.size(), parent);
      for (size_t t = shared + 1; t < branch.sample.ids.size(); ++t) target(branch, t, start_ + t - shared - 1);
    }
  }

  PreferenceBatch finish() {
    batch_.tokens.spans = Spans(pieces_);
    return std::move(batch_);
  }

 private:
  struct Branch {
    const Sample& sample;
    Part part;
    int32_t pair;
  };

  // A span of tokens [begin, end) of the sample; start_ is where they lie.
  int64_t append(const Sample& sample, size_t begin, size_t end, int64_t parent) {
    std::vector<int32_t>& ids = batch_.tokens.ids;
    start_ = ids.size();
    ids.insert(ids.end(), sample.ids.begin() + static_cast<std::ptrdiff_t>(begin),
               sample.ids.begin() + static_cast<std::ptrdiff_t>(end));
    pieces_.push_back({parent, static_cast<int64_t>(end - begin)});
    return static_cast<int64_t>(pieces_.size()) - 1;
  }

  void target(const Branch& branch, size_t t, size_t row) {
    const bool answer = branch.sample.supervised[t] != 0;
    if (!answer && (branch.part == Part::rejected || !options_.prompt_targets)) return;
    Batch& tokens = batch_.tokens;
    tokens.rows.push_back(static_cast<int32_t>(row));
    tokens.targets.push_back(branch.sample.ids[t]);
    tokens.groups.push_back(branch.pair);
    tokens.weights.push_back(1);
    batch_.labels.push_back({branch.pair, answer ? branch.part : Part::prompt});
  }

  const PackOptions options_;
  PreferenceBatch batch_;
  std::vector<Spans::Piece> pieces_;
  size_t start_ = 0;
};

}  // namespace

PreferenceRow parse_preference(std::string_view line) { return split(parse_pair(line)); }

PairSample make_pair_sample(std::string_view line, const ModelText& text) {
  const auto [chosen, rejected] = conversations(parse_preference(line));
  return pair_of(
      {tokenise(chosen, text, TrainOn::all_answers).sample, tokenise(rejected, text, TrainOn::all_answers).sample});
}

PreferenceData read_preferences(const std::string& path, const ModelText& text, const DatasetOptions& options) {
  return Reader(path, text, options).read();
}

PreferenceBatch pack_pairs(const std::vector<const PairSample*>& pairs, const PackOptions& options) {
  SLUICE_ASSERT(!pairs.empty());
  Packer packer(options);
  for (const PairSample* pair : pairs) packer.add(*pair);
  return packer.finish();
}

}  // namespace sluice
