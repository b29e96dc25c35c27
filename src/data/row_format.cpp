#include "data/row_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "core/error.h"
#include "data/row_keys.h"
#include "data/row_shapes.h"
#include "io/json_file.h"

namespace sluice {

namespace {

constexpr const char* supported =
    "messages, prompt and completion, conversations, instruction and output, segments or text";

bool all_of(const Json& row, std::initializer_list<const char*> keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const char* key) { return row.contains(key); });
}

bool is_list_of_objects(const Json& row, const char* key) {
  return row.contains(key) && row[key].is_array() && !row[key].empty() && row[key][0].is_object();
}

std::string message_text(const Json& message, const char* key, const std::string& where) {
  const auto found = message.find(key);
  if (found == message.end()) refuse_row(fmt::format("{} has no \"{}\", needed a string", where, key));
  if (!found->is_string()) refuse_row(fmt::format("{}.{} is {}, needed a string", where, key, shortened(*found)));
  return found->get<std::string>();
}

void check_message(const Json& message, const std::string& where) {
  if (!message.is_object())
    refuse_row(fmt::format("{} is {}, needed {{\"role\", \"content\"}}", where, shortened(message)));
  const std::string role = message_text(message, "role", where);
  const bool calls = role == "assistant" && message.contains("tool_calls") && !is_empty_value(message["tool_calls"]);
  const bool parts = message.contains("content") && message["content"].is_array() && !message["content"].empty();
  if (!parts && !(calls && (!message.contains("content") || message["content"].is_null())))
    message_text(message, "content", where);
  constexpr std::array<std::string_view, 10> roles = {"system",   "developer", "user",    "assistant",   "tool",
                                                      "function", "ipython",   "control", "environment", "document"};
  if (std::find(roles.begin(), roles.end(), role) == roles.end()) {
    refuse_row(fmt::format(
        "{}.role is \"{}\", needed system, developer, user, assistant or tool; rename it or drop the message", where,
        role));
  }
}

// What a chat template may read of a message.
const std::vector<std::string_view>& message_keys() {
  static const std::vector<std::string_view> keys = {"role", "content",           "tool_calls", "tool_call_id",
                                                     "name", "reasoning_content", "reasoning",  "thinking"};
  return keys;
}

void append_messages(const Json& value, const std::string& key, DataRow& row) {
  const Json list = messages_of(value, key);
  if (list.empty()) refuse_row(fmt::format("{} is {}, needed a list of messages", key, shortened(list)));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", key, i);
    const Json& message = list[i];
    check_message(message, where);
    const std::optional<double> weight = weight_of(message, where);
    if (weight && message["role"] != "assistant") {
      if (*weight > 0)
        refuse_row(fmt::format("{} says that it is learned, and is a {} message; only the assistant's are", where,
                               message["role"].get_ref<const std::string&>()));
      row.masks_prompt = true;
    }
    for (const std::string& name : unread_keys(message, where, message_keys()))
      row.unread.push_back(key + "[]." + name);
    row.messages.push_back(message);
    row.weights.push_back(weight.value_or(1));
  }
}

// What a row says besides its messages.
void take_rest(const Json& object, const std::vector<std::string_view>& read, DataRow& row) {
  std::vector<std::string> spoken;
  for (const Json& message : row.messages) {
    if (message.contains("content") && message["content"].is_string())
      spoken.push_back(message["content"].get<std::string>());
  }
  std::vector<std::string_view> known = read;
  known.insert(known.end(), {"tools", "documents", "chat_template_kwargs", "chat_template_args"});
  const std::vector<std::string> unread = unread_keys(object, "", known, spoken);
  row.unread.insert(row.unread.end(), unread.begin(), unread.end());
  row.weight = weight_of(object, "").value_or(1);
  const auto list = [&](const char* key) {
    if (!object.contains(key) || is_empty_value(object[key])) return Json();
    if (!object[key].is_array()) refuse_row(fmt::format("{} is {}, needed a list", key, shortened(object[key])));
    return object[key];
  };
  row.tools = tools_of(object, /*wrap=*/row.kind == "ShareGPT");
  row.documents = list("documents");
  for (const char* key : {"chat_template_kwargs", "chat_template_args"}) {  // transformers' and mlx-lm's name
    if (!object.contains(key) || is_empty_value(object[key])) continue;
    if (!object[key].is_object())
      refuse_row(fmt::format("{} is {}, needed an object of names and values", key, shortened(object[key])));
    if (row.arguments.is_object() && row.arguments != object[key])
      refuse_row("chat_template_kwargs and chat_template_args are both given and differ; keep one");
    row.arguments = object[key];
  }
  for (double& w : row.weights) w *= row.weight;
}

}  // namespace

