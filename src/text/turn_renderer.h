// Templates that write one turn after another: text before the content, the content, text after it.
#pragma once

#include <optional>
#include <string>

#include "text/chat_template.h"

namespace sluice {

struct TurnFormat {
  struct Role {
    std::string before, after;
  };
  enum class System {
    own_turn,  // a turn like the others
    always,    // the first turn of every conversation, with `system_prefix` before the content, which may be missing
    in_user,   // its content and `system_separator` go before the content of the first user turn
    not_allowed,
  };

  std::string name;
  std::string start;  // in front of everything: BOS, or nothing
  Role system_turn, user_turn;
  Role assistant_turn;              // `after` is what follows the end-of-turn token
  std::string assistant_end;        // the end-of-turn token: learned with the content
  std::string generation_prompt{};  // opens a turn of the assistant
  bool trim = false;                // white space around every content goes
  bool alternate = false;           // turns must be user, assistant, user …
  System system = System::own_turn;
  std::optional<std::string> default_system{};  // own_turn: the system turn of a conversation that has none
  std::string system_prefix{}, system_separator{};
};

// The same text before and after every role: <open>role<close>content<end><after>.
TurnFormat uniform_turns(std::string name, const std::string& open, const std::string& close, const std::string& end,
                         const std::string& after, const std::string& assistant = "assistant");

std::shared_ptr<const ChatRenderer> make_turn_renderer(TurnFormat format);

}  // namespace sluice
