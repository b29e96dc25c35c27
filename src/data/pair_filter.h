// Cleaning of preference sets: filters by score gap, length ratio and length, and a held-out split by prompt.
//
//   PairFilterReport report = filter_pairs("all.jsonl", "data", {.min_score_gap = 1, .max_length_ratio = 3, .held_out = 0.1}, nullptr);
//   fmt::print("{}", report.summary());          data/train.jsonl, data/valid.jsonl, data/pairs_report.json
//
// Rows are those of data/preference_row.h; kept ones are copied byte for byte, in order (those of other files than JSON lines as lines of JSON). A row is dropped for the first reason that holds, in the
// order of PairFilterReport. Lengths are in tokens as training renders them when a model's text is given, else in characters (code points).
//
// The split is by prompt: rows whose prompts are the same text, whether given as a string or as messages, fall on one side. Which prompts are held out
// depends on the seed and on the prompts alone, not on their order.
#pragma once

#include <string>

#include "core/json.h"
#include "data/model_text.h"

namespace sluice {

struct PairFilterOptions {
  double min_score_gap = 0;     // score of chosen minus that of rejected; 0: scores are not read
  double max_length_ratio = 0;  // longer answer / shorter answer; 0: any
  int64_t max_length = 0;       // of the prompt with the longer answer; 0: any
  int64_t min_length = 0;       // of the shorter answer
  double held_out = 0;          // part of the prompts, [0, 1)
  uint64_t seed = 0;
  // Names of the scores; empty: score_chosen or chosen_score or chosen_rating, and the same of rejected.
  std::string score_chosen, score_rejected;
};

struct PairFilterReport {
  std::string path, unit;
  int64_t rows_read = 0;
  // dropped, in the order of the tests
  int64_t same_answers = 0, no_score = 0, small_gap = 0, too_short = 0, too_long = 0, length_ratio = 0;
  int64_t train_rows = 0, valid_rows = 0, train_prompts = 0, valid_prompts = 0;

  std::string summary() const;
  Json json() const;
};

// Writes train.jsonl, valid.jsonl (with held_out) and pairs_report.json into the folder `out`, each atomically, the report last. Throws
// Error(bad_file) for a damaged row, Error(bad_config) for options out of range, when no row is left, and when `out` holds the input.
PairFilterReport filter_pairs(const std::string& path, const std::string& out, const PairFilterOptions& options,
                              const ModelText* text);

}  // namespace sluice
