// What became of a data set: nothing is cut or left out without a number here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/json.h"
#include "data/sample.h"

namespace sluice {

struct Quantiles {
  int64_t smallest = 0, p10 = 0, median = 0, p90 = 0, p99 = 0, largest = 0;
  // Of an empty list: zeros. q-quantile: the value at position ceil(q n), counted from one, of the sorted list.
  static Quantiles of(std::vector<int64_t> values);
};

struct DataReport {
  std::string path;
  int64_t max_seq_length = 0;
  Truncate truncate = Truncate::no;
  TrainOn train_on = TrainOn::all_answers;

  int64_t rows_read = 0, blank_lines = 0;
  int64_t rows_elsewhere = 0;            // of the other part of a file that is split, not in rows_read
  std::map<std::string, int64_t> kinds;  // rows by format
  Quantiles lengths, prompts;            // tokens of each row as read; those before its first target

  int64_t rows_kept = 0;
  int64_t rows_too_long = 0;  // dropped: longer than max_seq_length
  // truncate: rows cut at their end, rows with a shorter prompt, what both lost, and the tokens before the answer of the shortest such row
  int64_t rows_cut = 0, prompts_cut = 0, tokens_cut = 0, shortest_cut_prompt = 0;
  int64_t rows_without_targets = 0;  // dropped: nothing left to learn
  int64_t pairs_equal = 0;           // dropped: chosen and rejected are the same tokens
  int64_t pairs_apart = 0;           // kept: chosen and rejected share no prompt, so nothing is computed once
  int64_t rows_tied = 0;             // dropped: no two of a row's completions have different ratings (UltraFeedback)
  int64_t rows_contradicted = 0;     // dropped: the same tokens have both labels (kto)
  // An answer that the chat template changed, so that other text is trained than the file has; answers of which no token can be learned.
  int64_t rows_rewritten = 0, answers_without_token = 0;
  std::map<std::string, int64_t> left_out;     // how many rows have a key whose text the chat template does not write
  std::map<std::string, int64_t> unread_keys;  // how many rows have a key that is not read

  int64_t tokens = 0, supervised = 0;  // of the rows kept
  void count(const Sample& sample);
  int64_t ignored() const { return tokens - supervised; }

  Json json() const;            // padding_tokens is there and zero: rows are packed, not padded
  std::string summary() const;  // a few lines for people; warnings last
};

// One line when rows are longer than the positions that the base is made for (0: unknown), or nothing.
std::string beyond_positions(const std::vector<int64_t>& lengths, int64_t positions);

}  // namespace sluice
