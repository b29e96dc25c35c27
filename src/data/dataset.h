// JSONL rows to token ids and a mask of what is to be learned.
//
//   Dataset data = read_dataset("data/train.jsonl", model_text, {.max_seq_length = 2048});
//   data.report.summary();                        // lengths, what was dropped or cut and why, supervised and ignored tokens
//   preview(data.samples[0], tokenizer);          // the text with the supervised stretches in ⟦ ⟧
//
// Formats: data/row_format.h. A row is rendered whole by the model's chat template and tokenised in one pass; strings of prompt and
// completion become a chat of user and assistant, as in mlx-lm (without a template: prompt, completion, EOS one after another).
//
// What is supervised is decided by position in the rendered text, never by id, so an EOS that ends an answer is learned even where padding
// uses the same id. With mask_prompt every assistant message is learned, its content and its end-of-turn token; of a prompt given as a list,
// nothing. A token is supervised if its first byte lies in a supervised range: where a merge crosses the seam, the token belongs to the
// prompt. The first token of a row is never supervised, since nothing predicts it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/data_report.h"
#include "data/model_text.h"

namespace sluice {

struct Sample {
  std::vector<int32_t> ids;
  std::vector<uint8_t> supervised;  // per token: 1 where this token is a target
  int64_t row = 0;                  // line of the file, from 1

  int64_t num_targets() const;
};

struct DatasetOptions {
  int64_t max_seq_length = 2048;  // rows longer than this are dropped and counted,
  bool truncate = false;          // or with `truncate` cut at the end and counted
  bool mask_prompt = true;        // false: every token is supervised
  bool allow_mixed = false;       // rows of different formats in one file
};

struct Dataset {
  std::vector<Sample> samples;  // in the order of the file
  DataReport report;
};

// Blank lines are skipped and counted; CRLF and a byte-order mark are accepted. Throws Error(bad_file) naming file, row, key or column for what
// is damaged, Error(bad_config) when no row is left, with the setting, the median prompt length and a value that works.
Dataset read_dataset(const std::string& path, const ModelText& text, const DatasetOptions& options);

// One line of such a file: ids and mask, not yet cut. Throws Error(bad_file) without file and row.
Sample make_sample(std::string_view line, const ModelText& text, bool mask_prompt);

// The row at line `row` of a file, from 1, also where read_dataset would drop it. Throws Error(bad_config) past the end.
Sample read_sample(const std::string& path, int64_t row, const ModelText& text, bool mask_prompt);

// The text of a sample with ⟦ and ⟧ around what is supervised. Special tokens are written out.
std::string preview(const Sample& sample, const Tokenizer& tokenizer);

}  // namespace sluice
