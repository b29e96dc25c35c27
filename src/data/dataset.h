// Rows of a data file to token ids and a mask of what is to be learned.
//
//   Dataset data = read_dataset("data/train.jsonl", model_text, {.max_seq_length = 2048});
//   data.report.summary();                        // lengths, what was dropped or cut and why, supervised and ignored tokens
//   preview(data.samples[0], tokenizer);          // the text with the supervised stretches in ⟦ ⟧
//
// Kinds of files: data/row_source.h; kinds of rows: data/row_format.h; how a row becomes tokens, and what of it is learned: data/row_text.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/columns.h"
#include "data/data_report.h"
#include "data/model_text.h"
#include "data/sample.h"

namespace sluice {

// Of one file that is training and validation set: the rows whose prompts fall, by a hash with the seed, into the fraction, or the others.
struct Split {
  double held_out_fraction = 0;  // 0: the file is one set
  uint64_t seed = 0;
  bool held_out = false;
};

struct DatasetOptions {
  int64_t max_seq_length = 2048;     // rows longer than this are
  Truncate truncate = Truncate::no;  // dropped, or made to fit; either is counted
  TrainOn train_on = TrainOn::all_answers;
  bool needs_answers = false;  // mask_prompt was asked for: rows of text, in which nothing can be masked, are refused
  bool allow_mixed = false;    // rows of different kinds in one file
  Columns columns = {};
  Split split = {};
};

struct Dataset {
  std::vector<Sample> samples;  // in the order of the file
  DataReport report;
};

// Blank lines are skipped and counted; CRLF and a byte-order mark are accepted. Throws Error(bad_file) naming file, row, key or column for what
// is damaged, Error(bad_config) when no row is left, with the setting, the median prompt length and a value that works.
Dataset read_dataset(const std::string& path, const ModelText& text, const DatasetOptions& options);

// One line of such a file: ids and mask, not yet cut. Throws Error(bad_file) without file and row.
Sample make_sample(std::string_view line, const ModelText& text, TrainOn train_on = TrainOn::all_answers);

// Row `row` of a file, from 1, also where read_dataset would drop it. Throws Error(bad_config) past the end.
Sample read_sample(const std::string& path, int64_t row, const ModelText& text, const DatasetOptions& options);

// The text of a sample in stretches that are learned with one weight; 0: not learned. Special tokens are written out.
struct Stretch {
  std::string text;
  float weight = 0;
};
std::vector<Stretch> stretches(const Sample& sample, const Tokenizer& tokenizer);

// The same as one text, with ⟦ and ⟧ around what is learned, and its weight behind where that is not 1: ⟦yes⟧×0.5
std::string preview(const Sample& sample, const Tokenizer& tokenizer);

}  // namespace sluice
