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
  std::optional<ChatTemplate> chat;  // nothing when the model has no template, or one that cannot be read
  std::string template_problem;      // why the model's template cannot be used
  std::vector<int32_t> stop_ids;     // end of text and end of turn, also the one that the template writes
  std::string end_problem;           // why no id can stop a turn; rows of messages are then refused
  std::vector<std::string> notes;    // one line each: what a user should know of how the files were read
  std::vector<std::pair<std::string, std::string>> token_texts;  // bos_token …: names and texts that a template may use

  // Another template than the model's: a file with a Jinja program. Throws as load_model_text.
  void use_template(const std::string& path);
  // The templates and chat_template_args that an adapter was trained with, where its folder holds them.
  void use_template_of(const std::string& adapter_folder);
  // More arguments for every conversation, as a JSON object; they go before those that are set. Empty: none.
  void use_arguments(const std::string& json);

  // What decides how a conversation is written: templates and arguments. Empty without a template.
  std::string template_identity() const;

  // The template, or Error(bad_config) saying that the model has none or why it cannot be used.
  const ChatTemplate& need_chat() const;
};

// Throws Error(bad_file) where the file cannot be read.
std::string read_text_file(const std::string& path);

// From a folder: tokenizer.json, else tokenizer.model (SentencePiece's or tiktoken's) or a *.tiktoken file, with tokenizer_config.json,
// special_tokens_map.json, added_tokens.json, generation_config.json and the files of chat_files.h; from GGUF: its metadata.
// Throws Error(bad_file) when there is no tokenizer or it is damaged.
ModelText load_model_text(const WeightSource& source);

}  // namespace sluice
