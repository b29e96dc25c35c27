#include "data/row_shapes.h"

#include <fmt/format.h>

#include <array>

#include "data/row_format.h"
#include "data/row_keys.h"
#include "io/json_file.h"

namespace sluice {

namespace {

Json parsed_text(const std::string& text, const std::string& name, const char* needed) {
  try {
    return parse_json_line(text);
  } catch (const Json::exception&) {
    refuse_row(fmt::format("{} is {}, which is no JSON; needed {}", name, shortened(text), needed));
  }
}

// Lists may be written as JSON text, as tables and Parquet files have them.
Json list_of(const Json& value, const std::string& name, const char* needed) {
  Json list = value.is_string() ? parsed_text(value.get<std::string>(), name, needed) : value;
  if (!list.is_array()) refuse_row(fmt::format("{} is {}, needed {}", name, shortened(value), needed));
  return list;
}

std::string role_of(const std::string& from) {
  constexpr std::array<std::pair<const char*, const char*>, 6> names = {{{"human", "user"},
                                                                         {"gpt", "assistant"},
                                                                         {"chatgpt", "assistant"},
                                                                         {"model", "assistant"},
                                                                         {"bot", "assistant"},
                                                                         {"observation", "tool"}}};
  for (const auto& [theirs, ours] : names) {
    if (from == theirs) return ours;
  }
  return from;  // a role that is none is refused with all others
}

Json calls_of(const Json& value, const std::string& where) {
  constexpr const char* needed = "{\"name\", \"arguments\"} or a list of such calls";
  Json parsed = value.is_string() ? parsed_text(value.get<std::string>(), where + ".value", needed) : value;
  if (parsed.is_object()) parsed = Json::array({parsed});
  if (!parsed.is_array() || parsed.empty())
    refuse_row(fmt::format("{}.value is {}, needed {}", where, shortened(value), needed));
  Json calls = Json::array();
  for (const Json& call : parsed) {
    if (!call.is_object() || !call.contains("name") || !call["name"].is_string() || !call.contains("arguments"))
      refuse_row(fmt::format("{}.value has the call {}, needed {}", where, shortened(call), needed));
    calls.push_back({{"type", "function"}, {"function", call}});
  }
  return calls;
}

// from and value, or one of them beside role or content; other keys stay.
Json message_of(const Json& message, const std::string& where) {
  const bool from = message.is_object() && message.contains("from") && !message.contains("role");
  const bool value = message.is_object() && message.contains("value") && !message.contains("content");
  if (!from && !value) return message;
  Json result = Json::object();
  std::string role = from && message["from"].is_string() ? message["from"].get<std::string>() : "";
  if (from && role.empty())
    refuse_row(fmt::format("{}.from is {}, needed human, gpt, system, observation or function_call", where,
                           shortened(message["from"])));
  for (const auto& [key, item] : message.items()) {
    if (from && key == "from") result["role"] = role == "function_call" ? "assistant" : role_of(role);
    else if (value && key == "value") result[role == "function_call" ? "tool_calls" : "content"] = item;
    else result[key] = item;
  }
  if (result.contains("tool_calls") && role == "function_call")
    result["tool_calls"] = calls_of(result["tool_calls"], where);
  return result;
}

Json text_message(const char* role, const Json& content) { return {{"role", role}, {"content", content}}; }

const std::string& text_at(const Json& row, const char* key) {
  if (!row[key].is_string()) refuse_row(fmt::format("{} is {}, needed a string", key, shortened(row[key])));
  return row[key].get_ref<const std::string&>();
}

bool has(const Json& row, const char* key) { return row.contains(key) && !is_empty_value(row[key]); }

// [[question, answer], …] before the prompt.
void append_history(const Json& row, Json& messages) {
  if (!has(row, "history")) return;
  constexpr const char* needed = "a list of [question, answer]";
  for (const Json& turn : list_of(row["history"], "history", needed)) {
    if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string())
      refuse_row(fmt::format("history has {}, needed {}", shortened(turn), needed));
    messages.push_back(text_message("user", turn[0]));
    messages.push_back(text_message("assistant", turn[1]));
  }
}

// One text, or messages where something stands before it.
Asked after_system_and_history(const Json& row, const char* name, const std::string& text) {
  Asked asked{.prompt = text, .name = name, .read = {name, "system", "history"}};
  Json before = Json::array();
  if (const auto system = system_message(row, before)) before.push_back(*system);
  append_history(row, before);
  if (before.empty()) return asked;
  before.push_back(text_message("user", text));
  asked.prompt = std::move(before);
  return asked;
}

}  // namespace

Json messages_of(const Json& value, const std::string& name) {
  if (value.is_object() && value.contains("messages")) return messages_of(value["messages"], name + ".messages");
  Json list = value.is_object() ? Json::array({value}) : list_of(value, name, "a list of messages");
  for (size_t i = 0; i < list.size(); ++i) list[i] = message_of(list[i], fmt::format("{}[{}]", name, i));
  return list;
}

Json tools_of(const Json& row, bool wrap) {
  if (!has(row, "tools")) return {};
  Json tools = list_of(row["tools"], "tools", "a list");
  if (tools.empty()) return {};
  for (Json& tool : tools) {
    if (wrap && tool.is_object() && tool.contains("name") && !tool.contains("function"))
      tool = Json{{"type", "function"}, {"function", Json(tool)}};
  }
  return tools;
}

std::optional<Json> system_message(const Json& row, const Json& messages) {
  if (!has(row, "system")) return std::nullopt;
  const std::string& text = text_at(row, "system");
  if (messages.empty() || !messages[0].is_object() || messages[0].value("role", Json()) != "system")
    return text_message("system", text);
  if (messages[0].value("content", Json()) != text)
    refuse_row("system is not the system message that the conversation begins with; keep one of them");
  return std::nullopt;
}

Asked alpaca_prompt(const Json& row) {
  std::string text = text_at(row, "instruction");
  if (has(row, "input")) text += (text.empty() ? "" : "\n") + text_at(row, "input");
  Asked asked = after_system_and_history(row, "instruction", text);
  asked.read.emplace_back("input");
  return asked;
}

std::optional<Asked> asked_by(const Json& row) {
  std::vector<const char*> given;
  for (const char* key : {"prompt", "question", "instruction", "messages", "conversations"}) {
    if (has(row, key)) given.push_back(key);
  }
  if (given.size() > 1)
    refuse_row(fmt::format("{} and {} are both given, and either may be the prompt; keep one", given[0], given[1]));
  if (given.empty() && has(row, "input")) given.push_back("input");
  if (given.empty() && row.contains("prompt") && row["prompt"].is_string()) given.push_back("prompt");  // it is empty
  if (given.empty()) return std::nullopt;
  const std::string_view name = given[0];
  if (name == "instruction") return alpaca_prompt(row);
  if (row[given[0]].is_string() && name != "messages" && name != "conversations")
    return after_system_and_history(row, given[0], text_at(row, given[0]));
  Json messages = messages_of(row[given[0]], given[0]);
  if (const auto system = system_message(row, messages)) messages.insert(messages.begin(), *system);
  return Asked{.prompt = std::move(messages), .name = given[0], .read = {given[0], "system"}};
}

}  // namespace sluice
