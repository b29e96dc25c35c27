// The chat templates that are rendered natively, recognised by their outline.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/jinja_outline.h"

namespace sluice {

struct SpecialTexts {
  std::string bos, eos;
};

// Null when no known template has this outline.
std::shared_ptr<const ChatRenderer> find_known_template(const std::vector<JinjaNode>& outline,
                                                        const SpecialTexts& texts);
std::string known_template_names();

}  // namespace sluice
