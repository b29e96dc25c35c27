// Templates that write one turn after another: <open>role<close>content<end><after>.
#pragma once

#include <optional>
#include <string>

#include "text/chat_template.h"

namespace sluice {

struct TurnFormat {
  std::string name;
  std::string start;                          // in front of everything: BOS, or nothing
  std::string open, close;                    // "<|im_start|>" role "\n"
  std::string end, after;                     // "<|im_end|>" "\n"; `end` is learned, `after` is not
  std::string assistant = "assistant";        // how the template calls this role
  bool trim = false;                          // white space around every content goes
  std::optional<std::string> default_system{};  // the system turn of a conversation that has none
};

std::shared_ptr<const ChatRenderer> make_turn_renderer(TurnFormat format);

}  // namespace sluice
