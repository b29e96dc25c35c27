#include "data/row_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"

namespace sluice {

namespace {

constexpr const char* supported = "{\"messages\": [{\"role\", \"content\"}, …]} or {\"prompt\", \"completion\"}";

std::string shortened(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() <= 60) return text;
  size_t end = 57;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;  // no half characters
  return text.substr(0, end) + "...";
}

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

void append_messages(const Json& list, const std::string& key, std::vector<ChatMessage>& messages) {
  if (!list.is_array() || list.empty())
    refuse_row(fmt::format("{} is {}, needed a list of messages", key, shortened(list)));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", key, i);
    const Json& message = list[i];
    if (!message.is_object())
      refuse_row(fmt::format("{} is {}, needed {{\"role\", \"content\"}}", where, shortened(message)));
    for (const char* extra : {"tool_calls", "tool_call_id", "reasoning_content", "thinking"}) {
      if (message.contains(extra) && !message[extra].is_null())
        refuse_row(fmt::format("{} has \"{}\", which is not supported yet; put it into content or drop the row", where,
                               extra));
    }
    ChatMessage parsed{message_text(message, "role", where), message_text(message, "content", where)};
    if (parsed.role != "system" && parsed.role != "user" && parsed.role != "assistant") {
      refuse_row(fmt::format("{}.role is \"{}\", needed system, user or assistant; rename it or drop the message",
                             where, parsed.role));
    }
    messages.push_back(std::move(parsed));
  }
}

DataRow prompt_completion(const Json& row) {
  DataRow parsed{.kind = "prompt-completion"};
  const Json &prompt = row["prompt"], &completion = row["completion"];
  if (prompt.is_string()) {
    parsed.messages.push_back({"user", prompt.get<std::string>()});
  } else {
    append_messages(prompt, "prompt", parsed.messages);
  }
  parsed.first_target = parsed.messages.size();
  if (completion.is_string()) {
    parsed.messages.push_back({"assistant", completion.get<std::string>()});
  } else {
    append_messages(completion, "completion", parsed.messages);
  }
  if (prompt.is_string() && completion.is_string()) {
    parsed.prompt = prompt.get<std::string>();
    parsed.completion = completion.get<std::string>();
  }
  return parsed;
}

}  // namespace

void refuse_row(const std::string& message) { throw Error(ErrorCode::bad_file, message); }

Json parse_object(std::string_view line, const char* needed) {
  Json row;
  try {
    row = Json::parse(line.begin(), line.end());
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
  if (row.contains("tools") && !row["tools"].is_null())
    refuse_row("\"tools\" is not supported yet; drop the key or the row");
  if (format.kind == std::string_view("prompt-completion")) return prompt_completion(row);
  DataRow parsed{.kind = format.kind};
  append_messages(row["messages"], "messages", parsed.messages);
  return parsed;
}

}  // namespace sluice
