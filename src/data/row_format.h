// One row of a data file, told apart by its keys (docs/formats.md).
//
//   DataRow row = parse_row(parse_object(R"({"instruction": "Add.", "input": "2 2", "output": "4"})"));
//   row.messages                                    // user: "Add.\n2 2", assistant: "4"
//
// What other tools write is brought to messages, or to text that is ready; kinds that another objective reads are refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace sluice {

// In the order in which they are looked for: several share keys.
enum class RowKind : uint8_t {
  preference,     // chosen, rejected (or chosen_response, rejected_response)
  ultrafeedback,  // instruction, completions with ratings
  stepwise,       // prompt, completions, labels
  unpaired,       // completion and a label that is true or false, or kto_tag
  prompt_completion,
  messages,
  sharegpt,
  alpaca,
  segments,
  text,
  prompt_only
};
// Throws Error(bad_file) with the keys that the row has.
RowKind kind_of_row(const Json& row);

// Text that is ready: no template is put around it.
struct TextPiece {
  std::string text;
  bool learned = true;
};

// A conversation, or a text, to be learned from.
struct DataRow {
  std::string kind;  // for people: "messages", "prompt-completion", "ShareGPT", "Alpaca", "segments", "text"
  Json messages = Json::array();     // as the file has them; prompt and completion strings as user and assistant
  Json tools, documents, arguments;  // of the chat template; null: none
  double weight = 1;                 // of the row
  std::vector<double> weights;       // of each message: what it says times that of the row
  bool plain = false;                // prompt and completion are strings: a model without a chat template can read them
  bool masks_prompt = false;         // a message that is not the assistant's says that it is not learned
  size_t first_target = 0;           // answers before this message are not trained: those of a prompt given as a list
  std::vector<std::string> unread;   // keys that nobody reads
  std::vector<TextPiece> pieces;     // instead of messages; one text in one or more parts
  bool as_it_stands = false;         // of pieces: BOS and EOS are in them, none is added
};

// All throw Error(bad_file), the message without file and row: what was found at which key or column, and what is needed.
[[noreturn]] void refuse_row(const std::string& message);
Json parse_object(std::string_view text);
// For objective sft.
DataRow parse_row(const Json& row);

// A prompt and an answer to it, each a string or a list of messages; from `row` come the weight and what the template is given. The row's
// `read` keys and those of its messages are accounted for.
struct AnswerParts {
  const Json &row, &prompt, &answer;
  std::string prompt_name = "prompt", answer_name = "completion";  // for messages
};
DataRow answer_row(const AnswerParts& parts, const std::vector<std::string_view>& read);
// The same of two texts that stand behind one another as they are; the answer alone is learned.
DataRow ready_row(const AnswerParts& parts, const std::vector<std::string_view>& read);
// Objectives that compare whole answers have no use for weights between 0 and 1.
void refuse_graded_weights(const DataRow& row);

}  // namespace sluice
