// Rows of one answer and a verdict on it, for objectives that need no pairs (KTO).
//
//   RatedData data = read_rated("data/train.jsonl", model_text, {.max_seq_length = 2048});
//   PreferenceBatch batch = pack_rated({&data.rows[3], &data.rows[8]}, RatedAnswer::own);
//
// Rows: data/rated_row.h.
//
// `mismatched` is the same prompt with the answer of the next row of the file (of the first, at the end): what KTO measures its KL term on
// (Ethayarajh et al. 2024, section 4.1). It is cut at max_seq_length, since it is only measured.
#pragma once

#include <string>
#include <vector>

#include "data/preference.h"

namespace sluice {

struct RatedSample {
  Sample own, mismatched;
  bool desirable = true;
  int64_t row = 0;  // as Sample::row
};

struct RatedData {
  std::vector<RatedSample> rows;  // in the order of the file; behind them the rejected answers of pairs
  DataReport report;
};

// max_seq_length and truncate as in read_dataset; mask_prompt is not read. Throws as read_dataset.
RatedData read_rated(const std::string& path, const ModelText& text, const DatasetOptions& options);

enum class RatedAnswer : uint8_t { own, mismatched };

// One or more rows, a root each. Targets are those of the answer: Part::chosen where it is desirable, else Part::rejected.
PreferenceBatch pack_rated(const std::vector<const RatedSample*>& rows, RatedAnswer answer);

}  // namespace sluice
