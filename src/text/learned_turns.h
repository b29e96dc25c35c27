// Which bytes of a rendered conversation are the assistant's own.
//
// Where the template has {% generation %} blocks, they say it. Else the origin of each byte does (jinja/marked_text.h): a turn is learned
// from the first byte of its message to the end of the stop token's text that follows its last byte, before the next message's own text.
// What opens a tool call or a reasoning, or stood at the beginning of the content as the row has it, is learned with it, as the model has
// to write it too: all that comes after what the template writes as generation prompt.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "text/byte_range.h"
#include "text/jinja/marked_text.h"

namespace sluice {

struct LearnedTurn {
  size_t message = 0;             // its index in the conversation
  std::vector<ByteRange> ranges;  // ascending; none where the template writes nothing of the message
  bool ends_turn = false;         // the last range ends with the text of a stop token
};

struct TurnFacts {
  std::vector<bool> assistant;        // by message
  std::vector<std::string> contents;  // by message: its content where that is text
  std::vector<std::string> stops;
  bool by_generation_blocks = false;
  // What add_generation_prompt adds to the end; nothing when it changes more than the end. Asked for where it is needed.
  std::function<std::optional<std::string>()> generation_prompt;
};

std::vector<LearnedTurn> learned_turns(const jinja::MarkedText& text, const TurnFacts& facts);

}  // namespace sluice
