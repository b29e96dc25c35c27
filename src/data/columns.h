// Other names for the keys of rows: prompt_feature, field_messages, columns.prompt … of a run's settings.
//
//   const Columns columns{{{"prompt", "question"}, {"completion", "reply"}}};
//   columns.apply(row);                          // {"question": "2+2?", "reply": "4"} becomes {"prompt": "2+2?", "completion": "4"}
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/json.h"

namespace sluice {

struct Columns {
  // What the formats call a key, and what the file does. role and content are keys of messages, all others of rows.
  std::vector<std::pair<std::string, std::string>> names;

  // A key of the file that has a format's name and is not meant is kept as "… of the file". Throws Error(bad_file) for a row that lacks a key which
  // is named; system, input, history and tools may be missing.
  void apply(Json& row) const;
};

}  // namespace sluice
