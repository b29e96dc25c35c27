// One row of rated answers: a prompt, an answer, and whether it is a good one.
//
//   parse_rated(parse_object(R"({"prompt": "2+2?", "completion": "4", "label": true})"))        // one answer
//   parse_rated(parse_object(R"({"prompt": "2+2?", "chosen": "4", "rejected": "5"})"))          // two: true and false
//
// label, or LLaMA-Factory's kto_tag, stands beside prompt (or question, instruction …) and completion, beside instruction and output, or beside messages
// or conversations that end with the answer.
#pragma once

#include <string>
#include <vector>

#include "data/row_format.h"

namespace sluice {

struct RatedRow {
  DataRow data;
  bool desirable = true;
  std::string kind;  // for people
};

// One answer; of a row of pairs the chosen and then the rejected one; none where no two ratings differ. Throws Error(bad_file) without file and row.
std::vector<RatedRow> parse_rated(const Json& row);

}  // namespace sluice
