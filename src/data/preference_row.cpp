#include "data/preference_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "data/row_keys.h"
#include "data/row_shapes.h"
#include "data/ultrafeedback.h"

namespace sluice {

namespace {

constexpr const char* needed = "{\"prompt\", \"chosen\", \"rejected\"}, each a string or a list of messages";

// A string, or a list of messages.
Json answer_of(const Json& row, const char* key) {
  if (!row.contains(key))
    refuse_row(fmt::format("there is no \"{}\", needed {}; objective sft reads other rows", key, needed));
  const Json& answer = row[key];
  if ((!answer.is_string() && !answer.is_structured()) || is_empty_value(answer))
    refuse_row(fmt::format("{} is empty or no text, needed a string or a list of messages", key));
  return answer.is_string() ? answer : messages_of(answer, key);
}

bool begins_with_answer(const Json& messages) {
  return !messages.empty() && messages[0].is_object() && messages[0].value("role", Json()) == "assistant";
}

Json part_of(const Json& list, size_t begin, size_t end) {
  Json part = Json::array();
  for (size_t i = begin; i < end; ++i) part.push_back(list[i]);
  return part;
}

// What is asked beside whole conversations repeats what they begin with.
void check_prompt(const Asked& asked, const Json& common) {
  if (is_empty_value(asked.prompt)) return;
  const Json& prompt = asked.prompt;
  const bool said = std::any_of(common.begin(), common.end(), [&](const Json& message) {
    return message.is_object() && message.value("content", Json()) == prompt;
  });
  const bool begins =
      prompt.is_array() && prompt.size() <= common.size() && part_of(common, 0, prompt.size()) == prompt;
  if (!said && !begins)
    refuse_row(fmt::format(
        "{} is not what the conversations of chosen and rejected begin with; drop the key, or give only the answers as "
        "chosen and rejected",
        asked.name));
}

// Whole conversations: the messages that both begin with are the prompt.
void divide(PreferenceRow& row) {
  const Json chosen = std::move(row.chosen), rejected = std::move(row.rejected);
  size_t common = 0;
  while (common < std::min(chosen.size(), rejected.size()) && chosen[common] == rejected[common]) ++common;
  // Equal conversations are told by their tokens, like all pairs whose answers are equal.
  if (common > 1 && chosen == rejected) --common;
  if (common == chosen.size() || common == rejected.size())
    refuse_row("chosen and rejected do not differ in an answer; drop the row");
  if (common == 0)
    refuse_row("chosen and rejected share no message that could be the prompt; needed conversations that begin alike");
  row.prompt = part_of(chosen, 0, common);
  row.chosen = part_of(chosen, common, chosen.size());
  row.rejected = part_of(rejected, common, rejected.size());
}

bool continues_character(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

// Two texts: what they have in common, without the space before the first difference (TRL's extract_prompt).
void divide_texts(PreferenceRow& row) {
  const std::string chosen = row.chosen.get<std::string>(), rejected = row.rejected.get<std::string>();
  const auto differ = std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
  auto common = static_cast<size_t>(differ.first - chosen.begin());
  const auto inside = [&](const std::string& text) {
    return common < text.size() && continues_character(text[common]);
  };
  while (common > 0 && (inside(chosen) || inside(rejected))) --common;
  if (common > 0 && common < chosen.size() && chosen[common - 1] == ' ') --common;
  if (common == 0 || common == chosen.size() || common == rejected.size())
    refuse_row(fmt::format("there is no \"prompt\", and chosen and rejected {}, needed {}",
                           common == 0 ? "do not begin alike" : "do not differ in an answer", needed));
  row.prompt = chosen.substr(0, common);
  row.chosen = chosen.substr(common);
  row.rejected = rejected.substr(common);
  row.ready = true;
}

const char* kind_of(const std::string& asked) {
  if (asked == "conversations") return "ShareGPT preference";
  return asked == "instruction" ? "Alpaca preference" : "preference";
}

PreferenceRow parse_pair(const Json& object) {
  const bool argilla = object.contains("chosen_response") && object.contains("rejected_response");
  const char *chosen = argilla ? "chosen_response" : "chosen", *rejected = argilla ? "rejected_response" : "rejected";
  PreferenceRow row;
  row.row = object;
  row.chosen = answer_of(object, chosen);
  row.rejected = answer_of(object, rejected);
  row.read = {chosen, rejected};
  if (row.chosen.type() != row.rejected.type())
    refuse_row("chosen and rejected are of different kinds, needed two strings or two lists of messages");
  std::optional<Asked> asked = asked_by(object);
  const bool whole = row.chosen.is_array() && !(begins_with_answer(row.chosen) && begins_with_answer(row.rejected));
  if (whole) {
    divide(row);
    if (asked) check_prompt(*asked, row.prompt);
    if (asked) row.read.emplace_back(asked->read.front());
  } else if (asked) {
    row.kind = kind_of(asked->name);
    row.prompt = std::move(asked->prompt);
    row.prompt_name = asked->name;
    row.read.insert(row.read.end(), asked->read.begin(), asked->read.end());
  } else if (row.chosen.is_string()) {
    divide_texts(row);
  } else {
    refuse_row(fmt::format("there is no \"prompt\", needed {}", needed));
  }
  return row;
}

DataRow with_answer(const PreferenceRow& pair, const Json& answer, const char* name) {
  const AnswerParts parts{
      .row = pair.row, .prompt = pair.prompt, .answer = answer, .prompt_name = pair.prompt_name, .answer_name = name};
  DataRow row = pair.ready ? ready_row(parts, pair.read) : answer_row(parts, pair.read);
  refuse_graded_weights(row);
  return row;
}

}  // namespace

DataRow PreferenceRow::with_chosen() const { return with_answer(*this, chosen, "chosen"); }
DataRow PreferenceRow::with_rejected() const { return with_answer(*this, rejected, "rejected"); }

std::optional<PreferenceRow> parse_preference(const Json& row) {
  if (is_ultrafeedback(row)) return best_against_worst(row);
  return parse_pair(row);
}

}  // namespace sluice
