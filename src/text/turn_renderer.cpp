#include "text/turn_renderer.h"

#include "core/error.h"

namespace sluice {
namespace {

void check_messages(std::span<const ChatMessage> messages) {
  check(!messages.empty(), ErrorCode::bad_config, "messages is empty, needed at least one");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system" || role == "user" || role == "assistant") continue;
    throw Error(ErrorCode::bad_config, "message " + std::to_string(i) + " has role \"" + role +
                                           "\", needed system, user or assistant; rename the role or drop the message");
  }
}

// Python's str.strip for ASCII white space.
std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n\r\f\v");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n\r\f\v") + 1 - begin);
}

class TurnRenderer final : public ChatRenderer {
 public:
  explicit TurnRenderer(TurnFormat format) : format_(std::move(format)) {}
  std::string_view name() const override { return format_.name; }

  RenderedChat render(std::span<const ChatMessage> messages, bool add_generation_prompt) const override {
    check_messages(messages);
    RenderedChat chat{.text = format_.start};
    if (format_.default_system && messages[0].role != "system") turn(chat, "system", *format_.default_system);
    for (const ChatMessage& message : messages) {
      const bool is_assistant = message.role == "assistant";
      const ByteRange learned = turn(chat, is_assistant ? format_.assistant : message.role, message.content);
      if (is_assistant) chat.supervised.push_back(learned);
    }
    if (add_generation_prompt) chat.text += format_.open + format_.assistant + format_.close;
    return chat;
  }

 private:
  ByteRange turn(RenderedChat& chat, const std::string& role, std::string_view content) const {
    chat.text += format_.open + role + format_.close;
    const auto begin = static_cast<int64_t>(chat.text.size());
    chat.text += format_.trim ? trimmed(content) : content;
    chat.text += format_.end;
    const auto end = static_cast<int64_t>(chat.text.size());
    chat.text += format_.after;
    return {begin, end};
  }

  TurnFormat format_;
};

}  // namespace

std::shared_ptr<const ChatRenderer> make_turn_renderer(TurnFormat format) {
  return std::make_shared<TurnRenderer>(std::move(format));
}

}  // namespace sluice
