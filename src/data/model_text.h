// The text side of a model: its own tokenizer and chat template, read from where the model keeps them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/weight_source.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace sluice {

struct ModelText {
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat;  // nothing when the model has no template, or one that is not known
  std::string template_source;       // as the model has it
  std::string template_problem;      // why the model's template cannot be used
  std::vector<int32_t> stop_ids;     // end of text and end of turn

  // Another template than the model's: a file with a Jinja program. Throws as load_model_text.
  void use_template(const std::string& path);
  // The template that an adapter was trained with, where its folder holds one (chat_template.jinja).
  void use_template_of(const std::string& adapter_folder);

  // The template, or Error(bad_config) saying that the model has none or why it cannot be used.
  const ChatTemplate& need_chat() const;
};

// From a folder: tokenizer.json, tokenizer_config.json, chat_template.jinja, generation_config.json; from GGUF: its metadata.
// Throws Error(bad_file) when there is no tokenizer or it is damaged.
ModelText load_model_text(const WeightSource& source);

}  // namespace sluice
