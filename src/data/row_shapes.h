// How other tools write a conversation, as messages {"role", "content"}.
//
//   messages_of(row["conversations"], "conversations");   // [{"from": "human", "value": "2+2?"}] to [{"role": "user", "content": "2+2?"}]
//   asked_by(row)->prompt                                 // {"instruction": "Add.", "input": "2 2"}: "Add.\n2 2"
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace sluice {

// A list, a single message, {"messages": […]}, or one of these as JSON text, to a list of messages. ShareGPT's from and value become role and content:
// human is user; gpt, chatgpt, model and bot are assistant; observation is tool; function_call, whose value is the call as JSON or a list of calls,
// an assistant's tool_calls. Messages that have role and content pass as they are.
Json messages_of(const Json& value, const std::string& name);

// Tools as a list or as JSON text; nothing: null. `wrap`: {"name", …} alone becomes {"type": "function", "function": {…}}.
Json tools_of(const Json& row, bool wrap);

// The row's system message, or nothing. Throws Error(bad_file) where the messages begin with another one.
std::optional<Json> system_message(const Json& row, const Json& messages);

// What a row asks, as one text or as a list of messages: prompt, question, or instruction with input behind it in a new line (LLaMA-Factory), after
// history and system; or messages or conversations. Nothing where there is none of these. Throws Error(bad_file) for two of them.
struct Asked {
  Json prompt;
  std::string name;                    // the key
  std::vector<std::string_view> read;  // all keys that it is made of
};
std::optional<Asked> asked_by(const Json& row);

// instruction, input, history and system alone.
Asked alpaca_prompt(const Json& row);

}  // namespace sluice
