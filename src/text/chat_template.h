// Conversations to the text a model was tuned on, and which bytes of it are to be learned.
//
//   ChatTemplate chat = ChatTemplate::from_sources({{.text = source, .where = "chat_template.jinja"}},
//                                                  {.texts = {{"bos_token", "<s>"}}, .stops = {"<|im_end|>"}});
//   RenderedChat r = chat.render({.messages = Json::parse(R"([{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}])")});
//   r.text == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
//   r.turns[0].ranges[0] is the range of "4<|im_end|>"
//
// A template is a Jinja program and is run as transformers runs it (text/jinja/): the same bytes, and an error where it has one. No other
// template ever stands in for one that cannot be read or fails. What is learned follows from where each byte came from
// (text/learned_turns.h), never from a guess about the layout.
//
// What differs from apply_chat_template, by design: strftime_now() formats a fixed moment, 26 July 2024, or what the argument "strftime_now"
// says, since the day of a run must not change its bytes; the arguments of a tool call may be text or an object, whichever the template
// wants; images, audio and video are refused.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/json.h"
#include "text/learned_turns.h"

namespace sluice {

// A message that is nothing but text.
struct ChatMessage {
  std::string role, content;
};
Json to_json(const std::vector<ChatMessage>& messages);  // as ChatInput::messages

struct TemplateSource {
  std::string name = "default";  // of a model with several: default, tool_use, rag …
  std::string text;
  std::string where = "chat template";  // its file, for messages
};

struct TemplateTokens {
  std::vector<std::pair<std::string, std::string>> texts;  // bos_token, eos_token, pad_token … and what they are
  std::vector<std::string> stops;                          // the texts of the tokens that end a generation
};

struct ChatInput {
  Json messages;  // a list of objects {"role", "content", …}, as a row has them; keys that are null count as missing
  Json tools, documents;  // lists, or null for none
  Json
      arguments;  // more names for the template, such as enable_thinking; they go before those of the template. null: none
  bool add_generation_prompt = false;  // ends with what opens an assistant's turn
};

struct RenderedChat {
  // Text that a template writes for BOS is BOS: encode it with parse_special; Tokenizer::encode never adds a second one.
  std::string text;
  std::vector<LearnedTurn> turns;  // one for each message whose role is "assistant", in order
};

class ChatTemplate {
 public:
  // Throws Error(bad_file) with file, line and construct for a template that Jinja, or the interpreter, cannot read.
  static ChatTemplate from_sources(std::vector<TemplateSource> sources, TemplateTokens tokens);

  // The same template with arguments for every conversation, an object or null. Throws Error(bad_config) for another value.
  ChatTemplate with_arguments(Json arguments) const;

  // Throws Error(bad_config) with template and line where the template fails or refuses the conversation (raise_exception).
  RenderedChat render(const ChatInput& input) const;

  const std::vector<TemplateSource>& sources() const;
  const Json& arguments() const { return arguments_; }

 private:
  struct Parts;
  explicit ChatTemplate(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
  Json arguments_;
};

}  // namespace sluice
