#include "text/chat_template.h"

#include "core/error.h"
#include "text/jinja_outline.h"
#include "text/known_templates.h"

namespace sluice {
namespace {

std::string shortened(const std::string& text) { return text.size() <= 160 ? text : text.substr(0, 160) + "…"; }

}  // namespace

ChatTemplate ChatTemplate::from_source(std::string_view template_text, std::string_view bos, std::string_view eos) {
  check(template_text.find_first_not_of(" \t\r\n") != std::string_view::npos, ErrorCode::bad_file,
        "chat template: found none, needed one; this is a base model, train it on {\"text\"} or {\"prompt\", \"completion\"} rows");
  const std::vector<JinjaNode> outline = jinja_outline(template_text);
  if (auto renderer = find_known_template(outline, {.bos = std::string(bos), .eos = std::string(eos)})) {
    return ChatTemplate(std::move(renderer));
  }
  throw Error(ErrorCode::bad_file, "chat template: found the program " + shortened(to_string(outline)) + ", needed one of " +
                                       known_template_names() + "; give the model a template of one of these shapes");
}

}  // namespace sluice
