// The files of a model folder that say how conversations are written: templates, and the texts of special tokens.
#pragma once

#include <string>
#include <vector>

#include "io/gguf.h"
#include "text/chat_template.h"

namespace sluice {

// As transformers looks for them: chat_template.jinja and additional_chat_templates/*.jinja, else chat_template of tokenizer_config.json
// (one template or a list of named ones), else chat_template.json. None: the model has no template.
std::vector<TemplateSource> folder_templates(const std::string& folder);
// tokenizer.chat_template, and the named ones of tokenizer.chat_templates.
std::vector<TemplateSource> gguf_templates(const GgufFile& file);

// bos_token, eos_token … and those of the model's own (image_token), from tokenizer_config.json and special_tokens_map.json.
std::vector<std::pair<std::string, std::string>> folder_token_texts(const std::string& folder);

// Writes the files that folder_templates and ModelText::use_template_of read: of the template, its companions and its arguments.
void save_chat_files(const ChatTemplate& chat, const std::string& folder);

}  // namespace sluice
