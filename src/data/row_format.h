// One line of a JSONL file, told apart by its keys (docs/formats.md).
//
// {"messages": [{"role", "content"}, …]} and {"prompt", "completion"}, each a string or a list of messages, can be trained on. Other formats
// that people have are recognised and refused by name.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/chat_template.h"

namespace sluice {

struct DataRow {
  std::string kind;                   // "messages" or "prompt-completion"
  std::vector<ChatMessage> messages;  // prompt and completion strings as user and assistant
  // The strings of prompt and completion as the file has them, for models without a chat template; nothing for lists.
  std::optional<std::string> prompt, completion;
  size_t first_target = 0;  // answers before this message are not trained: those of a prompt given as a list
};

// All throw Error(bad_file), the message without file and row: what was found at which key or column, and what is needed.
[[noreturn]] void refuse_row(const std::string& message);
// `needed` is what a row of the format looks like, for the message.
Json parse_object(std::string_view line, const char* needed);
DataRow parse_row(std::string_view line);

}  // namespace sluice