void refuse_row(const std::string& message) { throw Error(ErrorCode::bad_file, message); }

Json parse_object(std::string_view text) {
  Json row;
  try {
    row = parse_json_line(text);
  } catch (const Json::exception& e) {
    std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 9: …"
    const auto* syntax = dynamic_cast<const Json::parse_error*>(&e);  // the other: a number too large for a double
    const size_t colon = what.find(syntax != nullptr ? ": " : "] ");
    refuse_row(fmt::format("{}no JSON: {}; needed one object a row",
                           syntax != nullptr ? fmt::format("column {}: ", syntax->byte) : "",
                           colon == std::string::npos ? what : what.substr(colon + 2)));
  }
  if (!row.is_object()) refuse_row(fmt::format("found {}, needed one object a row", shortened(row)));
  return row;
}

DataRow answer_row(const AnswerParts& parts, const std::vector<std::string_view>& read) {
  DataRow row{.kind = "prompt-completion"};
  const auto append = [&](const Json& part, const std::string& name, const char* role) {
    if (!part.is_string()) return append_messages(part, name, row);
    row.messages.push_back({{"role", role}, {"content", part}});
    row.weights.push_back(1);
  };
  append(parts.prompt, parts.prompt_name, "user");
  row.first_target = row.messages.size();
  append(parts.answer, parts.answer_name, "assistant");
  row.plain = parts.prompt.is_string() && parts.answer.is_string();
  take_rest(parts.row, read, row);
  return row;
}

DataRow ready_row(const AnswerParts& parts, const std::vector<std::string_view>& read) {
  DataRow row{.kind = "prompt-completion"};
  row.pieces = {{parts.prompt.get<std::string>(), false}, {parts.answer.get<std::string>(), true}};
  take_rest(parts.row, read, row);
  return row;
}

void refuse_graded_weights(const DataRow& row) {
  for (double weight : row.weights) {
    if (weight == 0 || weight == 1) continue;
    refuse_row(
        fmt::format("a weight is {}; pairs and rated answers know only 0 and 1, objective sft reads others", weight));
  }
}

