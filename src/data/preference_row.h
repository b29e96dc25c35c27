// One row of a preference set: a prompt and two answers, in any of the ways that people write it (docs/formats.md).
//
//   const auto row = parse_preference(parse_object(R"({"system": "Be brief.", "question": "2+2?", "chosen": "4", "rejected": "Well, …"})"));
//   row->prompt                                     // [{"role": "system", …}, {"role": "user", …}]
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "data/row_format.h"

namespace sluice {

struct PreferenceRow {
  Json row, prompt, chosen, rejected;  // row: all of it; the parts are strings or lists of messages
  std::string kind = "preference";     // for people
  std::string prompt_name = "prompt";
  std::vector<std::string_view> read;  // the keys that the parts came from
  bool ready = false;  // two texts without a prompt: their common beginning is it, and no template is put around them

  // The prompt with either answer. Throws Error(bad_file), also for weights between 0 and 1.
  DataRow with_chosen() const;
  DataRow with_rejected() const;
};

// Nothing for a row of completions no two of which have different ratings. Of others the pair is the first with the highest rating against the first
// with the lowest; a completion's rating is its fine-grained_score, else the mean of the ratings in its annotations, else its overall_score, rating or
// score. Throws Error(bad_file) without file and row.
std::optional<PreferenceRow> parse_preference(const Json& row);

}  // namespace sluice
