#include "data/preference.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/row_reader.h"

namespace sluice {

namespace {

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

class Reader {
 public:
  Reader(const std::string& path, const ModelText& text, const DatasetOptions& options)
      : rows_(path, text, answers_alone(options), data_.report) {}

  PreferenceData read() {
    rows_.for_each_row([&](const Json& object, int64_t number) { take(object, number); });
    rows_.finish(data_.pairs.size());
    for (const PairSample& pair : data_.pairs) {
      data_.report.tokens += pair.num_tokens();
      data_.report.supervised += pair.chosen.num_targets() + pair.rejected.num_targets();
    }
    return std::move(data_);
  }

 private:
  void take(const Json& object, int64_t number) {
    const std::optional<PreferenceRow> row = parse_preference(object);
    if (!row) {
      ++data_.report.rows_read;
      ++data_.report.rows_tied;
      return;
    }
    rows_.check_kind(row->kind);
    DataRow chosen = row->with_chosen(), rejected = row->with_rejected();
    std::optional<std::vector<Sample>> samples = rows_.samples({&chosen, &rejected}, row->kind, number);
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

PairSample make_pair_sample(const PreferenceRow& row, const ModelText& text) {
  return pair_of({tokenise(row.with_chosen(), text, TrainOn::all_answers).sample,
                  tokenise(row.with_rejected(), text, TrainOn::all_answers).sample});
}

PairSample make_pair_sample(std::string_view line, const ModelText& text) {
  const std::optional<PreferenceRow> row = parse_preference(parse_object(line));
  if (!row) refuse_row("no two of its completions have different ratings");
  return make_pair_sample(*row, text);
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