namespace {

DataRow conversation_row(const Json& row, const char* key, const char* kind) {
  DataRow parsed{.kind = kind};
  const Json list = messages_of(row[key], key);
  std::vector<std::string_view> read = {key};
  if (std::string_view(kind) == "ShareGPT") {
    if (const auto system = system_message(row, list)) append_messages(Json::array({*system}), "system", parsed);
    read.emplace_back("system");
  }
  append_messages(list, key, parsed);
  take_rest(row, read, parsed);
  return parsed;
}

// The answers of history are learned, as in LLaMA-Factory.
DataRow alpaca_row(const Json& row) {
  const Asked asked = alpaca_prompt(row);
  if (!row["output"].is_string()) refuse_row(fmt::format("output is {}, needed a string", shortened(row["output"])));
  std::vector<std::string_view> read = asked.read;
  read.emplace_back("output");
  DataRow parsed = answer_row({.row = row,
                               .prompt = asked.prompt,
                               .answer = row["output"],
                               .prompt_name = "instruction",
                               .answer_name = "output"},
                              read);
  parsed.kind = "Alpaca";
  parsed.first_target = 0;
  return parsed;
}

DataRow text_row(const Json& row) {
  if (!row["text"].is_string() || row["text"].get_ref<const std::string&>().empty())
    refuse_row(fmt::format("text is {}, needed a string that is not empty", shortened(row["text"])));
  DataRow parsed{.kind = "text"};
  parsed.pieces = {{row["text"].get<std::string>(), true}};
  take_rest(row, {"text"}, parsed);
  return parsed;
}

DataRow segments_row(const Json& row) {
  DataRow parsed{.kind = "segments"};
  parsed.as_it_stands = true;
  const Json& list = row["segments"];
  constexpr const char* needed = "{\"label\": true or false, \"text\"}";
  if (!list.is_array() || list.empty())
    refuse_row(fmt::format("segments is {}, needed a list of {}", shortened(list), needed));
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& segment = list[i];
    const std::string where = fmt::format("segments[{}]", i);
    if (!segment.is_object() || !segment.contains("label") || !segment["label"].is_boolean() ||
        !segment.contains("text") || !segment["text"].is_string())
      refuse_row(fmt::format("{} is {}, needed {}", where, shortened(segment), needed));
    for (const std::string& key : unread_keys(segment, where, {"label", "text"}))
      parsed.unread.push_back("segments[]." + key);
    parsed.pieces.push_back({segment["text"].get<std::string>(), segment["label"].get<bool>()});
  }
  take_rest(row, {"segments"}, parsed);
  return parsed;
}

[[noreturn]] void refuse_kind(const char* kind, const char* objectives) {
  refuse_row(
      fmt::format("this is {} data, which objective {} reads; objective sft needs {}", kind, objectives, supported));
}

}  // namespace

RowKind kind_of_row(const Json& row) {
  if (all_of(row, {"chosen", "rejected"}) || all_of(row, {"chosen_response", "rejected_response"}))
    return RowKind::preference;
  if (is_list_of_objects(row, "completions")) return RowKind::ultrafeedback;
  if (all_of(row, {"completions", "labels"})) return RowKind::stepwise;
  if (row.contains("kto_tag") || (all_of(row, {"completion", "label"}) && row["label"].is_boolean()))
    return RowKind::unpaired;
  if (all_of(row, {"prompt", "completion"})) return RowKind::prompt_completion;
  if (row.contains("messages")) return RowKind::messages;
  if (row.contains("conversations")) return RowKind::sharegpt;
  if (all_of(row, {"instruction", "output"})) return RowKind::alpaca;
  if (row.contains("segments")) return RowKind::segments;
  if (row.contains("text")) return RowKind::text;
  if (row.contains("prompt")) return RowKind::prompt_only;
  std::string keys;
  for (const auto& item : row.items()) keys += (keys.empty() ? "\"" : ", \"") + item.key() + "\"";
  refuse_row(fmt::format("found the keys {}, needed {}", keys.empty() ? "(none)" : keys, supported));
}

DataRow parse_row(const Json& row) {
  switch (kind_of_row(row)) {
    case RowKind::preference: refuse_kind("preference", "dpo, orpo, simpo, slic or cpo");
    case RowKind::ultrafeedback: refuse_kind("UltraFeedback", "dpo, orpo, simpo, slic or cpo");
    case RowKind::unpaired: refuse_kind("unpaired preference", "kto");
    case RowKind::stepwise:
      refuse_row(
          fmt::format("this is stepwise data (completions, labels), which no objective reads; needed {}", supported));
    case RowKind::prompt_only:
      refuse_row(fmt::format("there is a prompt and no answer to learn; needed {}", supported));
    case RowKind::messages: return conversation_row(row, "messages", "messages");
    case RowKind::sharegpt: return conversation_row(row, "conversations", "ShareGPT");
    case RowKind::alpaca: return alpaca_row(row);
    case RowKind::segments: return segments_row(row);
    case RowKind::text: return text_row(row);
    case RowKind::prompt_completion: break;
  }
  return answer_row({.row = row, .prompt = row["prompt"], .answer = row["completion"]}, {"prompt", "completion"});
}

}  // namespace sluice
