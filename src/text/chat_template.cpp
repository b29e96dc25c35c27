#include "text/chat_template.h"

#include "core/error.h"
#include "text/jinja_outline.h"
#include "text/known_templates.h"

namespace sluice {
namespace {

// What in a template that is not known most likely keeps it from being one of those that are.
std::string unknown_construct(const std::string& program) {
  for (const auto& [text, name] : {std::pair{"{macro ", "a macro"},
                                   {"namespace(", "a namespace"},
                                   {"<think>", "reasoning blocks"},
                                   {"{generation}", "a generation block"},
                                   {"strftime_now(", "the date of today"}}) {
    if (program.find(text) != std::string::npos) return name;
  }
  return "the program " + (program.size() <= 160 ? program : program.substr(0, 160) + "…");
}

}  // namespace

ChatTemplate ChatTemplate::from_source(std::string_view template_text, std::string_view bos, std::string_view eos) {
  check(template_text.find_first_not_of(" \t\r\n") != std::string_view::npos, ErrorCode::bad_file,
        "chat template: found none, needed one; this is a base model, train it on {\"text\"} or {\"prompt\", "
        "\"completion\"} rows");
  const std::vector<JinjaNode> outline = prune_outline(jinja_outline(template_text));
  if (auto renderer = find_known_template(outline, {.bos = std::string(bos), .eos = std::string(eos)})) {
    return ChatTemplate(std::move(renderer));
  }
  throw Error(ErrorCode::bad_file, "chat template: found " + unknown_construct(to_string(outline)) +
                                       ", needed a template of the shape of " + known_template_names() +
                                       "; name a file with one of these: chat_template: FILE");
}

}  // namespace sluice
