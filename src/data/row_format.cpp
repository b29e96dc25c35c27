#include "data/row_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "data/row_keys.h"
#include "io/json_file.h"

namespace sluice {

namespace {

constexpr const char* supported = "{\"messages\": [{\"role\", \"content\"}, …]} or {\"prompt\", \"completion\"}";

// Keys of a format, in the order in which they are looked for (several formats share keys).
struct Format {
  const char* kind;
  std::vector<const char*> keys;
  bool trainable;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> list = {{"preference", {"chosen", "rejected"}, false},
                                           {"unpaired preference", {"completion", "label"}, false},
                                           {"prompt-completion", {"prompt", "completion"}, true},
                                           {"messages", {"messages"}, true},
                                           {"ShareGPT", {"conversations"}, false},
                                           {"Alpaca", {"instruction", "output"}, false},
                                           {"segments", {"segments"}, false},
                                           {"text", {"text"}, false}};
  return list;
}

const Format& detect(const Json& row) {
  for (const Format& format : formats()) {
    if (std::all_of(format.keys.begin(), format.keys.end(), [&](const char* key) { return row.contains(key); }))
      return format;
  }
  std::string keys;
  for (const auto& [key, value] : row.items()) keys += (keys.empty() ? "\"" : ", \"") + key + "\"";
  refuse_row(fmt::format("found the keys {}, needed {}", keys.empty() ? "(none)" : keys, supported));
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

void append_messages(const Json& list, const std::string& key, DataRow& row) {
  if (!list.is_array() || list.empty())
    refuse_row(fmt::format("{} is {}, needed a list of messages", key, shortened(list)));
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
void take_rest(const Json& object, std::initializer_list<std::string_view> read, DataRow& row) {
  std::vector<std::string> spoken;
  for (const Json& message : row.messages) {
    if (message.contains("content") && message["content"].is_string())
      spoken.push_back(message["content"].get<std::string>());
  }
  std::vector<std::string_view> known(read);
  known.insert(known.end(), {"tools", "documents", "chat_template_kwargs", "chat_template_args"});
  const std::vector<std::string> unread = unread_keys(object, "", known, spoken);
  row.unread.insert(row.unread.end(), unread.begin(), unread.end());
  row.weight = weight_of(object, "").value_or(1);
  const auto list = [&](const char* key) {
    if (!object.contains(key) || is_empty_value(object[key])) return Json();
    if (!object[key].is_array()) refuse_row(fmt::format("{} is {}, needed a list", key, shortened(object[key])));
    return object[key];
  };
  row.tools = list("tools");
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

Json parse_object(std::string_view line, const char* needed) {
  Json row;
  try {
    row = parse_json_line(line);
  } catch (const Json::exception& e) {
    std::string what = e.what();  // "[json.exception.parse_error.101] parse error at line 1, column 9: …"
    const auto* syntax = dynamic_cast<const Json::parse_error*>(&e);  // the other: a number too large for a double
    const size_t colon = what.find(syntax != nullptr ? ": " : "] ");
    refuse_row(fmt::format("{}no JSON: {}; needed one object a line: {}",
                           syntax != nullptr ? fmt::format("column {}: ", syntax->byte) : "",
                           colon == std::string::npos ? what : what.substr(colon + 2), needed));
  }
  if (!row.is_object()) refuse_row(fmt::format("found {}, needed one object a line: {}", shortened(row), needed));
  return row;
}

DataRow answer_row(const AnswerParts& parts, std::initializer_list<std::string_view> read) {
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

void refuse_graded_weights(const DataRow& row) {
  for (double weight : row.weights) {
    if (weight == 0 || weight == 1) continue;
    refuse_row(
        fmt::format("a weight is {}; pairs and rated answers know only 0 and 1, objective sft reads others", weight));
  }
}

DataRow parse_row(std::string_view line) {
  const Json row = parse_object(line, supported);
  const Format& format = detect(row);
  if (std::string_view(format.kind).ends_with("preference")) {
    refuse_row(fmt::format("this is {} data, which objective {} reads; objective sft needs {}", format.kind,
                           format.kind == std::string_view("preference") ? "dpo, orpo, simpo, slic or cpo" : "kto",
                           supported));
  }
  if (!format.trainable)
    refuse_row(fmt::format("this is {} data, which is not supported yet; needed {}", format.kind, supported));
  if (format.kind == std::string_view("prompt-completion"))
    return answer_row({.row = row, .prompt = row["prompt"], .answer = row["completion"]}, {"prompt", "completion"});
  DataRow parsed{.kind = format.kind};
  append_messages(row["messages"], "messages", parsed);
  take_rest(row, {"messages"}, parsed);
  return parsed;
}

}  // namespace sluice
