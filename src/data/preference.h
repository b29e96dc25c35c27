// Preference rows to token ids, and pairs packed into a forest: the prompt once, its two answers as children.
//
//   PreferenceData data = read_preferences("data/train.jsonl", model_text, {.max_seq_length = 2048});
//   PreferenceBatch batch = pack_pairs({&data.pairs[3], &data.pairs[8]}, {.prompt_targets = true});
//   batch.labels[m] says to which pair and part batch.tokens.targets[m] belongs
//
// Rows: data/preference_row.h.
//
// Each answer is rendered, tokenised in one pass and masked together with the prompt, exactly as the same row of prompt and completion would
// be (data/dataset.h); so where a merge crosses the seam the token belongs to the prompt, for chosen and rejected alike. The shared prompt is
// the longest beginning on which both token sequences agree, and ends before the first token of an answer: where the seam is tokenised
// differently it ends earlier, and the branches begin with the rest of the prompt.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/batch.h"
#include "data/dataset.h"
#include "data/pair_target.h"
#include "data/preference_row.h"

namespace sluice {

struct PairSample {
  Sample chosen, rejected;  // the prompt with each answer
  int64_t shared = 0;       // tokens at the beginning that both have; 0: the branches share no prompt
  int64_t row = 0;          // as Sample::row

  int64_t num_tokens() const { return static_cast<int64_t>(chosen.ids.size() + rejected.ids.size()) - shared; }
};

struct PreferenceData {
  std::vector<PairSample> pairs;  // in the order of the file
  // lengths: of the longer sequence of a row; tokens: with the shared prompt once; supervised: of both answers.
  DataReport report;
};

// max_seq_length holds for the prompt with one answer. A pair of which either is longer is dropped and counted; with `truncate` each is cut at
// its own end, never by the other's length, and a pair that has an answer without a token left is dropped and counted. mask_prompt is not read.
// Throws as read_dataset.
PreferenceData read_preferences(const std::string& path, const ModelText& text, const DatasetOptions& options);

// One line of such a file, not yet cut. Throws Error(bad_file) without file and row.
PairSample make_pair_sample(std::string_view line, const ModelText& text);
PairSample make_pair_sample(const PreferenceRow& row, const ModelText& text);

struct PreferenceBatch {
  Batch tokens;  // rows ascend, and repeat where the last token of a prompt predicts the first of both answers
  std::vector<PairTarget> labels;  // [M]
  int64_t num_pairs = 0;
};

struct PackOptions {
  bool prompt_targets = false;  // the other tokens of the chosen sequence, its prompt, are targets too (Part::prompt)
  bool share_prompt = true;     // false: two roots for every pair
};

// One or more pairs.
PreferenceBatch pack_pairs(const std::vector<const PairSample*>& pairs, const PackOptions& options);

}  // namespace sluice
