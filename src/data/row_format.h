// One line of a JSONL file, told apart by its keys (docs/formats.md).
//
// {"messages": [{"role", "content"}, …]} and {"prompt", "completion"}, each a string or a list of messages, can be trained on. Other formats
// that people have are recognised and refused by name.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace sluice {

// A conversation to be learned from.
struct DataRow {
  std::string kind;                  // "messages" or "prompt-completion"
  Json messages = Json::array();     // as the file has them; prompt and completion strings as user and assistant
  Json tools, documents, arguments;  // of the chat template; null: none
  double weight = 1;                 // of the row
  std::vector<double> weights;       // of each message: what it says times that of the row
  bool plain = false;                // prompt and completion are strings: a model without a chat template can read them
  bool masks_prompt = false;         // a message that is not the assistant's says that it is not learned
  size_t first_target = 0;           // answers before this message are not trained: those of a prompt given as a list
  std::vector<std::string> unread;   // keys that nobody reads
};

// All throw Error(bad_file), the message without file and row: what was found at which key or column, and what is needed.
[[noreturn]] void refuse_row(const std::string& message);
// `needed` is what a row of the format looks like, for the message.
Json parse_object(std::string_view line, const char* needed);
DataRow parse_row(std::string_view line);

// A prompt and an answer to it, each a string or a list of messages; from `row` come the weight and what the template is given. The row's
// `read` keys and those of its messages are accounted for.
struct AnswerParts {
  const Json &row, &prompt, &answer;
  std::string prompt_name = "prompt", answer_name = "completion";  // for messages
};
DataRow answer_row(const AnswerParts& parts, std::initializer_list<std::string_view> read);
// Objectives that compare whole answers have no use for weights between 0 and 1.
void refuse_graded_weights(const DataRow& row);

}  // namespace sluice
