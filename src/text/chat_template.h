// Conversations to the text a model was tuned on, and which bytes of it are to be learned.
//
//   ChatTemplate chat = ChatTemplate::from_source(template_text, bos, eos);      // tokenizer.chat_template of the model file
//   RenderedChat r = chat.render({{"user", "2+2?"}, {"assistant", "4"}});
//   r.text == "<|im_start|>system\n…<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
//   r.supervised[0] is the range of "4<|im_end|>"
//
// A template is a Jinja program. Those of the model families we know are recognised as programs, whatever their layout (see
// known_templates.cpp) and rendered natively; the mask needs no markup in the template. Any other template is refused when it is
// loaded, with the first construct that is not known. ChatRenderer is the seam for a full interpreter.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_range.h"

namespace sluice {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

struct RenderedChat {
  std::string text;
  // For each assistant message, in order: its content and its end-of-turn token, without what the template puts after that.
  std::vector<ByteRange> supervised;
};

class ChatRenderer {
 public:
  virtual ~ChatRenderer() = default;
  virtual std::string_view name() const = 0;
  virtual RenderedChat render(std::span<const ChatMessage> messages, bool add_generation_prompt) const = 0;
};

class ChatTemplate {
 public:
  // `bos` and `eos` are the texts of these tokens, for templates that write them. Throws Error(bad_file) for a template that is
  // not known.
  static ChatTemplate from_source(std::string_view template_text, std::string_view bos, std::string_view eos);
  explicit ChatTemplate(std::shared_ptr<const ChatRenderer> renderer) : renderer_(std::move(renderer)) {}

  // add_generation_prompt: ends with what opens an assistant's turn. Text that a template writes for BOS is BOS: encode it with
  // parse_special; Tokenizer::encode never adds a second one. Throws Error(bad_config) for a role that the template has no place
  // for, and for no messages.
  RenderedChat render(std::span<const ChatMessage> messages, bool add_generation_prompt = false) const {
    return renderer_->render(messages, add_generation_prompt);
  }

  std::string_view name() const { return renderer_->name(); }  // chatml, llama3 …

 private:
  std::shared_ptr<const ChatRenderer> renderer_;
};

}  // namespace sluice
