#include "text/turn_renderer.h"

#include "core/error.h"

namespace sluice {
namespace {

using System = TurnFormat::System;

// Python's str.strip; Jinja's trim does the same.
std::string_view trimmed(std::string_view text) {
  constexpr std::string_view space = " \t\n\r\f\v\x1C\x1D\x1E\x1F";
  const auto strip_wide = [](std::string_view t) {  // the white space outside ASCII: U+0085, U+00A0, U+1680, U+2000 …
    for (std::string_view wide :
         {"\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81", "\xE2\x80\x82", "\xE2\x80\x83",
          "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86", "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89",
          "\xE2\x80\x8A", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
      if (t.starts_with(wide)) t.remove_prefix(wide.size());
      if (t.ends_with(wide)) t.remove_suffix(wide.size());
    }
    return t;
  };
  for (size_t before = text.size() + 1; text.size() < before;) {
    before = text.size();
    while (!text.empty() && space.find(text.front()) != std::string_view::npos) text.remove_prefix(1);
    while (!text.empty() && space.find(text.back()) != std::string_view::npos) text.remove_suffix(1);
    text = strip_wide(text);
  }
  return text;
}

class TurnRenderer final : public ChatRenderer {
 public:
  explicit TurnRenderer(TurnFormat format) : format_(std::move(format)) {}
  std::string_view name() const override { return format_.name; }

  RenderedChat render(std::span<const ChatMessage> messages, bool add_generation_prompt) const override {
    check_messages(messages);
    RenderedChat chat{.text = format_.start};
    const bool has_system = messages[0].role == "system";
    std::string for_user;  // what the first user turn begins with
    if (format_.system == System::always) {
      turn(chat, format_.system_turn, format_.system_prefix, has_system ? messages[0].content : "");
    } else if (format_.system == System::in_user && has_system) {
      for_user = messages[0].content + format_.system_separator;
    } else if (format_.default_system && !has_system) {
      turn(chat, format_.system_turn, *format_.default_system, "");
    }
    const bool first_is_done = has_system && format_.system != System::own_turn;
    for (size_t i = first_is_done ? 1 : 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      if (message.role == "assistant") {
        chat.supervised.push_back(assistant_turn(chat, message.content));
      } else if (message.role == "user") {
        turn(chat, format_.user_turn, i == 1 ? for_user : "", message.content);
      } else {
        turn(chat, format_.system_turn, "", message.content);
      }
    }
    if (add_generation_prompt) chat.text += format_.generation_prompt;
    return chat;
  }

 private:
  void check_messages(std::span<const ChatMessage> messages) const {
    check(!messages.empty(), ErrorCode::bad_config, "messages is empty, needed at least one");
    const size_t first_turn = messages[0].role == "system" ? 1 : 0;
    const bool system_first_only =
        format_.alternate || format_.system == System::in_user || format_.system == System::not_allowed;
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string& role = messages[i].role;
      const std::string which = "message " + std::to_string(i) + " has role \"" + role + "\", ";
      const bool known = role == "system" || role == "user" || role == "assistant";
      check(known, ErrorCode::bad_config,
            which + "needed system, user or assistant; rename the role or drop the message");
      check(role != "system" || format_.system != System::not_allowed, ErrorCode::bad_config,
            which + "but the model's template has no system role; put its text into the first user message");
      check(role != "system" || i == 0 || !system_first_only, ErrorCode::bad_config,
            which + "but the model's template has it at the start only");
      if (!format_.alternate || i < first_turn) continue;
      const bool user_is_next = (i - first_turn) % 2 == 0;
      check((role == "user") == user_is_next, ErrorCode::bad_config,
            which + "needed " + (user_is_next ? "user" : "assistant") +
                ": the model's template wants user and assistant in turn");
    }
  }

  std::string_view content_of(std::string_view content) const { return format_.trim ? trimmed(content) : content; }

  void turn(RenderedChat& chat, const TurnFormat::Role& role, const std::string& prefix,
            std::string_view content) const {
    chat.text += role.before + prefix;
    chat.text += content_of(content);
    chat.text += role.after;
  }

  ByteRange assistant_turn(RenderedChat& chat, std::string_view content) const {
    chat.text += format_.assistant_turn.before;
    const auto begin = static_cast<int64_t>(chat.text.size());
    chat.text += content_of(content);
    chat.text += format_.assistant_end;
    const auto end = static_cast<int64_t>(chat.text.size());
    chat.text += format_.assistant_turn.after;
    return {begin, end};
  }

  TurnFormat format_;
};

}  // namespace

TurnFormat uniform_turns(std::string name, const std::string& open, const std::string& close, const std::string& end,
                         const std::string& after, const std::string& assistant) {
  const auto role = [&](const std::string& role_name) {
    return TurnFormat::Role{open + role_name + close, end + after};
  };
  return {.name = std::move(name),
          .system_turn = role("system"),
          .user_turn = role("user"),
          .assistant_turn = {open + assistant + close, after},
          .assistant_end = end,
          .generation_prompt = open + assistant + close};
}

std::shared_ptr<const ChatRenderer> make_turn_renderer(TurnFormat format) {
  return std::make_shared<TurnRenderer>(std::move(format));
}

}  // namespace sluice
