// The rows of a file as a run's objective reads them: samples (sft), preference pairs, or rated answers (kto).
//
//   RunRows rows = RunRows::read("data/train.jsonl", text, options, objective, &report);
//   PreferenceBatch batch = rows.pack({3, 8});      // labels and num_pairs are of no use with sft
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "data/preference.h"
#include "data/rated.h"
#include "train/objective.h"
#include "train/streamed_step.h"

namespace sluice {

class RunRows {
 public:
  RunRows() = default;
  static RunRows read(const std::string& path, const ModelText& text, const DatasetOptions& options,
                      const Objective& objective, DataReport* report);

  int64_t size() const;
  bool empty() const { return size() == 0; }
  PreferenceBatch pack(const std::vector<int64_t>& rows) const;
  // kto: the prompts of the rows with answers of others.
  PreferenceBatch pack_mismatched(const std::vector<int64_t>& rows) const;
  // What the reference policy is asked about one row, as the step runs it: the pair, or both answers of a rated row.
  std::vector<PreferenceBatch> reference_batches(int64_t row) const;
  // One of the row's sequences.
  const Sample& sequence(int64_t row) const;
  // Tokens of each row's longest sequence.
  std::vector<int64_t> lengths() const;
  // Tokens of each row in a batch: of a pair, both sequences with their shared prompt once.
  std::vector<int64_t> token_counts() const;

  // Throws Error(bad_file) naming a row with a token that a model of this vocabulary does not have.
  void check_vocabulary(int64_t vocab_size) const;
  // Tokens and masks of all rows, for a hash of the data.
  void append_to(std::string& bytes) const;

 private:
  std::vector<const Sample*> sequences(int64_t row) const;

  std::variant<std::vector<Sample>, std::vector<PairSample>, std::vector<RatedSample>> rows_;
  bool prompt_targets_ = false;
};

StepBatch step_batch(const Batch& batch);

}  // namespace sluice
